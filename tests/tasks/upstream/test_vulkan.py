"""Calls that GPU runtimes lack or compute wrongly are left to the CPU, and others are not."""

from __future__ import annotations

import copy
import ctypes
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from pteforge.api.probes import CASES, VULKAN
from pteforge.configs.model import MethodDefinition, ModelDefinition
from pteforge.tasks.targets import TargetParams
from pteforge.tasks.upstream.exir_emission import floor_remainders
from pteforge.tasks.upstream.patches import OFF, PATCHES
from pteforge.tests.zoo.networks import Function
from torch import nn
from torch.export import Dim
from torch.nn import functional

BATCH = {0: Dim("batch", min=1, max=4)}
LENGTH = {1: Dim("length", min=2, max=16)}
TABLE = torch.randn(16, 8)
IMAGE, IMAGES = torch.randn(1, 6, 5, 3), torch.randn(2, 6, 5, 3)
TOKENS = torch.randn(2, 6, 8)
INTEGERS = torch.randint(-9, 9, (4, 4), dtype=torch.int32)


def chunks(x):
    return torch.cat([-chunk for chunk in x.chunk(2, 2)], 2)


def lookup(x):
    return functional.embedding(torch.arange(x.shape[1]), TABLE)


def large_positions(x):
    return torch.arange(1 << 25, (1 << 25) + x.shape[1])


def causal(x):
    mask = torch.full((x.shape[1], x.shape[1]), float("-inf")).triu(1)
    return torch.softmax(x @ x.transpose(-1, -2) + mask, -1)


def attention(x, mask):
    return functional.scaled_dot_product_attention(x, x, x, mask)


def channels_last(x):
    return torch.relu(x).to(memory_format=torch.channels_last)


class Attention(nn.Module):
    """Its weights of queries, keys and values are slices of one."""

    def __init__(self):
        super().__init__()
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, queries, keys, values):
        return self.attend(queries, keys, values, need_weights=False)[0]


class Total(nn.Module):
    """Keeps a sum over its calls."""

    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x):
        self.total.add_(x)
        return self.total * 2


def pools(x):
    return functional.avg_pool2d(x, 2), functional.max_pool2d(x, (1, 2))


def on_both(*operators):
    return {"vulkan": {*operators}, "webgpu": {*operators}}


def on_vulkan(*operators):
    return {"vulkan": {*operators}}


LEFT: dict[str, tuple[nn.Module, tuple[Any, ...], dict[int, Any], dict[str, set[str]]]] = {
    "groups": (nn.Conv2d(6, 12, 3, groups=2), (IMAGE,), {}, on_vulkan("convolution")),
    "group of each channel": (nn.Conv2d(6, 12, 3, groups=6), (IMAGE,), {}, on_vulkan("convolution")),
    "transposed": (nn.ConvTranspose2d(6, 4, 2, groups=2), (IMAGE,), {}, on_vulkan("convolution")),
    "pointwise lines": (nn.Conv1d(6, 6, 1, groups=6), (TOKENS,), {}, on_vulkan("convolution")),
    "depthwise": (nn.Conv2d(6, 6, 2, padding=1, groups=6), (IMAGE,), {}, on_vulkan("convolution")),
    "depthwise strides": (nn.Conv2d(6, 6, 1, 2, groups=6), (IMAGE,), {}, on_vulkan("convolution")),
    "transposed dilation": (nn.ConvTranspose2d(6, 4, 2, dilation=2), (IMAGE,), {}, on_vulkan("convolution")),
    "pointwise steps": (nn.Conv1d(6, 4, 1, 2), (TOKENS,), {}, on_vulkan("convolution")),
    "factor": (nn.Upsample(scale_factor=1.5), (IMAGE,), {}, on_vulkan("upsample_nearest2d")),
    "size": (nn.Upsample((7, 8)), (IMAGE,), {}, on_vulkan("upsample_nearest2d")),
    "layout": (Function(channels_last), (IMAGES,), {}, on_both("_to_dim_order_copy")),
    "chunks": (
        Function(chunks),
        (TOKENS,),
        BATCH,
        {"vulkan": {"split_with_sizes_copy"}, "webgpu": {"split_with_sizes_copy", "neg", "cat"}},
    ),
    "pointwise groups": (nn.Conv2d(8, 16, 1, groups=2), (torch.randn(1, 8, 5, 3),), {}, on_vulkan("convolution")),
    "powers": (Function(torch.pow), (TOKENS.abs(), TOKENS), {}, on_both("pow")),
    "negative powers": (Function(lambda x: x**-2), (TOKENS,), {}, on_both("pow")),
    "masked logarithm": (
        Function(lambda x: x.log_softmax(-1)),
        (TOKENS.masked_fill(TOKENS > 1, float("-inf")),),
        {},
        on_both("_log_softmax"),
    ),
    "sums of integers": (Function(lambda x: x + x), (INTEGERS + (1 << 24),), {}, on_vulkan("add")),
    "rounding": (Function(lambda x: x // 3), (INTEGERS,), {}, on_both("div", "_to_dim_order_copy")),
    "truncation": (Function(lambda x: x.div(x[0], rounding_mode="trunc")), (TOKENS,), {}, on_both("div")),
    "quotients of numbers": (Function(lambda x: x.div(x[0], rounding_mode="floor")), (TOKENS,), {}, on_both("div")),
    "clamp of a number": (nn.ReLU(), (torch.tensor(torch.nan),), {}, on_both("relu")),
    "minimum of five dimensions": (Function(torch.minimum), (TOKENS[:, :, None, None],) * 2, {}, on_both("minimum")),
    "softmax of a number": (nn.Softmax(0), (torch.tensor(2.0),), {}, on_vulkan("_softmax")),
    "int64": (Function(lambda x: x + x), (torch.tensor([1 << 40]),), {}, on_both("add")),
    "bounds": (Function(lambda x: x.clamp(0.5, 2.5)), (INTEGERS,), {}, on_vulkan("clamp")),
    "number": (Function(lambda x: x[0] * x[1]), (torch.randn(3),), {}, on_vulkan("mul")),
    "equality": (Function(lambda x, y: x == y), (torch.zeros(2), torch.tensor([0, 1e-6])), {}, on_both("eq")),
    "bools": (Function(lambda x: x.bool()), (INTEGERS,), {}, on_both("_to_dim_order_copy")),
    "index": (Function(lambda x, index: x[index]), (TOKENS, torch.tensor([0, -1])), {}, on_both("index")),
    "constant index": (Function(lambda x: x[:, [0, -1]]), (TOKENS,), {}, on_both("index", "_clone_dim_order")),
    "softmax": (Function(lambda x: x.softmax(1)), (IMAGES,), {}, on_vulkan("_softmax")),
    "softmax of images": (Function(lambda x: x.softmax(0)), (IMAGE,), {}, on_vulkan("_softmax")),
    "mean": (Function(lambda x: x.mean(1, keepdim=True)), (IMAGES,), {}, on_vulkan("mean")),
    "positions": (
        Function(lambda x: x.argmax(-1)),
        (TOKENS.masked_fill(TOKENS > 1, torch.nan),),
        {},
        on_vulkan("argmax"),
    ),
    "long table": (nn.Embedding(16385, 4), (torch.tensor([[1, 16384]]),), {}, on_vulkan("embedding")),
    "what fills texels": (
        nn.Sequential(Function(torch.rsqrt), nn.Conv2d(5, 4, 3)),
        (torch.rand(1, 5, 4, 3) + 1,),
        {},
        on_vulkan("rsqrt"),
    ),
    "norm": (nn.LayerNorm((6, 8)), (TOKENS,), {}, on_both("native_layer_norm")),
    "norm of vectors": (nn.BatchNorm1d(6), (TOKENS,), {}, on_vulkan("_native_batch_norm_legit_no_training")),
    "norm of groups of lines": (nn.GroupNorm(2, 6), (TOKENS,), {}, on_vulkan("native_group_norm")),
    "norm without weights": (
        nn.LayerNorm(8, bias=False),
        (TOKENS,),
        {},
        on_vulkan("native_layer_norm"),
    ),
    "given weights": (
        Function(functional.conv2d),
        (IMAGE, torch.randn(4, 6, 2, 2)),
        {},
        on_vulkan("convolution"),
    ),
    "given table": (
        Function(functional.embedding),
        (torch.tensor([[0, 8]]), torch.randn(9, 8)),
        {},
        on_vulkan("embedding"),
    ),
    "given layer": (
        Function(functional.linear),
        (TOKENS, torch.randn(3, 8)),
        {},
        on_vulkan("permute_copy"),
    ),
    "sizes": (nn.ReLU(), (TOKENS,), BATCH, {"webgpu": {"relu"}}),
}
"""A module, its inputs, the dynamic sizes of the first, and what each target leaves."""

TAKEN: dict[str, tuple[nn.Module, tuple[Any, ...], dict[int, Any]]] = {
    "convolution": (nn.Conv2d(6, 12, 3), (IMAGE,), {}),
    "depthwise": (nn.Conv2d(6, 6, 3, 2, groups=6), (IMAGE,), {}),
    "depthwise line": (nn.Conv2d(6, 6, (1, 3), padding=1, groups=6), (IMAGE,), {}),
    "lines in groups": (nn.Conv1d(6, 12, 3, groups=2), (TOKENS,), {}),
    "strides of the kernel": (Function(pools), (IMAGE,), {}),
    "chunks": (Function(chunks), (TOKENS,), {}),
    "groups": (nn.Conv2d(8, 16, 3, groups=2), (torch.randn(1, 8, 5, 3),), {}),
    "integers": (Function(lambda x: x * x), (INTEGERS,), {}),
    "numbers of bytes": (Function(lambda x: x.bool().int() + 3), (INTEGERS.bool(),), {}),
    "squares": (Function(lambda x: (x**2).sum(-1)), (TOKENS * 300,), {}),
    "logarithm of a layer": (nn.Sequential(nn.Linear(8, 5), nn.LogSoftmax(-1)), (TOKENS,), {}),
    "positions of a dynamic size": (Function(lambda x: x + TABLE[0] + lookup(x)), (TOKENS,), LENGTH),
    "lookup": (nn.Embedding(9, 4), (torch.tensor([[1, 8]]),), {}),
    "softmax": (Function(lambda x: x.softmax(-1)), (IMAGES,), {}),
    "softmax of one": (Function(lambda x: x.softmax(1)), (IMAGE,), {}),
    "mean of one": (Function(lambda x: x.mean(1, keepdim=True)), (IMAGE,), {}),
    "positions": (Function(lambda x: functional.linear(x, TABLE).argmax(-1)), (TOKENS,), {}),
    "table as long as an image is wide": (nn.Embedding(16384, 4), (torch.tensor([[1, 16383]]),), {}),
    "roots of whole texels": (
        nn.Sequential(Function(torch.rsqrt), nn.Conv2d(8, 4, 3)),
        (torch.rand(1, 8, 4, 3) + 1,),
        {},
    ),
    "norm": (nn.LayerNorm(8), (TOKENS,), {}),
    "product": (Function(torch.matmul), (TOKENS, torch.randn(8, 3)), {}),
    "state": (Total(), (torch.randn(4),), {}),
}


def edge_program(module: nn.Module, inputs: tuple[Any, ...], sizes: dict[int, Any]) -> Any:
    from executorch.exir import to_edge

    return to_edge(exported(module, inputs, sizes)).exported_program()


def exported(module: nn.Module, inputs: tuple[Any, ...], sizes: dict[int, Any]) -> Any:
    shapes: Any = (sizes, *[{}] * (len(inputs) - 1)) if sizes else None
    if shapes and isinstance(module, Function):
        shapes = (shapes,)
    if not isinstance(module, torch.fx.GraphModule):  # which `torch.export` has made for inference already
        module.eval()
    return torch.export.export(module, inputs, dynamic_shapes=shapes)


def left(target: str, program: Any, **options: Any) -> set[str]:
    """Names of the operators that the target's partitioner leaves, each with a reason if limits apply."""
    from pteforge.tasks.backend.work import work_of
    from pteforge.tasks.targets import find_target

    for node in program.graph.nodes:
        node.meta.pop("delegation_tag", None)
    (partitioner,) = find_target(target, options).partitioners()
    partitioner.partition(program)
    called = [node for node in program.graph.nodes if hasattr(node.target, "_schema")]
    found = {node.target.name() for node in called if not node.meta.get("delegation_tag")}
    kept = {calls["operator"] for calls in work_of(program, {})["outside"] if calls["kept_on_cpu"]}
    assert kept <= {name.replace("::", ".") for name in found}
    assert bool(kept) <= options.get("limits", True)
    return {name.partition("::")[2].partition(".")[0] for name in found}


@pytest.mark.parametrize(("module", "inputs", "sizes", "expected"), LEFT.values(), ids=LEFT)
def test_calls_beyond_limits_are_left_to_the_cpu(module, inputs, sizes, expected):
    """By default, for the target whose runtime fails; without limits, upstream's partitioner takes all of them."""
    program = edge_program(module, inputs, sizes)
    for target in ("vulkan", "webgpu"):
        assert left(target, program) == expected.get(target, set())
        assert not left(target, program, limits=False, skip_bool_tensors=False)


@pytest.mark.parametrize(("module", "inputs", "sizes"), TAKEN.values(), ids=TAKEN)
def test_calls_within_limits_are_taken(module, inputs, sizes):
    """What is right on GPUs stays there."""
    assert not left("vulkan", edge_program(module, inputs, sizes))


LIMITED = [name for name, (_, recipe) in CASES.items() if recipe is VULKAN and name != "hardswish_of_odd_dimensions"]
"""Without the limit left out here, ExecuTorch does not lower its smallest case at all: the next test."""


@pytest.mark.parametrize("name", LIMITED)
def test_smallest_cases_of_limits(name, monkeypatch):
    """Each limit has one, of which it leaves calls to the CPU that no other limit leaves there."""
    from executorch.exir import to_edge

    case = CASES[name][0]()
    method = case.methods["forward"] if isinstance(case, ModelDefinition) else MethodDefinition(case[0], [case[1]])
    inputs, shapes = method.example_inputs[0], method.dynamic_shapes
    program = to_edge(torch.export.export(method.module.eval(), inputs, dynamic_shapes=shapes)).exported_program()
    kept = left("vulkan", program)
    monkeypatch.setenv(OFF, name)
    assert left("vulkan", program) < kept


def test_hardswish_that_upstream_keeps_whole(monkeypatch):
    """It keeps one of five dimensions, which it does not take, and then refuses to lower it."""
    name = "hardswish_of_odd_dimensions"
    assert parts_of(lowered(*CASES[name][0]()))
    monkeypatch.setenv(OFF, name)
    with pytest.raises(RuntimeError, match="hardswish"):
        lowered(*CASES[name][0]())


def test_each_limit_has_a_smallest_case():
    """Limits and patches have names of their own."""
    from pteforge.tasks.upstream.vulkan import LIMITS

    assert [name for name, (_, recipe) in CASES.items() if recipe is VULKAN] == [*LIMITS["vulkan"]]
    assert not LIMITS["vulkan"].keys() & PATCHES.keys()


def layer_of_torchao(config: str, outputs: int, **fields: Any) -> nn.Module:
    """A linear layer that torchao has quantized, and one in floating point."""
    import torchao.quantization as ao

    net = nn.Sequential(nn.Linear(64, outputs), nn.Linear(outputs, 3)).eval()
    ao.quantize_(net, getattr(ao, config)(**fields), lambda layer, _: getattr(layer, "in_features", 0) == 64)
    return net


def layers_of_torchao() -> dict[str, tuple[nn.Module, tuple[Any, ...], dict[int, Any], bool]]:
    """Modules, inputs, dynamic sizes, and whether all of it is taken."""
    from torchao.quantization.granularity import PerGroup

    rows, batch = torch.randn(4, 64), torch.randn(2, 4, 64)
    dynamic = partial(layer_of_torchao, "Int8DynamicActivationIntxWeightConfig", weight_granularity=PerGroup(32))
    weights = partial(layer_of_torchao, "IntxWeightOnlyConfig", granularity=PerGroup(32))
    return {
        "groups of 4 bits": (dynamic(32, weight_dtype=torch.int4), (rows,), {0: Dim("rows", min=2, max=8)}, True),
        "odd size": (dynamic(30, weight_dtype=torch.int4), (rows,), {}, False),
        "8 bits": (dynamic(32, weight_dtype=torch.int8), (rows,), {}, False),
        "vector": (dynamic(32, weight_dtype=torch.int4), (rows[0],), {}, False),
        "batch": (dynamic(32, weight_dtype=torch.int4), (batch,), {}, False),
        "batch of any size": (dynamic(32, weight_dtype=torch.int4), (batch,), {0: Dim("batch", max=4)}, False),
        "weights of 4 bits": (weights(32, weight_dtype=torch.int4), (rows,), {}, True),
        "weights of 4 bits, batch": (weights(32, weight_dtype=torch.int4), (batch,), {}, False),
        "weights of 8 bits": (weights(32, weight_dtype=torch.int8), (rows,), {}, False),
    }


@pytest.mark.slow
@pytest.mark.parametrize("number", range(9))
def test_layers_of_torchao(number):
    """Weights of 4 bits in groups are taken with what quantizes the input; what else there is, is decomposed."""
    *lowering, taken = [*layers_of_torchao().values()][number]
    programs = lowered(*lowering)
    called = [node.target for node in programs.exported_program().graph.nodes if hasattr(node.target, "_schema")]
    assert not any("torchao" in str(operator) for operator in called)
    assert (not called) == taken
    assert parts_of(programs)


@pytest.mark.parametrize(
    ("function", "calls"),
    [
        (lambda x: x.sum(-1), ["sum", "select_copy"]),
        (lambda x: x**3, ["mul", "mul"]),
        (lambda x: x**0.5, ["sqrt"]),
        (lambda x: x.softmax(-1), ["amax", "sub", "exp", "sum", "div"]),
        (lambda x: functional.linear(x, TABLE).softmax(-1), ["_softmax"]),
        (lambda x: x.amax(-1), ["amax", "sigmoid", "sub", "sum", "add", "select_copy"]),
        (lambda x: functional.linear(x, TABLE).amax(1, keepdim=True), ["amax"]),
        (functional.hardswish, ["clamp", "sigmoid", "mul", "hardswish", "sub", "add"]),
        (lambda x: functional.hardswish(functional.linear(x, TABLE)), ["hardswish"]),
        (torch.relu, ["relu", "sigmoid", "sub", "add"]),
        (lambda x: torch.relu(functional.linear(x, TABLE)), ["relu"]),
    ],
)
def test_what_delegates_compute(function, calls, monkeypatch):
    """Operators that are wrong for some values are written out inside of a delegate, where those may come up."""
    from pteforge.tasks.upstream import vulkan

    seen = []
    upstream = vulkan._preprocess
    monkeypatch.setattr(vulkan, "_preprocess", lambda program, specs: seen.append(program) or upstream(program, specs))
    lowered(Function(function), (TOKENS,))
    called = [str(node.target.name()) for node in seen[0].graph.nodes if hasattr(node.target, "_schema")]
    names = [name.partition("::")[2].partition(".")[0] for name in called]
    assert [name for name in names if name not in ("permute_copy", "view_copy", "mm", "linear")] == calls


def test_attention_with_a_mask():
    """The runtime has no `logical_not`, and would abort."""
    inputs = torch.randn(1, 2, 4, 8), torch.ones(4, 4, dtype=torch.bool)
    program = edge_program(Function(attention), inputs, {})
    for target in ("vulkan", "webgpu"):
        assert "logical_not" in left(target, program)
        assert "logical_not" not in left(target, program, limits=False, skip_bool_tensors=False)


def test_weights_of_attention_are_taken_apart_on_the_cpu():
    """Queries, keys and values have parts of one weight, of which the runtime would have to make linear layers."""
    program = edge_program(Attention(), (TOKENS[:1], TOKENS[:1], TOKENS[:1]), {})
    assert {"split_with_sizes_copy", "permute_copy"} <= left("vulkan", program)
    assert "addmm" not in left("vulkan", program)


def test_gelu_is_written_out():
    """The runtime's own is off by up to 5e-4, whatever form a model asks for; that by tanh is the model's."""
    for form, calls in (("none", 0), ("tanh", 1)):
        (part,) = parts_of(lowered(nn.GELU(form), (TOKENS,)))
        assert len([node for node in part.graph.nodes if "gelu" in str(node.target)]) == calls


def test_what_upstream_keeps_whole():
    """An operator that stays on the CPU is decomposed: upstream refuses those that it keeps whole for the GPU."""
    sizes = {2: Dim("height", min=3, max=6)}
    for module, parts in ((nn.Upsample(scale_factor=2), 1), (nn.Upsample(size=(6, 6)), 0)):
        assert len(parts_of(lowered(module, (IMAGE,), sizes))) == parts


@pytest.mark.parametrize("function", [large_positions, lambda x: torch.full((x.shape[1], 2), 1 << 25)])
def test_sizes_alone_are_no_part(function):
    """Sizes that only the CPU takes stay there: upstream cannot lower a part that computes no tensor."""
    assert not parts_of(lowered(Function(function), (TOKENS,), LENGTH))


def parts_of(programs: Any) -> list[Any]:
    """Programs of what is delegated."""
    modules = programs.exported_program().graph_module.modules()
    return [module.original_module for module in modules if hasattr(module, "original_module")]


def test_patterns_are_traced_once():
    """Upstream traces what it fuses for each partition and each payload; the graphs are kept, and nothing is added."""
    from executorch.backends.vulkan.patterns import all_fusable_graph_patterns, fusable_patterns
    from pteforge.tasks.targets import find_target
    from pteforge.tasks.upstream.vulkan import _DECLINED

    for _ in range(2):
        find_target("vulkan").partitioners()
    first = all_fusable_graph_patterns()
    assert first
    assert [*map(id, all_fusable_graph_patterns())] == [*map(id, first)]
    for name in _DECLINED:
        assert not hasattr(fusable_patterns[name].detector_fn.__wrapped__, "__wrapped__")


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_norm_and_layer_of_the_quantizer(dynamic, bits):
    """Lowers an RMSNorm written by hand next to a layer of Vulkan's quantizer: upstream's pattern fails on it."""
    program = lowered(*quantized(dynamic=dynamic, weight_bits=bits)).exported_program()
    names = {node.target.name() for node in program.graph.nodes if hasattr(node.target, "_schema")}
    fused = bits == 8 and not dynamic  # there is no shader of others for one row
    assert ("quantized_decomposed::dequantize_per_channel" in names) != fused


class Normed(nn.Module):
    """An RMSNorm, and a layer."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 32)
        self.scale = nn.Parameter(torch.randn(64))

    def forward(self, x, scale=None):
        scale = self.scale if scale is None else scale
        return self.layer(x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * scale)


class Joined(nn.Module):
    """Convolutions, of which the CPU computes those of several images or in small groups, and what joins them."""

    def __init__(self, join: Any, groups: int = 1):
        super().__init__()
        self.first, self.second = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1, groups=groups)
        self.join = join

    def forward(self, x):
        x = self.first(x)
        return self.join(x, self.second(x))


JOINED = {
    "groups": (Joined(lambda x, y: torch.relu(x + y), groups=4), 1),
    "two images": (Joined(lambda x, y: torch.relu(x + y)), 2),
    "two images, product": (Joined(lambda x, y: x * y.sigmoid()), 2),
    "two images side by side": (Joined(lambda x, y: torch.cat([x, y], 1)), 2),
}


@pytest.mark.parametrize(("module", "images"), JOINED.values(), ids=[*JOINED])
def test_images_in_int8_stay_inside(module, images):
    """Between the GPU and the CPU, images are floats: the runtime takes those in int8 for fewer bytes."""
    program = lowered(*quantized(module, (torch.randn(images, 8, 6, 5),), target="xnnpack")).exported_program()
    calls = [node for node in program.graph.nodes if node.target is torch.ops.higher_order.executorch_call_delegate]
    passed = [node for call in calls for node in (*call.all_input_nodes, *call.users) if node.op != "get_attr"]
    dtypes = {node.meta["val"].dtype for node in passed if isinstance(node.meta.get("val"), torch.Tensor)}
    assert dtypes == {torch.float32}


def test_one_image_in_int8_stays_whole():
    """A network of one image, all of whose convolutions have a shader, is one part with int8 values inside."""
    (part,) = parts_of(lowered(*quantized(Joined(torch.add), (torch.randn(1, 8, 6, 5),), target="xnnpack")))
    names = {node.target.name() for node in part.graph.nodes if hasattr(node.target, "_schema")}
    assert "quantized_decomposed::quantize_per_tensor" in names


WHOLE = {
    ("4 bits", (3, 64), 40): True,
    ("4 bits", (1, 64), 40): False,
    ("4 bits", (3, 64), 12): False,
    ("4 bits", (3, 62), 32): False,
    ("4 bits", (2, 3, 64), 32): True,
    ("static", (1, 3, 16), 6): True,
    ("static", (2, 3, 16), 6): False,
    ("static", (1, 2, 3, 16), 6): False,
}
"""How a layer is quantized, the sizes of its input, and the number of its outputs; whether it stays whole."""


def layer(how: str, sizes: tuple[int, ...], count: int) -> tuple[nn.Module, tuple[Any, ...]]:
    net = nn.Linear(sizes[-1], count), (torch.randn(sizes),)
    return quantized(*net, weight_bits=4) if how == "4 bits" else quantized(*net, target="xnnpack")


@pytest.mark.parametrize(("quantized_layer", "whole"), WHOLE.items())
def test_layers_that_the_shaders_take(quantized_layer, whole):
    """A quantized layer stays whole where its shader takes the sizes."""
    program = lowered(*layer(*quantized_layer)).exported_program()
    names = {node.target.name() for node in program.graph.nodes if hasattr(node.target, "_schema")}
    assert ("quantized_decomposed::dequantize_per_channel" in names) != whole


def quantized(
    module: nn.Module | None = None, inputs: tuple[Any, ...] = (), target: str = "vulkan", **options: Any
) -> tuple[nn.Module, tuple[Any, ...]]:
    """A module that a target's quantizer converted, by default a norm and a layer, and its inputs."""
    from pteforge.tasks.targets.find import find_quantizer_options, make_quantizer
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    inputs = inputs or (torch.randn(1, 64),)
    whole = torch.export.export((module or Normed()).eval(), inputs).module()
    chosen = find_quantizer_options(target, options).model_dump()
    prepared = prepare_pt2e(whole, make_quantizer([TargetParams(name=target, options=chosen)]))
    prepared(*inputs)
    return convert_pt2e(prepared), inputs


def lowered(module: nn.Module, inputs: tuple[Any, ...], sizes: dict[int, Any] | None = None) -> Any:
    """The edge program of a module whose calls within limits are delegated to Vulkan."""
    import executorch.kernels.quantized  # noqa: F401 - registers what runs quantized operators
    from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower
    from pteforge.tasks.backend.exir import decompose_left_affine
    from pteforge.tasks.targets import find_target

    partitioners = [*find_target("vulkan").partitioners()]
    return to_edge_transform_and_lower(
        decompose_left_affine(exported(module, inputs, sizes or {}), partitioners),
        partitioner=partitioners,
        compile_config=EdgeCompileConfig(_check_ir_validity=False),
    )


LIBRARY = os.environ.get("PTEFORGE_VULKAN_LIBRARY")
"""A library that registers VulkanBackend when it is loaded; Vulkan's own variables choose the driver."""


def run(content: bytes, calls: Sequence[tuple[Any, ...]], path: Path) -> list[list[torch.Tensor]]:
    """What the runtime returns, call by call, in a process of its own, which it may end."""
    import executorch.kernels.quantized  # noqa: F401 - registers what runs quantized operators
    from executorch.runtime import Runtime

    if not (child := os.fork()):
        try:
            ctypes.CDLL(LIBRARY)
            method = Runtime.get().load_program(content).load_method("forward")
            torch.save([[each.clone() for each in method.execute(inputs)] for inputs in calls], path)
            os._exit(0)
        finally:
            os._exit(1)
    assert not os.waitpid(child, 0)[1]
    return torch.load(path)


MORE: dict[str, tuple[nn.Module, tuple[Any, ...], dict[int, Any]]] = {
    "gelu": (nn.GELU(), (TOKENS * 3,), {}),
    "gelu by tanh": (nn.GELU("tanh"), (TOKENS * 3,), {}),
    "weights in one": (Attention(), (TOKENS[:1], TOKENS[:1], TOKENS[:1]), {}),
    "mask": (Function(attention), (torch.randn(1, 2, 4, 8), torch.ones(4, 4, dtype=torch.bool).tril()), {}),
    "dynamic layer": (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (TOKENS[:1],), {1: Dim("length")}),
    "squeezed": (Function(lambda x: torch.relu(x[None])[0]), (TOKENS,), {1: Dim("length")}),
    "dynamic line": (nn.Conv1d(6, 4, 3, padding=1), (TOKENS,), {2: Dim("length", min=2)}),
    "remainder": (Function(lambda x: x % 3), (INTEGERS,), {}),
    "causal mask of a dynamic size": (Function(causal), (TOKENS,), LENGTH),
    "positions by the CPU": (Function(lambda x: (x * 2, large_positions(x))), (TOKENS,), LENGTH),
    "equal parts": (Function(lambda x: x.softmax(-1)), (torch.full((2, 6), torch.finfo(torch.float32).min),), {}),
    "no parts": (Function(lambda x: x.softmax(-1)), (torch.full((2, 6), float("-inf")),), {}),
    "no numbers": (nn.ReLU6(), (torch.tensor([-1.0, torch.nan, 2, 7, torch.inf]),), {}),
    "no numbers in totals": (
        Function(lambda x: (x.amax(-1), x.amin(-2, keepdim=True), torch.minimum(x, x[0]), functional.hardsigmoid(x))),
        (TOKENS.masked_fill(TOKENS > 1, torch.nan),),
        {},
    ),
    "hardswish of no numbers": (nn.Hardswish(), (torch.tensor([-torch.inf, torch.inf, torch.nan, -9, 1e30]),), {}),
    "hardswish": (
        Function(lambda x: (functional.hardswish(x[0]), functional.hardswish(x.view(2, 1, 2, 3, 8)))),
        (TOKENS * 3,),
        {},
    ),
    "quarters": (Function(lambda x: (x**2).amax(-1)), (TOKENS * 1e6,), {}),
    "norm by given weights": (Normed(), (torch.randn(2, 64), torch.randn(64)), {}),
    **{
        f"quantized in {bits} bits{' by rows' if dynamic else ''}": (*quantized(dynamic=dynamic, weight_bits=bits), {})
        for dynamic in (False, True)
        for bits in (4, 8)
        if LIBRARY
    },
}
"""What is lowered otherwise than by leaving calls."""

if LIBRARY:

    def payload(module: nn.Module, inputs: tuple[Any, ...], sizes: dict[int, Any] | None = None) -> bytes:
        programs = lowered(module, inputs, sizes)
        floor_remainders(programs.exported_program())
        content: bytes = programs.to_executorch().buffer
        return content

    RUNS: list[Any] = [*LEFT.items(), *TAKEN.items(), *MORE.items(), *layers_of_torchao().items()]

    @pytest.mark.slow
    @pytest.mark.parametrize("case", [case for _, case in RUNS], ids=[name for name, _ in RUNS])
    def test_on_vulkan(case, tmp_path):
        """What Vulkan's runtime computes of each case is what eager computes, call after call, at each size."""
        module, first, sizes, *_ = case
        half = first
        for dim in sizes:
            half = tuple(each.narrow(dim, 0, each.shape[dim] // 2).contiguous() for each in half)
        calls = [first, half]
        content = payload(module, first, sizes)
        eager = copy.deepcopy(module)
        expected = [[each.clone() for each in flat(eager(*call))] for call in calls]
        torch.testing.assert_close(
            run(content, calls, tmp_path / "outputs"), expected, rtol=1e-4, atol=1e-5, equal_nan=True
        )

    STATIC = {" ".join(map(str, of)): layer(*of) for of in WHOLE} | {
        name: quantized(module, (torch.randn(images, 8, 6, 5),), target="xnnpack")
        for name, (module, images) in JOINED.items()
    }

    @pytest.mark.slow
    @pytest.mark.parametrize("name", STATIC)
    def test_quantized_layers_on_vulkan(name, tmp_path):
        """Vulkan's runtime computes what eager computes, but for outputs that are rounded to the neighbour."""
        module, inputs = STATIC[name]
        calls = [inputs, tuple(2 * each for each in inputs)]  # twice what was calibrated is cut off
        for call, (got,) in zip(calls, run(payload(module, inputs), calls, tmp_path / "outputs"), strict=True):
            expected = module(*call)
            assert (got - expected).norm() < 0.03 * expected.norm()


def flat(values: Any) -> list[Any]:
    return [*values] if isinstance(values, tuple | list) else [values]
