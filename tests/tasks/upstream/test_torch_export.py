"""Masks that are inputs, files that torch maps, and constants that are quantized dynamically."""

import contextlib

import pytest
import torch
from pteforge.configs.model import MethodDefinition
from pteforge.formats.pte.reader import read_pte
from pteforge.tasks.export.method import export_method
from pteforge.tasks.upstream.torch_export import comparable_strides, mapping_heard
from pteforge.tests.lowering import lower_quantized, worst_sqnr
from pteforge.tests.zoo.networks import FunctionOfLayers
from safetensors.torch import load_file, save_file
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
def test_masks_stay_inputs(model, strict):
    """A model whose example is a causal mask is exported, and the program takes any other mask as eager does."""
    module, x = model().eval(), torch.randn(2, 5, 16)
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    program = export_method("forward", MethodDefinition(module, [(x, causal)]), None, strict=strict).module()
    with torch.no_grad():
        for mask in (causal, causal.T, torch.zeros(5, 5)):
            torch.testing.assert_close(program(x, mask), module(x, mask), rtol=1e-5, atol=1e-5)


def test_torch_compares_masks_by_itself():
    """Once this fails, so does the reason for `uncompared_masks`."""
    with pytest.raises(Exception, match="data-dependent"), torch.no_grad():
        torch.export.export(
            Encoder().eval(), (torch.randn(2, 5, 16), nn.Transformer.generate_square_subsequent_mask(5))
        )


@pytest.mark.parametrize("name", ["x.pt", "x.safetensors"])
def test_mapped_files_are_heard(tmp_path, name):
    """Each file is heard by its path while the context lasts, and loaded as ever."""
    path, weights, heard = tmp_path / name, {"x": torch.arange(3)}, []
    if name.endswith(".pt"):
        torch.save(weights, path)
    else:
        save_file(weights, path)
    with mapping_heard(heard.append):
        loaded = torch.load(path, mmap=True) if name.endswith(".pt") else load_file(path)
    assert torch.equal(loaded["x"], weights["x"])
    assert {str(heard_path) for heard_path in heard} == {str(path)}
    before = len(heard)
    torch.load(path, mmap=True) if name.endswith(".pt") else load_file(path)
    assert len(heard) == before


def _of_constant(kind: str) -> tuple[nn.Module, torch.Tensor]:
    """Two layers of one shape, the second one of a constant."""
    constants = {
        "zeros": lambda _: torch.zeros(4, 16),
        "like zeros": lambda net: torch.zeros_like(net.learned),
        "negative": lambda _: torch.full((4, 16), -2.0),
        "learned": lambda net: net.learned.expand(4, 16),
    }
    torch.manual_seed(0)
    layers = {"of_input": nn.Linear(16, 8), "of_constant": nn.Linear(16, 8)}
    network = FunctionOfLayers(
        lambda net, x: net.of_input(x) + net.of_constant(constants[kind](net)),
        **layers,
        learned=nn.Parameter(torch.randn(4, 16)),
    )
    return network.eval(), torch.randn(4, 16)


@pytest.mark.parametrize("kind", ["zeros", "like zeros", "negative", "learned"])
def test_layers_of_constants_are_right_and_delegated(kind):
    """What quantizes the constant stays whole, so that the delegate takes the layer."""
    network, x = _of_constant(kind)
    content = lower_quantized(network, x, dynamic=True)
    assert worst_sqnr(content, network, x) > 30
    (method,) = read_pte(content).methods
    assert not [operator for operator in method.operators if "quantize" in operator or "addmm" in operator]


@pytest.mark.slow
def test_torchao_fails_by_itself(monkeypatch):
    """Once this fails, so does the reason for `whole_dynamic_quantization`."""
    from pteforge.tasks.quantize import pt2e

    monkeypatch.setattr(pt2e, "whole_dynamic_quantization", contextlib.nullcontext)
    network, x = _of_constant("like zeros")
    assert worst_sqnr(lower_quantized(network, x, dynamic=True), network, x) < 0


class Joined(nn.Module):
    """Heads of kept and new tokens that are repeated, as in attention with fewer heads of keys than of queries."""

    def __init__(self, kept: int) -> None:
        super().__init__()
        self.register_buffer("kept", torch.randn(1, 2, kept, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        joined = torch.cat([self.kept, x], dim=2)
        repeated = joined[:, :, None].expand(1, 2, 2, joined.shape[2], 8)
        return repeated.reshape(1, 4, joined.shape[2], 8) * 2


def test_heads_of_a_cache_and_more_tokens():
    """A view whose strides are multiples of a sum keeps no size from varying, with which torch alone refuses it."""
    x, dims = torch.randn(1, 2, 7, 8), {"x": {2: torch.export.Dim("n", min=1, max=24)}}
    with pytest.raises(Exception, match="Constraints violated"):
        torch.export.export(Joined(6), (x,), dynamic_shapes=dims)
    module = Joined(5)  # torch remembers how it compared the strides of the other
    with comparable_strides():
        program = torch.export.export(module, (x,), dynamic_shapes=dims)
    for length in (1, 24):
        new = torch.randn(1, 2, length, 8)
        assert torch.equal(program.module()(new), module(new))
