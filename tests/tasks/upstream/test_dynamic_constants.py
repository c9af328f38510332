"""Layers that are quantized dynamically, and whose input is a constant."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from pteforge.formats.pte.reader import read_pte
from pteforge.tests.lowering import lower_quantized, worst_sqnr


def _network(kind: str) -> Any:
    import torch

    class OfConstant(torch.nn.Module):
        """Two layers of one shape, the second one of a constant."""

        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.of_input, self.of_constant = torch.nn.Linear(16, 8), torch.nn.Linear(16, 8)
            self.learned = torch.nn.Parameter(torch.randn(4, 16))

        def forward(self, x: Any) -> Any:
            constants = {
                "zeros": torch.zeros(4, 16),
                "like zeros": torch.zeros_like(self.learned),
                "negative": torch.full((4, 16), -2.0),
                "learned": self.learned.expand(4, 16),
            }
            return self.of_input(x) + self.of_constant(constants[kind])

    return OfConstant().eval(), torch.randn(4, 16)


@pytest.mark.parametrize("kind", ["zeros", "like zeros", "negative", "learned"])
def test_they_are_right_and_delegated(kind):
    """What quantizes the constant stays whole, so that the delegate takes the layer."""
    network, x = _network(kind)
    content = lower_quantized(network, x, dynamic=True)
    assert worst_sqnr(content, network, x) > 30
    (method,) = read_pte(content).methods
    assert not [operator for operator in method.operators if "quantize" in operator or "addmm" in operator]


def test_torchao_fails_by_itself(monkeypatch):
    """Once this fails, so does the reason for the patch."""
    from pteforge.tasks.programs import pt2e

    monkeypatch.setattr(pt2e, "whole_dynamic_quantization", contextlib.nullcontext)
    network, x = _network("like zeros")
    assert worst_sqnr(lower_quantized(network, x, dynamic=True), network, x) < 0
