"""Values that are quantized statically, and used in two layouts by XNNPACK."""

from __future__ import annotations

from typing import Any

import pytest
from pteforge.tests.lowering import lower_quantized, worst_sqnr


def _to_channels_last(x: Any) -> Any:
    import torch

    return x.to(memory_format=torch.channels_last)


def _clone(x: Any) -> Any:
    import torch

    return x.clone(memory_format=torch.channels_last)


# By name: what a network computes of its layers and its input, where ExecuTorch by itself makes a file that does not
# run or computes something else, or makes none. Eight channels, rows and columns: no shape gives a mistake away.
MENDED = {
    "pooled and returned": lambda net, x: (net.pool(y := net.conv(x)), y),
    "returned and pooled": lambda net, x: ((y := net.conv(x)), net.pool(y)),
    "scalars": lambda net, x: net.conv(x).relu().mean() * 2.0,
    "copied": lambda net, x: net.second(_to_channels_last(net.conv(x)).relu()),
    "cloned": lambda net, x: net.second(_clone(net.conv(x)) + 1),
    "softmax": lambda net, x: net.conv(x).softmax(-1),
    "half precision": lambda net, x: net.conv(x),
}
WORKED = {
    "viewed and resized": lambda net, x: ((y := net.conv(x)).reshape(1, -1), net.resize(y)),
    "chain": lambda net, x: net.second(net.conv(x).relu()),
    "pooled twice": lambda net, x: (net.pool(y := net.conv(x)), net.second(y)),
    "sum": lambda net, x: net.second(y := net.conv(x)) + y,
    "viewed": lambda net, x: net.conv(x).reshape(1, -1),
}
QUICK = {"pooled and returned", "half precision", "chain"}


def _cases(functions: dict[str, Any]) -> list[Any]:
    return [
        pytest.param(name, of, id=name, marks=() if name in QUICK else pytest.mark.slow)
        for name, of in functions.items()
    ]


def _network(name: str, function: Any) -> Any:
    import torch
    from pteforge.tests.zoo.networks import FunctionOfLayers

    torch.manual_seed(0)
    conv, second = (torch.nn.Conv2d(8, 8, 3, padding=1) for _ in range(2))
    layers = {"pool": torch.nn.AvgPool2d(2), "resize": torch.nn.UpsamplingBilinear2d(scale_factor=2)}
    network = FunctionOfLayers(function, conv=conv, second=second, **layers).eval()
    dtype = torch.half if name == "half precision" else torch.float32
    return network.to(dtype), torch.randn(1, 8, 8, 8, dtype=dtype)


@pytest.fixture
def plain(monkeypatch):
    """ExecuTorch's own pass."""
    from executorch.backends.xnnpack.partition.config import ToDimOrderCopyConfig
    from pteforge.tasks.upstream import xnnpack_partitioner
    from pteforge.tasks.upstream import xnnpack_static_layouts as mended

    monkeypatch.setattr(mended, "mend_static_layouts", lambda: None)
    monkeypatch.delitem(xnnpack_partitioner._EXTENDED, ToDimOrderCopyConfig)
    monkeypatch.setattr(mended._Pass, "memory_sensitive_ops_nchw", mended._usual_layout)
    monkeypatch.setattr(mended._Pass, "insert_copy_q_dq", mended._insert)
    monkeypatch.setattr(mended._Pass, "is_nhwc_node", staticmethod(mended._is_nhwc))
    monkeypatch.setattr(mended._Pass, "is_nchw_node", staticmethod(mended._is_nchw))


@pytest.mark.parametrize(("name", "function"), _cases({**MENDED, **WORKED}))
def test_files_compute_what_eager_does(name, function):
    """As exactly as int8 can."""
    network, x = _network(name, function)
    assert worst_sqnr(lower_quantized(network, x), network, x) > 30


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("name", [name for name in MENDED if name != "half precision"])
def test_executorch_fails_by_itself(name):
    """Once this fails, so does the reason for the patch."""
    network, x = _network(name, MENDED[name])
    if name == "scalars":
        with pytest.raises(Exception, match="ChannelsLastTaggedReshapePass") as raised:
            lower_quantized(network, x)
        assert isinstance(raised.value.__cause__, IndexError)
    else:
        assert worst_sqnr(lower_quantized(network, x), network, x) < 20


def test_half_precision_by_itself(request, monkeypatch):
    """The delegate writes float32 by ExecuTorch's own pass, into memory for half of it; such a file cannot be run."""
    from executorch.backends.xnnpack import xnnpack_preprocess

    graphs = []
    serialize = xnnpack_preprocess.serialize_xnnpack_binary
    monkeypatch.setattr(
        xnnpack_preprocess,
        "serialize_xnnpack_binary",
        lambda graph, *args: graphs.append(graph) or serialize(graph, *args),
    )
    network = _network("half precision", MENDED["half precision"])
    lower_quantized(*network)
    request.getfixturevalue("plain")
    lower_quantized(*network)
    written = [graph.xvalues[-1].xvalue_union.datatype.name for graph in graphs]
    assert written == ["xnn_datatype_fp16", "xnn_datatype_fp32"]


@pytest.mark.parametrize(("name", "function"), _cases(WORKED))
def test_what_worked_stays_the_same(request, name, function):
    """Byte for byte."""
    made = lower_quantized(*_network(name, function))
    request.getfixturevalue("plain")
    assert made == lower_quantized(*_network(name, function))
