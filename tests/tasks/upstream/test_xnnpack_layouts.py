"""Convolutions and linear layers for XNNPACK whose inputs are quantized dynamically, and shared with others."""

from __future__ import annotations

from typing import Any

import pytest
from pteforge.tests.lowering import lower_quantized, worst_sqnr

# By name: what a network computes of its layers and its input, where ExecuTorch by itself makes a file that does not
# run or computes something else, or makes none.
MENDED = {
    "pad": lambda net, x: net.conv(net.pad(x)),
    "residual": lambda net, x: (y := x.relu()) + net.conv(y),
    "linear after convolution": lambda net, x: net.linear(net.conv(x)),
    "gate": lambda net, x: net.second(net.conv(y := x * x.sigmoid()).sigmoid()) + y,
    "shared with linear": lambda net, x: net.linear(y := x.relu()) + net.conv(y),
    "linear comes second": lambda net, x: net.conv(x) + net.linear(x),
    "input of both": lambda net, x: net.linear(x) + net.conv(x),
    "view": lambda net, x: (net.conv(y := x.relu()), y.reshape(2, -1)),
    "mean": lambda net, x: x.relu() * net.conv(x) + x.mean((2, 3), keepdim=True),
    "linear and convolution": lambda net, x: net.linear(y := net.conv(x).relu()) + net.second(y),
    "output": lambda net, x: (net.conv(y := x.relu() * 2), y),
}
WORKED = {
    "input": lambda net, x: net.conv(x),
    "chain": lambda net, x: net.second(net.conv(x).relu()),
    "linear": lambda net, x: net.linear(x.relu()),
}
QUICK = {"pad", "residual", "linear after convolution", "chain"}


def _cases(functions: dict[str, Any]) -> list[Any]:
    return [
        pytest.param(of, id=name, marks=() if name in QUICK else pytest.mark.slow) for name, of in functions.items()
    ]


def _network(function: Any) -> Any:
    import torch
    from pteforge.tests.zoo.networks import FunctionOfLayers

    torch.manual_seed(0)
    conv, second = (torch.nn.Conv2d(8, 8, 3, padding=1) for _ in range(2))
    layers = {"linear": torch.nn.Linear(16, 16), "pad": torch.nn.ZeroPad2d((0, 1, 0, 1))}
    return FunctionOfLayers(function, conv=conv, second=second, **layers).eval(), torch.randn(2, 8, 16, 16)


def _lower(function: Any) -> bytes:
    return lower_quantized(*_network(function), dynamic=True)


def _worst_sqnr(content: bytes, function: Any) -> float:
    return worst_sqnr(content, *_network(function))


@pytest.fixture
def plain(monkeypatch):
    """ExecuTorch's own pass."""
    from pteforge.tasks.upstream import xnnpack_layouts

    monkeypatch.setattr(xnnpack_layouts, "mend_dynamic_layouts", lambda: None)
    monkeypatch.setattr(xnnpack_layouts._Pass, "input_to_nhwc", xnnpack_layouts._to_nhwc)
    monkeypatch.setattr(xnnpack_layouts._Pass, "input_to_nchw", xnnpack_layouts._to_nchw)


@pytest.mark.parametrize("function", _cases({**MENDED, **WORKED}))
def test_files_compute_what_eager_does(function):
    """As exactly as int8 can."""
    assert _worst_sqnr(_lower(function), function) > 35


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("function", _cases(MENDED))
def test_executorch_fails_by_itself(function):
    """Once this fails, so does the reason for the patch."""
    try:
        sqnr = _worst_sqnr(_lower(function), function)
    except RuntimeError:
        return
    assert sqnr < 20


@pytest.mark.parametrize("function", _cases(WORKED))
def test_what_worked_stays_the_same(request, function):
    """Byte for byte."""
    made = _lower(function)
    request.getfixturevalue("plain")
    assert made == _lower(function)
