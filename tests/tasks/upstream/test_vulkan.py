"""Calls that GPU runtimes lack or compute wrongly are left to the CPU, and others are not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pteforge.tests.zoo.networks import Function
from torch import nn
from torch.export import Dim
from torch.nn import functional

BATCH = {0: Dim("batch", min=1, max=4)}
IMAGE, IMAGES = torch.randn(1, 6, 5, 3), torch.randn(2, 6, 5, 3)
TOKENS = torch.randn(2, 6, 8)


def chunks(x):
    return torch.cat([-chunk for chunk in x.chunk(2, 2)], 2)


def attention(x, mask):
    return functional.scaled_dot_product_attention(x, x, x, mask)


def channels_last(x):
    return torch.relu(x).to(memory_format=torch.channels_last) * 2


@pytest.fixture(autouse=True)
def _nothing_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Upstream traces the patterns that it fuses at each call, for more than a second."""
    from executorch.backends.vulkan import patterns

    monkeypatch.setattr(patterns, "get_all_fusable_subgraphs", lambda _: [])


def on_both(operators):
    return {"vulkan": operators, "webgpu": operators}


LEFT: dict[str, tuple[nn.Module, tuple[Any, ...], dict[int, Any], dict[str, set[str]]]] = {
    "groups": (nn.Conv2d(6, 12, 3, groups=2), (IMAGE,), {}, {"vulkan": {"convolution"}}),
    "group of each channel": (nn.Conv2d(6, 12, 3, groups=6), (IMAGE,), {}, {"vulkan": {"convolution"}}),
    "transposed": (nn.ConvTranspose2d(6, 4, 2, groups=2), (IMAGE,), {}, {"vulkan": {"convolution"}}),
    "layout": (
        Function(channels_last),
        (IMAGES,),
        {},
        on_both({"_to_dim_order_copy", "mul"}),
    ),
    "chunks": (
        Function(chunks),
        (TOKENS,),
        BATCH,
        {"vulkan": {"split_with_sizes_copy"}, "webgpu": {"split_with_sizes_copy", "neg", "cat"}},
    ),
    "rounding": (
        Function(lambda x: x // 3),
        (torch.randint(-9, 9, (4, 4)),),
        {},
        on_both({"div"}),
    ),
    "index": (
        Function(lambda x, index: x[index]),
        (TOKENS, torch.tensor([0, -1])),
        {},
        on_both({"index"}),
    ),
    "softmax": (Function(lambda x: x.softmax(1)), (IMAGES,), {}, {"vulkan": {"_softmax"}}),
    "mean": (Function(lambda x: x.mean(1, keepdim=True)), (IMAGES,), {}, {"vulkan": {"mean"}}),
    "norm": (nn.LayerNorm((6, 8)), (TOKENS,), {}, on_both({"native_layer_norm"})),
    "sizes": (nn.ReLU(), (TOKENS,), BATCH, {"webgpu": {"relu"}}),
}
"""A module, its inputs, the dynamic sizes of the first, and what each target leaves."""

TAKEN = {
    "convolution": (nn.Conv2d(6, 12, 3), (IMAGE,), {}),
    "depthwise": (nn.Conv2d(6, 6, 3, groups=6), (IMAGE,), {}),
    "chunks": (Function(chunks), (TOKENS,), {}),
    "softmax": (Function(lambda x: x.softmax(-1)), (IMAGES,), {}),
    "softmax of one": (Function(lambda x: x.softmax(1)), (IMAGE,), {}),
    "norm": (nn.LayerNorm(8), (TOKENS,), {}),
}


def edge_program(module: nn.Module, inputs: tuple[Any, ...], sizes: dict[int, Any]) -> Any:
    from executorch.exir import to_edge

    shapes: Any = (sizes, *[{}] * (len(inputs) - 1)) if sizes else None
    if shapes and isinstance(module, Function):
        shapes = (shapes,)
    return to_edge(torch.export.export(module.eval(), inputs, dynamic_shapes=shapes)).exported_program()


def left(target: str, program: Any, **options: Any) -> set[str]:
    """Names of the operators that the target's partitioner leaves."""
    from pteforge.tasks.targets import find_target

    for node in program.graph.nodes:
        node.meta.pop("delegation_tag", None)
    (partitioner,) = find_target(target, options).partitioners()
    partitioner.partition(program)
    called = [node for node in program.graph.nodes if hasattr(node.target, "_schema")]
    return {
        node.target.name().partition("::")[2].partition(".")[0]
        for node in called
        if not node.meta.get("delegation_tag")
    }


@pytest.mark.parametrize(("module", "inputs", "sizes", "expected"), LEFT.values(), ids=LEFT)
def test_calls_beyond_limits_are_left_to_the_cpu(module, inputs, sizes, expected):
    """By default, for the target whose runtime fails; without limits, upstream's partitioner takes all of them."""
    program = edge_program(module, inputs, sizes)
    for target in ("vulkan", "webgpu"):
        assert left(target, program) == expected.get(target, set())
        assert not left(target, program, limits=False)


@pytest.mark.parametrize(("module", "inputs", "sizes"), TAKEN.values(), ids=TAKEN)
def test_calls_within_limits_are_taken(module, inputs, sizes):
    """What is right on GPUs stays there."""
    assert not left("vulkan", edge_program(module, inputs, sizes))


def test_attention_with_a_mask():
    """The runtime has no `logical_not`, and would abort."""
    inputs = torch.randn(1, 2, 4, 8), torch.ones(4, 4, dtype=torch.bool)
    program = edge_program(Function(attention), inputs, {})
    for target in ("vulkan", "webgpu"):
        assert "logical_not" in left(target, program)
        assert "logical_not" not in left(target, program, limits=False, skip_bool_tensors=False)
