"""What XNNPACK's partitioner leaves, partitions that depend on each other, and padding between int8 layers."""

import random
from collections import Counter, defaultdict
from itertools import combinations
from typing import Any

import pytest
import torch
from pteforge.formats.pte.reader import read_pte
from pteforge.tests.lowering import lower_quantized, outputs_of, recipe, worst_sqnr
from pteforge.tests.zoo.networks import Function, FunctionOfLayers


def together(x):
    """A value, a copy of it, and a copy of that."""
    y = x * x
    return y, y.clone().clone()


def twice(x):
    """Two copies of a value that itself stays inside."""
    y = x * x
    return y.clone(), y.clone(), y - x


def alone(x):
    """One copy, which is used, too."""
    y = (x * x).clone()
    return y, y - x


@pytest.mark.parametrize(("function", "copies"), [(together, 2), (twice, 2), (alone, 0)])
def test_copies(lower_for, function, copies):
    """The file gives what eager gives. Copies are outside of the delegate only where one value would leave it twice."""
    x = torch.randn(2, 4)
    content = lower_for("xnnpack", Function(function), x)
    (method,) = read_pte(content).methods
    assert [delegate.id for delegate in method.delegates] == ["XnnpackBackend"]
    calls = dict(zip(method.operators, method.operator_calls, strict=True))
    assert calls == ({"dim_order_ops::_clone_dim_order.out": copies} if copies else {})
    outputs = outputs_of(content, x)
    for made, expected in zip(outputs, function(x), strict=True):
        torch.testing.assert_close(made, expected)


@pytest.mark.parametrize(("dim", "keep", "delegated"), [(2, True, True), (2, False, False), (1, True, False)])
def test_largest_values(lower_for, dim, keep, delegated):
    """The file gives what eager gives, whether XNNPACK computes it or not."""
    module = Function(lambda x: x.max(dim=dim, keepdim=keep)[0])
    x = torch.randn(1, 3, 4, 5)
    content = lower_for("xnnpack", module, x)
    assert bool(read_pte(content).methods[0].delegates) == delegated
    (made,) = outputs_of(content, x)
    torch.testing.assert_close(made, module(x))


BY_DIMENSIONS = {
    "permute": lambda x: x.permute(*reversed(range(x.dim()))),
    "add": lambda x: x + x,
    "cat": lambda x: torch.cat([x, x], dim=-1),
    "slice": lambda x: x[..., :1],
    "softmax": lambda x: x.softmax(-1),
    "view": lambda x: (x * 2).reshape(2, 1, 3, -1) * 2,
}


@pytest.mark.parametrize("dimensions", [5, 6, 7, 8])
@pytest.mark.parametrize("function", BY_DIMENSIONS.values(), ids=BY_DIMENSIONS)
def test_tensors_of_many_dimensions(lower_for, function, dimensions):
    """XNNPACK has tensors of six dimensions: operators on more stay outside, so that the file can be loaded."""
    x = torch.randn(*(2, 1, 3, 2, 1, 2, 1, 2)[:dimensions])
    module = Function(function)
    content = lower_for("xnnpack", module, x)
    (made,) = outputs_of(content, x)
    torch.testing.assert_close(made, module(x))


@pytest.mark.parametrize(("shape", "delegated"), [((2, 4), False), ((2, 4, 9), False), ((2, 4, 5, 5), True)])
def test_prelu(lower_for, shape, delegated):
    """The file gives what eager gives, for one slope and for one of each channel, delegated or not."""
    x = torch.randn(*shape)
    for slopes in (1, 4):
        module = torch.nn.PReLU(slopes)
        content = lower_for("xnnpack", module, x)
        assert bool(read_pte(content).methods[0].delegates) >= delegated
        (made,) = outputs_of(content, x)
        torch.testing.assert_close(made, module(x))


@pytest.mark.parametrize(
    ("options", "delegated"),
    [
        ({"scale_factor": 0.3}, False),
        ({"scale_factor": (2.0, 0.7)}, False),
        ({"scale_factor": 1.5}, True),
        ({"scale_factor": 0.3, "recompute_scale_factor": True}, True),
        ({"scale_factor": 0.3, "align_corners": True}, True),
        ({"size": (9, 7)}, True),
    ],
)
def test_bilinear_resizing(lower_for, options, delegated):
    """The file gives what eager gives; XNNPACK computes it where the scale is that of the sizes."""
    module = Function(lambda x: torch.nn.functional.interpolate(x, mode="bilinear", **options))
    x = torch.rand(1, 3, 64, 48)
    content = lower_for("xnnpack", module, x)
    operators = read_pte(content).methods[0].operators
    assert (not operators) == delegated
    (made,) = outputs_of(content, x)
    torch.testing.assert_close(made, module(x), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("padding", [0, 1])
def test_padding_of_values_that_are_needed_in_floating_point(padding):
    """The file can be loaded, and `unfold` between int8 layers, which pads and then takes elements, is as in eager."""

    def compute(net, x):
        patches = torch.nn.functional.unfold(net.first(x), 2, padding=padding, stride=2)
        return net.second(patches.reshape(2, 4, 4, -1))

    torch.manual_seed(0)
    network = FunctionOfLayers(compute, first=torch.nn.Conv2d(4, 4, 1), second=torch.nn.Conv2d(4, 4, 1)).eval()
    x = torch.randn(2, 4, 8, 8)
    assert worst_sqnr(lower_quantized(network, x), network, x) > 30


def test_layers_whose_weight_is_written(lower_for):
    """A layer whose weight is state that the method overwrites is computed outside; XNNPACK crashes on it."""
    from executorch.runtime import Runtime

    def write(net, x):
        made = torch.nn.functional.linear(x, net.state)
        net.state.copy_(x)
        return made + net.layer(x)

    network = FunctionOfLayers(write, state=torch.zeros(4, 16), layer=torch.nn.Linear(16, 4)).eval()
    content = lower_for("xnnpack", network, torch.ones(4, 16))
    program = Runtime.get().load_program(content)
    method = program.load_method("forward")
    method.execute([torch.ones(4, 16)])
    x = torch.randn(4, 16)
    (made,) = method.execute([x])
    with torch.no_grad():
        torch.testing.assert_close(made, x.sum(1, keepdim=True) + network.layer(x), rtol=1e-4, atol=1e-4)


DYNAMIC = {"quantizer": "xnnpack", "options": {"dynamic": True}}


def test_partitions_that_depend_on_each_other(lower, lower_fresh, monkeypatch):
    """The file is verified, and XNNPACK computes all it can. The partitions that upstream proposes fail."""
    from pteforge.tasks.upstream import xnnpack

    asked = recipe("xnnpack", quantize=DYNAMIC, verify={"min_sqnr_db": 20})
    (method,) = read_pte(lower("builders:rotary", asked).file).methods
    assert [delegate.id for delegate in method.delegates] == ["XnnpackBackend"] * 3
    assert set(method.operators) == {"aten::cumsum.out"}
    monkeypatch.setattr(xnnpack, "have_cycle", lambda *_: False)
    with pytest.raises(AssertionError, match="Invalid partition, found dependency cycles"):
        lower_fresh("builders:rotary", asked)


def _random(seed: int) -> tuple[Any, list[list[Any]]]:
    """A graph module, and groups of half of its nodes: those that take the same value, as quantized layers are."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    graph = torch.fx.Graph()
    nodes = [graph.placeholder(f"x_{number}") for number in range(3)]
    groups = defaultdict(list)
    for _ in range(60):
        used = tuple(chance.choices(nodes, k=chance.choice([1, 1, 1, 1, 2])))
        nodes.append(graph.call_function(torch.relu if len(used) == 1 else torch.add, used))
        if chance.random() < 0.5:
            groups[used if len(used) == 1 else nodes[-1]].append(nodes[-1])
    graph.output(tuple(nodes))
    return torch.fx.GraphModule(torch.nn.Module(), graph), list(groups.values())


def _fuses(module: Any, partitions: list[Any]) -> bool:
    """Whether torch makes a submodule of each partition."""
    from torch.fx.passes.utils.fuser_utils import fuse_by_partitions

    try:
        fuse_by_partitions(module, [partition.nodes for partition in partitions])
    except AssertionError as error:
        if "dependency cycles" not in str(error):
            raise
        return False
    return True


def test_cycles_are_those_that_torch_finds():
    """`have_cycle` says of partitions that upstream proposes whether torch refuses to fuse them."""
    from executorch.exir.backend.canonical_partitioners.pattern_op_partitioner import (
        generate_grouped_partitions_from_list_of_nodes,
    )
    from pteforge.tasks.upstream.xnnpack import have_cycle

    found = []
    for module, groups in map(_random, range(20)):
        partitions = generate_grouped_partitions_from_list_of_nodes(module, groups)
        found.append(have_cycle(module.graph, partitions))
        assert _fuses(module, partitions) != found[-1]
    assert set(found) == {False, True}


def test_merged_without_cycles():
    """All nodes are in partitions that torch fuses, and no two of these could be one."""
    from pteforge.tasks.upstream.xnnpack import have_cycle, merged_without_cycles
    from torch.fx.passes.infra.partitioner import Partition

    for module, groups in map(_random, range(20)):
        partitions = merged_without_cycles(module, groups)
        nodes = [node for partition in partitions for node in partition.nodes]
        assert Counter(nodes) == Counter(node for group in groups for node in group)
        for one, other in combinations(partitions, 2):
            merged = Partition(one.id, [*one.nodes, *other.nodes])
            assert have_cycle(module.graph, [merged, *(p for p in partitions if p not in (one, other))])
        assert _fuses(module, partitions)


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


def _padded(function: Any) -> Any:
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
    from pteforge.tasks.upstream import compat, xnnpack

    monkeypatch.delitem(xnnpack._EXTENDED, compat.ConstantPadConfig)
    monkeypatch.setattr(xnnpack, "ExtendedXnnpackQuantizer", xnnpack.XNNPACKQuantizer)


@pytest.mark.slow
@pytest.mark.parametrize("function", {**PADDED, **OTHERS}.values(), ids={**PADDED, **OTHERS})
def test_padded_layers_compute_what_eager_does(function):
    """As exactly as int8 can."""
    assert worst_sqnr(lower_quantized(*_padded(function)), *_padded(function)) > 30


@pytest.mark.nightly
@pytest.mark.usefixtures("plain")
def test_executorch_fails_to_pad_by_itself():
    """Once this fails, so does the reason for the extension."""
    network = _padded(PADDED["pool"])
    content = lower_quantized(*network)
    with pytest.raises(RuntimeError, match="Failed to load method forward"):
        worst_sqnr(content, *network)


@pytest.mark.nightly
@pytest.mark.parametrize("function", OTHERS.values(), ids=OTHERS)
def test_other_padding_stays_the_same(request, function):
    """Byte for byte."""
    made = lower_quantized(*_padded(function))
    request.getfixturevalue("plain")
    assert made == lower_quantized(*_padded(function))


def _normalized(net: Any, x: Any, size: Any) -> Any:
    """With rows of zeros."""
    y = x * (x[..., :1] > 0)
    return net.linear(y / size(y, (y * y).mean(-1, keepdim=True)))


def _mask(x):
    """As of attention: large where a row is not to be looked at."""
    return torch.where(x[..., :1, :] > 0, 0.0, -1e10)


# A network, the scale of its input, the least SQNR of its file in dB, and whether ExecuTorch's own reaches less. The
# first ones are tried at each push.
CALIBRATED = {
    "relu6": (lambda net, x: net.second(net.relu6(net.conv(x))), 64.0, 30, True),
    "called twice": (lambda net, x: (net.linear(x), net.linear(x * 4)), 1.0, 30, True),
    "hardtanh": (lambda net, x: net.second(net.hardtanh(net.conv(x))), 8.0, 30, True),
    "small values": (lambda net, x: net.second(net.conv(x) * 2**12), 2.0**-12, 30, True),
    "called on its own result": (lambda net, x: net.linear(net.linear(x)), 1.0, 30, True),
    "tiny values": (lambda net, x: net.conv(net.conv(x)), 2.0**-30, 30, True),
    "huge values": (lambda net, x: net.conv(net.conv(x)), 2.0**45, 30, False),
    "small weights": (lambda net, x: net.small(net.small(x)) * 2.0**20, 0.5, 30, True),
    "computed weights": (
        lambda net, x: torch.nn.functional.linear(x, net.linear.weight.t(), net.linear.bias),
        *(1.0, 30, False),
    ),
    "large bias": (lambda net, x: net.biased(x), 2.0**-16, 30, False),
    "norm": (lambda net, x: _normalized(net, x, lambda y, _: y.norm(dim=-1, keepdim=True) + 1e-6), 1.0, 30, True),
    "root": (lambda net, x: _normalized(net, x, lambda _, variance: (variance + 1e-6).sqrt()), 1.0, 30, True),
    "power": (lambda net, x: _normalized(net, x, lambda _, variance: (variance + 1e-6) ** 0.5), 1.0, 30, True),
    "mask": (lambda net, x: net.linear((net.linear(x) + (x.sin() + _mask(x))).softmax(-1)), 1.0, 30, True),
    "logarithm": (lambda net, x: net.linear((x.relu() + 1e-3).log()), 1.0, 20, True),
}


def _calibrated(function: Any, scale: float) -> Any:
    torch.manual_seed(0)
    layers = {name: torch.nn.Conv2d(8, 8, 1, bias=scale >= 1 or name != "conv") for name in ("conv", "second")}
    layers["biased"] = torch.nn.Conv2d(8, 8, 1)
    layers["small"] = torch.nn.Conv2d(8, 8, 1, bias=False)
    layers |= {"linear": torch.nn.Linear(16, 16), "relu6": torch.nn.ReLU6(), "hardtanh": torch.nn.Hardtanh()}
    with torch.no_grad():
        layers["biased"].weight[3], layers["biased"].bias[3] = 0, 8
        layers["small"].weight *= 2.0**-10
    return FunctionOfLayers(function, **layers).eval(), torch.randn(2, 8, 16, 16) * scale


@pytest.mark.parametrize(
    ("function", "scale", "least", "better"),
    [
        pytest.param(*case, id=name, marks=pytest.mark.slow if number < 2 else pytest.mark.nightly)
        for number, (name, case) in enumerate(CALIBRATED.items())
    ],
)
def test_calibrated_layers_compute_what_eager_does(request, function, scale, least, better):
    """As exactly as int8 can, and where that is what the extension is for, ExecuTorch's own quantizer does not."""
    network = _calibrated(function, scale)
    reached = worst_sqnr(lower_quantized(*network), *network)
    assert reached > least
    if better:
        request.getfixturevalue("plain")
        assert worst_sqnr(lower_quantized(*network), *network) < reached - 2


@pytest.mark.slow
def test_calls_of_a_layer_have_biases_of_their_own():
    """As many as there are calls; of convolutions, too, whose file could not be loaded otherwise."""
    network, x = _calibrated(lambda net, x: net.conv(net.conv(x)) + net.conv(x * 4), 1.0)
    assert worst_sqnr(lower_quantized(network, x), network, x) > 30


class Detector(torch.nn.Module):
    """Boxes from 0 to 640 and scores from 0 to 1 in each output: joined, joined twice, and scaled after that."""

    def __init__(self):
        super().__init__()
        self.head = torch.nn.Conv2d(3, 6, 1)
        self.register_buffer("scale", torch.tensor([640.0, 640.0, 640.0, 640.0, 1.0, 1.0])[None, :, None])

    def forward(self, x):
        both = self.head(x).flatten(2).sigmoid()
        shares, scores = both.split([4, 2], 1)
        joined, alike = torch.cat([shares * 640, scores], 1), both @ both.mT * self.scale
        scaled = torch.cat([shares, scores], 1) * self.scale
        return joined, torch.cat([joined, joined], 2).transpose(1, 2), scaled, alike


@pytest.mark.slow
def test_parts_of_outputs_keep_their_scales():
    """Joined values and products that only outputs have are in floating point, and so is what scales them."""
    torch.manual_seed(0)
    network, x = Detector().eval(), torch.randn(1, 3, 8, 8)
    made, wanted = outputs_of(lower_quantized(network, x), x), network(x)
    for output, eager in zip(made, wanted, strict=True):
        dimension = list(eager.shape).index(6)
        ours, scores = (value.narrow(dimension, 4, 2) for value in (output, eager))
        assert (scores - ours).square().mean() < scores.square().mean() / 1000


class Encoder(torch.nn.Module):
    """A block of an encoder of images, whose class token is small next to the patches."""

    def __init__(self, norm: type[torch.nn.Module]):
        super().__init__()
        self.patches, self.inner = torch.nn.Linear(48, 32), torch.nn.Linear(32, 32)
        self.norm, self.last = norm(32), norm(32)
        self.register_buffer("token", torch.randn(1, 1, 32) * 0.01)
        self.register_buffer("position", torch.randn(1, 17, 32) * 0.01)

    def forward(self, x):
        values = torch.cat([self.token.expand(x.shape[0], -1, -1), self.patches(x)], 1) + self.position
        values = values + self.inner(self.norm(values)) * 0.05
        return self.last(values)[:, 0]


@pytest.mark.slow
@pytest.mark.parametrize("norm", [torch.nn.LayerNorm, torch.nn.RMSNorm])
def test_small_tokens_keep_their_values_for_norms(monkeypatch, norm):
    """In sums and concatenations that a norm reads, a row is not rounded by the scale of others."""
    from pteforge.tasks.upstream import xnnpack

    torch.manual_seed(0)
    network, x = Encoder(norm).eval(), torch.randn(1, 16, 48)
    assert worst_sqnr(lower_quantized(network, x), network, x) > 30
    monkeypatch.setattr(xnnpack, "_normalized", lambda _: ())
    monkeypatch.setattr(xnnpack, "_between_floats", lambda *_: ())
    assert worst_sqnr(lower_quantized(network, x), network, x) < 12


class Aggregating(torch.nn.Module):
    """Layers that read each other's results, which grow, and a layer that reads all of them."""

    def __init__(self, growth: float, parts: int = 4):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Conv2d(4, 4, 3, padding=1) for _ in range(parts))
        self.last, self.growth = torch.nn.Conv2d(4 * parts, 2, 1), growth

    def forward(self, x):
        values = []
        for layer in self.layers:
            x = (layer(x) * self.growth).relu()
            values.append(x)
        return self.last(torch.cat(values, 1)), x


class AggregatingToOne(Aggregating):
    """Its last part is read by the concatenation only, with a scale of its own."""

    def forward(self, x):
        return super().forward(x)[0]


@pytest.mark.slow
def test_small_parts_keep_their_values(monkeypatch):
    """A part of a concatenation that other layers read has a scale of its own where others are far larger."""
    from pteforge.tasks.upstream import xnnpack

    torch.manual_seed(0)
    growing, even, x = Aggregating(12.0).eval(), Aggregating(3.0).eval(), torch.randn(1, 4, 16, 16)
    as_even = lower_quantized(even, x)
    for parts in (4, 7, 11):  # XNNPACK joins five at once
        alone = AggregatingToOne(12.0, parts).eval()
        assert worst_sqnr(lower_quantized(alone, x), alone, x) > 20
    reached = worst_sqnr(lower_quantized(growing, x), growing, x)
    monkeypatch.setattr(xnnpack, "_uneven", lambda _: ())
    assert reached > worst_sqnr(lower_quantized(growing, x), growing, x) + 6
    assert reached > 25
    assert as_even == lower_quantized(even, x)


def test_sums_are_quantized_without_norms(monkeypatch):
    """Residual sums of convolutional networks, and a sum that is all that there is to quantize."""
    from pteforge.tasks.upstream import xnnpack

    torch.manual_seed(0)
    conv, norm = torch.nn.Conv2d(3, 3, 3, padding=1), torch.nn.LayerNorm(4)
    residual = FunctionOfLayers(lambda net, x: x + net.layer(x), layer=conv)
    alone = FunctionOfLayers(lambda net, x: net.layer(x + 1.5), layer=norm)
    networks, x = (residual.eval(), alone.eval()), torch.randn(1, 3, 4, 4)
    files = [lower_quantized(network, x) for network in networks]
    monkeypatch.setattr(xnnpack, "_normalized", lambda _: ())
    assert files == [lower_quantized(network, x) for network in networks]


def _weighed(net, x):
    """Channels that are weighed by a sigmoid of their means, and queries that are scaled for attention."""
    y = net.first(x)
    rows = net.second(y * net.gate(y.mean((2, 3), keepdim=True)).sigmoid()).flatten(2)
    return ((rows * 0.37) @ (rows.mT + 0.1)).softmax(-1)


@pytest.mark.slow
def test_sums_and_products_between_floats(monkeypatch):
    """They are rounded once less, and those between layers are as before."""
    from pteforge.tasks.upstream import xnnpack

    torch.manual_seed(0)
    layers = {name: torch.nn.Conv2d(8, 8, 1) for name in ("first", "gate", "second")}
    weighed, x = FunctionOfLayers(_weighed, **layers).eval(), torch.randn(1, 8, 8, 8)
    residual = FunctionOfLayers(
        lambda net, x: net.gate((net.first(x) + net.second(net.first(x))).relu()), **layers
    ).eval()
    reached, between = worst_sqnr(lower_quantized(weighed, x), weighed, x), lower_quantized(residual, x)
    monkeypatch.setattr(xnnpack, "_between_floats", lambda *_: ())
    assert between == lower_quantized(residual, x)
    assert reached > worst_sqnr(lower_quantized(weighed, x), weighed, x)


@pytest.mark.parametrize(("exclude", "between"), [([], True), (["second"], False), (["gate"], False)])
def test_sums_next_to_layers_that_are_left_out(exclude, between):
    """They are in floating point like these."""
    from pteforge.tasks.quantize.pt2e import quantize
    from pteforge.tasks.targets import TargetParams

    torch.manual_seed(0)
    layers = {name: torch.nn.Conv2d(8, 8, 1) for name in ("first", "second", "gate")}
    network = FunctionOfLayers(lambda net, x: net.gate(net.first(x) + net.second(x)), **layers).eval()
    x = torch.randn(1, 8, 4, 4)
    program = torch.export.export(network, (x,))
    quantized, _ = quantize(program, (x,), [(x,)], (TargetParams(name="xnnpack", options={}),), exclude=exclude)
    (total,) = (node for node in quantized.graph.nodes if node.target is torch.ops.aten.add.Tensor)
    around = [*total.all_input_nodes, *total.users]
    assert all("quantize_per_tensor" in str(value.target) for value in around) == between


class Inner(torch.nn.Module):
    """What is kept in floating point in any case, and integers."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Conv2d(8, 8, 1)

    def forward(self, x):
        weighed = self.layer(x) * (torch.arange(4) + 1)
        return (weighed * x.mean((2, 3), keepdim=True).sigmoid()).flatten(2).softmax(-1).view_as(x)


@pytest.mark.parametrize("dynamic", [False, True])
def test_modules_that_are_left_out(dynamic):
    """Nothing inside of them is quantized, whatever else keeps a part of it in floating point."""
    from pteforge.tasks.quantize.pt2e import quantize
    from pteforge.tasks.targets import TargetParams

    torch.manual_seed(0)
    layers = {"inner": Inner(), "last": torch.nn.Conv2d(8, 8, 1)}
    network = FunctionOfLayers(lambda net, x: net.last(net.inner(x)), **layers).eval()
    x = torch.randn(1, 8, 4, 4)
    program = torch.export.export(network, (x,))
    quantizers = (TargetParams(name="xnnpack", options={"dynamic": dynamic}),)
    quantized, _ = quantize(program, (x,), [(x,)], quantizers, exclude=["inner"])
    inner, last = (node for node in quantized.graph.nodes if node.target is torch.ops.aten.conv2d.default)
    assert ["dequantize" in str(value.target) for value in (inner.args[0], inner.args[1])] == [False, False]
    assert ["dequantize" in str(value.target) for value in (last.args[0], last.args[1])] == [True, True]


def _rows(value):
    return value.reshape(-1, 16)


def _read_twice(net, rows):
    return net.linear(rows.view(2, -1, 16)), rows.cumsum(0)


# An operator that happens to be quantized, since a layer follows, and another one of the same value that is not.
SHARED = {
    "reshaped": (lambda net, value: (net.linear(_rows(value)), _rows(value)), True),
    "outside": (lambda net, value: _read_twice(net, net.linear(_rows(value)).to(torch.float32)), False),
    "largest": (lambda net, value: (net.linear(value.clamp(-0.3, 0.3)), value.amax((2, 3), keepdim=True)), False),
}


@pytest.mark.nightly
@pytest.mark.parametrize(("function", "cannot_be_loaded"), SHARED.values(), ids=SHARED)
def test_values_of_others_stay_in_floating_point(monkeypatch, function, cannot_be_loaded):
    """Without it, the file cannot be loaded, or it computes with integers in place of numbers."""
    import torch
    from pteforge.tasks.upstream import xnnpack

    network = _calibrated(lambda net, x: function(net, net.conv(x).to(torch.float32)), 1.0)
    assert worst_sqnr(lower_quantized(*network), *network) > 30
    monkeypatch.setattr(xnnpack, "leave_in_float", id)
    content = lower_quantized(*network)
    if cannot_be_loaded:
        with pytest.raises(RuntimeError, match="Failed to load method forward"):
            worst_sqnr(content, *network)
    else:
        assert worst_sqnr(content, *network) < 1


def _in_integers(value, scale, zero):
    """The value as a quantized model has it: rounded to a multiple of the scale."""
    bounds = -128, 127, torch.int8
    ops = torch.ops.quantized_decomposed
    return ops.dequantize_per_tensor(ops.quantize_per_tensor(value, scale, zero, *bounds), scale, zero, *bounds)


MOVING = {
    "permute": lambda x: x.permute(0, 2, 3, 1),
    "view": lambda x: x.view(1, 8, -1),
    "max_pool2d": lambda x: torch.nn.functional.max_pool2d(x, 2),
}


@pytest.mark.parametrize(("scale", "zero"), [(0.03, 3), (0.019, 3), (0.03, -5)])
@pytest.mark.parametrize("function", MOVING.values(), ids=MOVING)
def test_moved_values_may_change_their_scale(lower_for, function, scale, zero):
    """Such as those before an LSTM, whose layers have scales of their own. XNNPACK moves integers of one scale only."""
    module = Function(lambda x: _in_integers(function(_in_integers(x, 0.03, 3)), scale, zero))
    x = torch.randn(1, 8, 6, 6)
    content = lower_for("xnnpack", module, x)
    assert not read_pte(content).methods[0].operators
    torch.testing.assert_close(outputs_of(content, x)[0], module(x))


def test_operators_of_a_value_and_what_is_made_from_it(lower_for):
    """Partitions of quantized operators do not depend on themselves."""

    def function(x):
        x = _in_integers(x, 0.03, 0)
        return _in_integers(x - _in_integers(x + 0.2, 0.03, 0), 0.02, 0)

    x = torch.randn(1, 8)
    torch.testing.assert_close(
        outputs_of(lower_for("xnnpack", Function(function), x), x)[0], function(x), atol=0.021, rtol=0
    )


BY_COMPUTED_WEIGHTS = {
    "convolution": lambda net, x: net.conv(torch.conv2d(x, net.other.weight * x.mean())),
    "transposed": lambda net, x: net.conv(torch.conv_transpose2d(net.conv(x), net.other.weight * x.mean())),
    "activation": lambda net, x: net.conv(torch.conv2d(x, net.other.weight * x.mean()).relu()),
}


@pytest.mark.slow
@pytest.mark.parametrize("function", BY_COMPUTED_WEIGHTS.values(), ids=BY_COMPUTED_WEIGHTS)
def test_layers_of_computed_weights_are_given_numbers(function):
    """Upstream takes what is quantized around them for integers, although XNNPACK does not compute them."""
    torch.manual_seed(0)
    layers = {name: torch.nn.Conv2d(8, 8, 3, padding=1) for name in ("conv", "other")}
    network, x = FunctionOfLayers(function, **layers).eval(), torch.randn(1, 8, 9, 9)
    assert worst_sqnr(lower_quantized(network, x), network, x) > 25


WITH_INTEGERS = {
    "concatenated": lambda y, torch: y[:, torch.cat([torch.arange(4), y.flatten()[:2].long() * 0])],
    "with numbers": lambda y, torch: torch.cat([y, torch.arange(16).expand(2, 8, 16, 16)], 1),
}


@pytest.mark.slow
@pytest.mark.parametrize("function", WITH_INTEGERS.values(), ids=WITH_INTEGERS)
def test_integers_stay_integers(function):
    """ExecuTorch's own quantizer observes them, as of LongT5 and FLAVA, which fails."""
    import torch

    network, x = _calibrated(lambda net, x: function(net.conv(x), torch), 1.0)
    assert worst_sqnr(lower_quantized(network, x), network, x) > 30


@pytest.mark.slow
def test_convolutions_outside_of_the_delegate_leave_scales_inside():
    """Those of two dynamic sizes are refused, before upstream's check marks the scales around them as part of them."""
    import torch
    from pteforge.tests.zoo.networks import FunctionOfLayers

    torch.manual_seed(0)
    network = FunctionOfLayers(lambda net, x: net.conv(x), conv=torch.nn.Conv1d(8, 8, 1)).eval()
    sizes = (({0: torch.export.Dim.AUTO, 2: torch.export.Dim.AUTO},),)
    x = torch.randn(2, 8, 16)
    made = lower_quantized(network, x, dynamic_shapes=sizes, per_channel=False)
    assert worst_sqnr(made, network, x) > 30


@pytest.mark.parametrize(("outlier", "least", "largest"), [(40, 7, 10), (4, 7.5, 8.1)])
def test_ranges_by_entropy(outlier, least, largest):
    """Few values of a normal distribution are worth no wider range."""
    from pteforge.tasks.upstream.xnnpack import EntropyObserver

    torch.manual_seed(0)
    observer = EntropyObserver(dtype=torch.int8, quant_min=-128, quant_max=127, qscheme=torch.per_tensor_affine)
    for _ in range(8):
        values = torch.randn(20000).clamp(-4, 4)
        values[0] = outlier
        observer(values)
    scale, _ = observer.calculate_qparams()
    assert least < 255 * float(scale) < largest
