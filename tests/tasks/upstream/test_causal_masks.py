"""Masks that are inputs of transformers."""

from __future__ import annotations

import pytest
import torch
from pteforge.configs.definition import MethodDefinition
from pteforge.tasks.programs.method import export_method
from torch import nn


class Encoder(nn.Module):
    """Takes a mask for its layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.layers(x, mask=mask)


class Decoder(nn.Module):
    """Takes a mask for its own positions."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.TransformerDecoder(nn.TransformerDecoderLayer(16, 2, 32, batch_first=True), 1)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.layers(x, x * 2, tgt_mask=mask)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("model", [Encoder, Decoder])
def test_they_stay_inputs(model, strict):
    """A model whose example is a causal mask is exported, and the program takes any other mask as eager does."""
    module, x = model().eval(), torch.randn(2, 5, 16)
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    program = export_method("forward", MethodDefinition(module, [(x, causal)]), None, strict=strict).module()
    with torch.no_grad():
        for mask in (causal, causal.T, torch.zeros(5, 5)):
            torch.testing.assert_close(program(x, mask), module(x, mask), rtol=1e-5, atol=1e-5)


def test_torch_fails_by_itself():
    """Once this fails, so does the reason for the patch."""
    with pytest.raises(Exception, match="data-dependent"), torch.no_grad():
        torch.export.export(
            Encoder().eval(), (torch.randn(2, 5, 16), nn.Transformer.generate_square_subsequent_mask(5))
        )
