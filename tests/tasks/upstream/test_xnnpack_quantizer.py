"""What pads between layers that XNNPACK computes in int8."""

from __future__ import annotations

from typing import Any

import pytest
from pteforge.tests.lowering import lower_quantized, worst_sqnr

# Without the extension, the file of the first one cannot be loaded.
PADDED = {
    "pool": lambda net, x: net.second(net.pad(net.pool(net.pad(net.conv(x).relu())))),
    "pool next to convolution": lambda net, x: net.pool(y := net.pad(net.conv(x).relu())) + net.second(y),
}
# What is padded has no scale, or is not padded with zeros.
OTHERS = {
    "input": lambda net, x: net.second(net.pad(x)),
    "ones": lambda net, x: net.second(net.ones(net.conv(x))),
    "reflection": lambda net, x: net.second(net.reflection(net.conv(x))),
}


def _network(function: Any) -> Any:
    import torch
    from pteforge.tests.zoo.networks import FunctionOfLayers

    torch.manual_seed(0)
    layers = {
        "conv": torch.nn.Conv2d(8, 8, 3, padding=1),
        "second": torch.nn.Conv2d(8, 8, 2),
        "pad": torch.nn.ZeroPad2d((0, 1, 0, 1)),
        "pool": torch.nn.MaxPool2d(2, 1),
        "ones": torch.nn.ConstantPad2d((0, 1, 0, 1), 1.0),
        "reflection": torch.nn.ReflectionPad2d(1),
    }
    return FunctionOfLayers(function, **layers).eval(), torch.randn(2, 8, 16, 16)


@pytest.fixture
def plain(monkeypatch):
    """ExecuTorch's own quantizer, and its partitioner where that pads."""
    from pteforge.tasks.upstream import xnnpack_partitioner, xnnpack_quantizer

    monkeypatch.delitem(xnnpack_partitioner._EXTENDED, xnnpack_partitioner.ConstantPadConfig)
    monkeypatch.setattr(xnnpack_quantizer, "ExtendedXnnpackQuantizer", xnnpack_quantizer.XNNPACKQuantizer)


@pytest.mark.parametrize("function", {**PADDED, **OTHERS}.values(), ids={**PADDED, **OTHERS})
def test_files_compute_what_eager_does(function):
    """As exactly as int8 can."""
    assert worst_sqnr(lower_quantized(*_network(function)), *_network(function)) > 30


@pytest.mark.usefixtures("plain")
def test_executorch_fails_by_itself():
    """Once this fails, so does the reason for the extension."""
    network = _network(PADDED["pool"])
    content = lower_quantized(*network)
    with pytest.raises(RuntimeError, match="Failed to load method forward"):
        worst_sqnr(content, *network)


@pytest.mark.slow
@pytest.mark.parametrize("function", OTHERS.values(), ids=OTHERS)
def test_others_stay_the_same(request, function):
    """Byte for byte."""
    made = lower_quantized(*_network(function))
    request.getfixturevalue("plain")
    assert made == lower_quantized(*_network(function))
