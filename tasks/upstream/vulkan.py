"""What GPU runtimes of executorch 1.5.1 lack or compute wrongly, although upstream's partitioners claim it.

Part of the keys of the stages of Vulkan and WebGPU. The cases were run with ExecuTorch's Vulkan delegate of August 2026
on Mesa's lavapipe 22.3 and 25.0 and on an NVIDIA H200, whose verdicts were the same, and with WebGPU's on Dawn. Delete
a limit once its case is right there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any
from unittest.mock import patch

import torch
from executorch.backends.vulkan.partitioner.vulkan_partitioner import VulkanPartitioner, VulkanSupportedOperators
from executorch.backends.vulkan.patterns import fusable_patterns
from executorch.backends.webgpu.partitioner.partitioner import WebGPUPartitioner
from executorch.exir.backend.partitioner import PartitionResult
from torch.export import ExportedProgram
from torch.fx import Node
from torch.utils import _pytree as pytree

from ..lower.graphs import KEPT


@dataclass(frozen=True)
class Limit:
    """Calls that are left to the CPU."""

    operators: Collection[str]  # names in the edge dialect; empty for all
    is_beyond: Callable[[Node], bool]
    why: str  # with the smallest case
    on: Collection[str] = ("vulkan", "webgpu")

    def refuses(self, node: Node, target: str) -> bool:
        """Whether the runtime of a target does not compute a call."""
        return target in self.on and (not self.operators or _name(node) in self.operators) and self.is_beyond(node)


def _name(node: Node) -> str:
    return str(getattr(node.target, "name", lambda: "")()).replace("::", ".")


def _tensors(node: Node) -> Iterator[torch.Tensor]:
    """What a call takes and gives."""
    for value in (node, *node.all_input_nodes):
        yield from filter(torch.is_tensor, pytree.tree_leaves(value.meta.get("val")))


def _always(_: Node) -> bool:
    return True


def _is_dynamic(node: Node) -> bool:
    return any(not isinstance(size, int) for tensor in _tensors(node) for size in tensor.shape)


def _is_not_contiguous(node: Node) -> bool:
    return any(list(tensor.dim_order()) != sorted(tensor.dim_order()) for tensor in _tensors(node))


def _is_in_groups(node: Node) -> bool:
    """Of a convolution: groups of channels, unless each channel is one and makes one."""
    given: Any = node.args[0]
    transposed, groups = node.args[6], node.args[8]
    depthwise = groups == given.meta["val"].shape[1] == node.meta["val"].shape[1]
    return groups != 1 and (bool(transposed) or not depthwise)


def _is_over_channels(node: Node) -> bool:
    """Of an operator that reduces dimensions, or a softmax: over those of channels of several images."""
    given: Any = node.args[0]
    dims: Any = node.args[1]
    value = given.meta["val"]
    dims = {dim % value.dim() for dim in (dims if isinstance(dims, list | tuple) else [dims])}
    one_image = "softmax" in _name(node) and value.shape[0] == 1
    return value.dim() == 4 and 1 in dims and not one_image


def _rounds_integers_down(node: Node) -> bool:
    return node.kwargs.get("rounding_mode") == "floor" and not node.meta["val"].is_floating_point()


LIMITS = (
    Limit(
        ["aten.convolution"],
        _is_in_groups,
        "groups are ignored: `Conv2d(8, 12, 3, groups=2)` 1.4 dB, `ConvTranspose2d(8, 4, 2, 2, groups=2)` -0.6 dB",
        ["vulkan"],
    ),
    Limit([], _is_not_contiguous, "channels-last values are taken for others: `relu(x).to(channels_last)` -1.9 dB"),
    Limit(
        ["aten.split_with_sizes_copy"],
        _is_dynamic,
        "its results keep the largest size: a dynamic Llama block 23.9 dB, 138 without it",
    ),
    Limit(["aten.div.Tensor_mode"], _rounds_integers_down, "`x // 3` of negative integers rounds up: 20 dB"),
    Limit(["aten.index.Tensor"], _always, "negative indices are taken for others: 3.5 dB"),
    Limit(
        ["aten.logical_not", "quantized_decomposed.dequantize_per_channel"],
        _always,
        "the runtime has no such operator, and aborts, as in attention with a mask",
    ),
    Limit(
        ["aten._softmax", "aten._log_softmax", "aten.mean.dim", "aten.sum.dim_IntList", "aten.amax", "aten.amin"],
        _is_over_channels,
        "the runtime throws: `softmax(x, 1)` of several images, `x.mean(1, keepdim=True)`",
        ["vulkan"],
    ),
    Limit(
        ["aten.native_layer_norm"],
        lambda node: len(node.args[1]) > 1,
        "over several dimensions, as `LayerNorm((6, 8))`, Vulkan's runtime throws, and WebGPU's reaches 5.9 dB",
    ),
)
"""What calls are left to the CPU, and why."""

_STATIC = ("webgpu",)
"""Targets that take no program with dynamic sizes: of 14, 2 were right on WebGPU, and one was not twice the same."""


def _within_limits(upstream: type, target: str) -> type:
    """A partitioner that leaves calls beyond the limits. What upstream fuses into one operator is not looked at."""
    supported = VulkanSupportedOperators._is_node_supported  # noqa: SLF001 - what upstream asks for each node

    def check(self: Any, node: Node) -> bool:
        if node.op == "call_function" and node not in self.fusable_nodes:
            for limit in LIMITS:
                if limit.refuses(node, target):
                    node.meta[KEPT] = limit.why
                    return False
        return bool(supported(self, node))

    class Limited(upstream):  # type: ignore[misc]  # executorch is untyped here
        def partition(self, exported_program: ExportedProgram) -> PartitionResult:
            if target in _STATIC and any(map(_is_dynamic, exported_program.graph.nodes)):
                return PartitionResult(tagged_exported_program=exported_program, partition_tags={})
            with patch.object(VulkanSupportedOperators, "_is_node_supported", check):
                return super().partition(exported_program)

    Limited.__name__ = upstream.__name__
    return Limited


def trace_patterns_once() -> None:
    """Keeps the graphs of what upstream fuses, which it traces for each partition and each payload, in over a second.

    They depend on nothing, and are only compared with programs. Delete this once upstream keeps them itself.
    """
    for entry in fusable_patterns.values():
        if entry.get_graphs_fn and not hasattr(entry.get_graphs_fn, "cache_info"):
            entry.get_graphs_fn = cache(entry.get_graphs_fn)


LimitedVulkanPartitioner = _within_limits(VulkanPartitioner, "vulkan")
LimitedWebGpuPartitioner = _within_limits(WebGPUPartitioner, "webgpu")
