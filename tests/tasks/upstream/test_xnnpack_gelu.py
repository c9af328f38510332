"""GELU with its approximation on XNNPACK."""

from __future__ import annotations

from typing import Any

import pytest
from pteforge.formats.pte.reader import read_pte
from pteforge.tests.lowering import lower_quantized, worst_sqnr

SHAPES = [(3,), (2, 16), (2, 3, 16), (1, 4, 6, 6), (1, 2, 3, 4, 5)]


def _network(shape: tuple[int, ...]) -> Any:
    import torch

    torch.manual_seed(0)
    return torch.nn.GELU(approximate="tanh").eval(), torch.randn(shape) * 3


@pytest.mark.parametrize("shape", SHAPES)
def test_files_compute_what_eager_does(lower_for, shape):
    """As exactly as float32 can, in a delegate, for inputs of any rank."""
    network, x = _network(shape)
    content = lower_for("xnnpack", network, x)
    (method,) = read_pte(content).methods
    assert not method.operators
    assert worst_sqnr(content, network, x) > 120


def test_scalars(lower_for):
    """Those that XNNPACK does not multiply with constants are left to the portable kernels."""
    network, x = _network(())
    assert worst_sqnr(lower_for("xnnpack", network, x), network, x) > 120


def test_executorch_fails_by_itself(lower_for, monkeypatch):
    """Once this fails, so does the reason for the patch."""
    from pteforge.tasks.upstream import xnnpack_gelu

    monkeypatch.setattr(xnnpack_gelu.XNNPACKPassManager, "__init__", xnnpack_gelu._upstream)
    monkeypatch.setattr(xnnpack_gelu, "expand_tanh_gelu", lambda: None)
    network, x = _network((2, 16))
    assert worst_sqnr(lower_for("xnnpack", network, x), network, x) < 90


def test_between_quantized_layers():
    """Two of them share a delegate with layers that are quantized dynamically, and with an exact one."""
    import torch

    torch.manual_seed(0)
    linear = [torch.nn.Linear(16, 16) for _ in range(3)]
    gelu = [torch.nn.GELU(approximate="tanh") for _ in range(2)]
    network = torch.nn.Sequential(linear[0], gelu[0], linear[1], gelu[1], linear[2], torch.nn.GELU()).eval()
    x = torch.randn(4, 16)
    content = lower_quantized(network, x, dynamic=True)
    assert len(read_pte(content).methods[0].delegates) == 1
    assert worst_sqnr(content, network, x) > 35
