"""Layouts of quantized values, GELU with its approximation, and patterns that are matched, in XNNPACK's passes."""

import math
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from pteforge.formats.pte.reader import read_pte
from pteforge.tasks.upstream import compat
from pteforge.tests.lowering import lower_quantized, worst_sqnr
from pteforge.tests.zoo.networks import Function, FunctionOfLayers
from torch import nn

Net = tuple[Any, Any]
"""A network and its input."""


@pytest.fixture(scope="module")
def passes() -> Any:
    """The module under test; its import takes seconds."""
    from pteforge.tasks.upstream import xnnpack_passes

    return xnnpack_passes


def _cases(kinds: Mapping[str, Any], *quick: str) -> list[Any]:
    """Names, of which all but the quick ones are nightly."""
    return [pytest.param(name, marks=() if name in quick else pytest.mark.nightly) for name in kinds]


def _assert_same(request: pytest.FixtureRequest, network: Net, least: float, *, dynamic: bool) -> None:
    """The file is right, and byte for byte the same without the patch that the fixture `plain` takes away."""
    made = lower_quantized(*network, dynamic=dynamic)
    assert worst_sqnr(made, *network) > least
    request.getfixturevalue("plain")
    assert made == lower_quantized(*network, dynamic=dynamic)


def _assert_mended(
    request: pytest.FixtureRequest, network: Net, least: float, *, dynamic: bool, below: float = 20
) -> None:
    """The file is right, and without the patch it is wrong or cannot be run: otherwise nothing needs the patch."""
    assert worst_sqnr(lower_quantized(*network, dynamic=dynamic), *network) > least
    request.getfixturevalue("plain")
    with suppress(RuntimeError):
        assert worst_sqnr(lower_quantized(*network, dynamic=dynamic), *network) < below


# By name: what a network computes of its layers and its input, where ExecuTorch by itself makes a file that does not
# run or computes something else, or makes none.
DYNAMIC = {
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
DYNAMIC_THAT_WORKED = {
    "input": lambda net, x: net.conv(x),
    "chain": lambda net, x: net.second(net.conv(x).relu()),
    "linear": lambda net, x: net.linear(x.relu()),
}
QUICK_DYNAMIC = ("pad", "residual", "linear after convolution", "chain")


class TestDynamicLayouts:
    """Convolutions and linear layers whose inputs are quantized dynamically, and shared with others."""

    def _network(self, name: str) -> Net:
        torch.manual_seed(0)
        conv, second = (torch.nn.Conv2d(8, 8, 3, padding=1) for _ in range(2))
        layers = {"linear": torch.nn.Linear(16, 16), "pad": torch.nn.ZeroPad2d((0, 1, 0, 1))}
        function = {**DYNAMIC, **DYNAMIC_THAT_WORKED}[name]
        return FunctionOfLayers(function, conv=conv, second=second, **layers).eval(), torch.randn(2, 8, 16, 16)

    @pytest.fixture
    def plain(self, passes, monkeypatch):
        """ExecuTorch's own pass."""
        monkeypatch.setattr(passes, "mend_dynamic_layouts", lambda: None)
        monkeypatch.setattr(compat.ChannelsLastTaggedReshapePass, "input_to_nhwc", passes._to_nhwc)
        monkeypatch.setattr(compat.ChannelsLastTaggedReshapePass, "input_to_nchw", passes._to_nchw)

    @pytest.mark.parametrize("name", _cases(DYNAMIC, *QUICK_DYNAMIC))
    def test_mended(self, request, name):
        """Files compute what eager does, as exactly as int8 can; ExecuTorch's own do not, or cannot be run."""
        _assert_mended(request, self._network(name), 35, dynamic=True)

    @pytest.mark.parametrize("name", _cases(DYNAMIC_THAT_WORKED, *QUICK_DYNAMIC))
    def test_what_worked_stays_the_same(self, request, name):
        """Byte for byte, and as exact as int8 can be."""
        _assert_same(request, self._network(name), 35, dynamic=True)


def _to_channels_last(x: Any) -> Any:
    return x.to(memory_format=torch.channels_last)


def _clone(x: Any) -> Any:
    return x.clone(memory_format=torch.channels_last)


# As above. Eight channels, rows and columns: no shape gives a mistake away.
STATIC = {
    "pooled and returned": lambda net, x: (net.pool(y := net.conv(x)), y),
    "returned and pooled": lambda net, x: ((y := net.conv(x)), net.pool(y)),
    "scalars": lambda net, x: net.conv(x).relu().mean() * 2.0,
    "copied": lambda net, x: net.second(_to_channels_last(net.conv(x)).relu()),
    "cloned": lambda net, x: net.second(torch.cat((_clone(y := net.conv(x)), y), 1)[:, 4:12]),
    "softmax": lambda net, x: net.conv(x).softmax(-1),
    "half precision": lambda net, x: net.conv(x),
}
STATIC_THAT_WORKED = {
    "viewed and resized": lambda net, x: ((y := net.conv(x)).reshape(1, -1), net.resize(y)),
    "chain": lambda net, x: net.second(net.conv(x).relu()),
    "pooled twice": lambda net, x: (net.pool(y := net.conv(x)), net.second(y)),
    "sum": lambda net, x: net.second(y := net.conv(x)) + y,
    "viewed": lambda net, x: net.conv(x).reshape(1, -1),
}
QUICK_STATIC = ("pooled and returned", "half precision", "chain")


@pytest.mark.nightly
class TestStaticLayouts:
    """Values that are quantized statically, and used in two layouts."""

    def _network(self, name: str) -> Net:
        torch.manual_seed(0)
        conv, second = (torch.nn.Conv2d(8, 8, 3, padding=1) for _ in range(2))
        layers = {"pool": torch.nn.AvgPool2d(2), "resize": torch.nn.UpsamplingBilinear2d(scale_factor=2)}
        function = {**STATIC, **STATIC_THAT_WORKED}[name]
        network = FunctionOfLayers(function, conv=conv, second=second, **layers).eval()
        dtype = torch.half if name == "half precision" else torch.float32
        return network.to(dtype), torch.randn(1, 8, 8, 8, dtype=dtype)

    @pytest.fixture
    def plain(self, passes, monkeypatch):
        """ExecuTorch's own pass."""
        from executorch.backends.xnnpack.partition.config import ToDimOrderCopyConfig
        from pteforge.tasks.upstream import xnnpack

        monkeypatch.setattr(passes, "mend_static_layouts", lambda: None)
        monkeypatch.delitem(xnnpack._EXTENDED, ToDimOrderCopyConfig)
        monkeypatch.setattr(compat.ChannelsLastTaggedReshapePass, "memory_sensitive_ops_nchw", passes._usual_layout)
        monkeypatch.setattr(compat.ChannelsLastTaggedReshapePass, "insert_copy_q_dq", passes._insert)
        monkeypatch.setattr(compat.ChannelsLastTaggedReshapePass, "is_nhwc_node", staticmethod(passes._is_nhwc))
        monkeypatch.setattr(compat.ChannelsLastTaggedReshapePass, "is_nchw_node", staticmethod(passes._is_nchw))

    @pytest.mark.parametrize("name", [name for name in STATIC if name not in ("scalars", "half precision")])
    def test_mended(self, request, name):
        """Files compute what eager does, as exactly as int8 can, and ExecuTorch's own do not."""
        _assert_mended(request, self._network(name), 30, dynamic=False)

    def test_scalars(self, request):
        """ExecuTorch's own pass fails with a value of no dimensions."""
        network = self._network("scalars")
        assert worst_sqnr(lower_quantized(*network), *network) > 30
        request.getfixturevalue("plain")
        with pytest.raises(Exception, match="ChannelsLastTaggedReshapePass") as raised:
            lower_quantized(*network)
        assert isinstance(raised.value.__cause__, IndexError)

    def test_half_precision(self, request, monkeypatch):
        """By ExecuTorch's own pass, the delegate writes float32 into memory for half of it; the file cannot be run."""
        from executorch.backends.xnnpack import xnnpack_preprocess

        graphs = []
        serialize = xnnpack_preprocess.serialize_xnnpack_binary
        monkeypatch.setattr(
            xnnpack_preprocess,
            "serialize_xnnpack_binary",
            lambda graph, *args: graphs.append(graph) or serialize(graph, *args),
        )
        network = self._network("half precision")
        assert worst_sqnr(lower_quantized(*network), *network) > 30
        request.getfixturevalue("plain")
        lower_quantized(*network)
        written = [graph.xvalues[-1].xvalue_union.datatype.name for graph in graphs]
        assert written == ["xnn_datatype_fp16", "xnn_datatype_fp32"]

    @pytest.mark.parametrize("name", _cases(STATIC_THAT_WORKED, *QUICK_STATIC))
    def test_what_worked_stays_the_same(self, request, name):
        """Byte for byte, and as exact as int8 can be."""
        _assert_same(request, self._network(name), 30, dynamic=False)


# By name: the second layer's kind and options; the first is a convolution with a kernel of one element.
SHARED: dict[str, tuple[str, dict[str, Any]]] = {
    "convolution": ("Conv2d", {"kernel_size": 3, "padding": 1}),
    "stride": ("Conv2d", {"kernel_size": 1, "stride": 2}),
    "groups": ("Conv2d", {"kernel_size": 3, "groups": 2}),
    "transposed": ("ConvTranspose2d", {"kernel_size": 3}),
}
ALIKE: dict[str, tuple[str, dict[str, Any]]] = {"same kind": ("Conv2d", {"kernel_size": 1})}


class TestSharing:
    """Layers of two kinds that share an input which is quantized dynamically."""

    def _network(self, name: str) -> Net:
        kind, options = {**SHARED, **ALIKE}[name]
        torch.manual_seed(0)
        layers = {"one": torch.nn.Conv2d(8, 8, 1), "other": getattr(torch.nn, kind)(8, 8, **options)}
        return FunctionOfLayers(lambda net, x: (net.one(x), net.other(x)), **layers).eval(), torch.randn(2, 8, 16, 16)

    @pytest.fixture
    def plain(self, passes, monkeypatch):
        """ExecuTorch's own pass."""
        monkeypatch.setattr(passes, "separate_products", lambda: None)
        monkeypatch.setattr(compat.ChannelsLastTaggedReshapePass, "call", passes._call)

    @pytest.mark.parametrize("name", _cases(SHARED, "convolution"))
    def test_mended(self, request, name):
        """Files compute what eager does, as exactly as int8 can; ExecuTorch's own do not on a processor with VNNI."""
        below = 20 if "vnni" in Path("/proc/cpuinfo").read_text() else math.inf
        _assert_mended(request, self._network(name), 35, dynamic=True, below=below)

    @pytest.mark.nightly
    def test_what_is_alike_stays_the_same(self, request):
        """Byte for byte, and as exact as int8 can be."""
        _assert_same(request, self._network("same kind"), 35, dynamic=True)


class TestGelu:
    """GELU with its approximation."""

    def _network(self, shape: tuple[int, ...]) -> Net:
        torch.manual_seed(0)
        return torch.nn.GELU(approximate="tanh").eval(), torch.randn(shape) * 3

    @pytest.mark.parametrize("shape", [(3,), (2, 16), (2, 3, 16), (1, 4, 6, 6), (1, 2, 3, 4, 5)])
    def test_files_compute_what_eager_does(self, lower_for, shape):
        """As exactly as float32 can, in a delegate, for inputs of any rank."""
        network, x = self._network(shape)
        content = lower_for("xnnpack", network, x)
        (method,) = read_pte(content).methods
        assert not method.operators
        assert worst_sqnr(content, network, x) > 120

    def test_scalars(self, lower_for):
        """Those that XNNPACK does not multiply with constants are left to the portable kernels."""
        network, x = self._network(())
        assert worst_sqnr(lower_for("xnnpack", network, x), network, x) > 120

    def test_executorch_fails_by_itself(self, lower_for, passes, monkeypatch):
        """Once this fails, so does the reason for the patch."""
        monkeypatch.setattr(compat.XNNPACKPassManager, "__init__", passes._init)
        monkeypatch.setattr(passes, "expand_tanh_gelu", lambda: None)
        network, x = self._network((2, 16))
        assert worst_sqnr(lower_for("xnnpack", network, x), network, x) < 90

    def test_between_quantized_layers(self):
        """Two of them share a delegate with layers that are quantized dynamically, and with an exact one."""
        torch.manual_seed(0)
        linear = [torch.nn.Linear(16, 16) for _ in range(3)]
        gelu = [torch.nn.GELU(approximate="tanh") for _ in range(2)]
        network = torch.nn.Sequential(linear[0], gelu[0], linear[1], gelu[1], linear[2], torch.nn.GELU()).eval()
        x = torch.randn(4, 16)
        content = lower_quantized(network, x, dynamic=True)
        assert len(read_pte(content).methods[0].delegates) == 1
        assert worst_sqnr(content, network, x) > 35


class TestPatterns:
    """Patterns are traced only for graphs that can contain them, and that changes no byte."""

    @pytest.fixture
    def unguarded(self, passes, monkeypatch):
        passes.prune_xnnpack_patterns()
        for pass_ in (compat.ConvertToUpsampleBilinear2d, compat.ConvertToSDPAPass):
            monkeypatch.setattr(pass_, "call", pass_.call.__wrapped__)

    def _network(self, name: str) -> Net:
        def attend(query, mask):
            return nn.functional.scaled_dot_product_attention(query, query, query, attn_mask=mask)

        torch.manual_seed(0)
        return {
            "conv": lambda: (nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), torch.randn(1, 3, 8, 8)),
            "bilinear": lambda: (nn.UpsamplingBilinear2d(scale_factor=2), torch.randn(1, 3, 4, 4)),
            "attention": lambda: (Function(attend), torch.randn(1, 2, 4, 8), torch.zeros(4, 4)),
        }[name]()

    def test_every_pattern_needs_the_operator(self, passes):
        """What the guard looks for is in all of upstream's patterns, so that a graph without it matches none."""
        for graphs, needed in (
            (compat.bilinear_2d.get_graphs(), passes.NEEDED_BY_BILINEAR),
            (compat.sdpa.get_graphs(), passes.NEEDED_BY_SDPA),
        ):
            assert graphs
            assert all(any(node.target is needed for node in graph.graph.nodes) for graph in graphs)

    @pytest.mark.parametrize("name", ["conv", "bilinear", "attention"])
    def test_same_bytes(self, name, request, passes, lower_for):
        """With the guard and without it the file is the same."""
        guarded = lower_for("xnnpack", *self._network(name))
        request.getfixturevalue("unguarded")
        with pytest.MonkeyPatch.context() as patch:  # the target would guard again
            patch.setattr(passes, "prune_xnnpack_patterns", lambda: None)
            assert lower_for("xnnpack", *self._network(name)) == guarded

    def test_nothing_is_traced_in_vain(self, monkeypatch, lower_for):
        """A model without the operators is lowered without the patterns; one that has them uses them."""

        def traced(*_args: object) -> None:
            raise AssertionError("patterns were traced")

        monkeypatch.setattr(compat.bilinear_2d, "get_graphs_dict", traced)
        monkeypatch.setattr(compat.sdpa, "get_graphs", traced)
        assert lower_for("xnnpack", *self._network("conv"))
        with pytest.raises(Exception, match="ConvertToUpsampleBilinear2d"):
            lower_for("xnnpack", *self._network("bilinear"))
