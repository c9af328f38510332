"""XNNPACK's partitioner of executorch 1.5.1, extended in eleven ways.

Control flow: upstream (backends/xnnpack/partition/xnnpack_partitioner.py) partitions only a method's own graph. Delete
`_Branch` and the loop over branches once it also looks into ``cond``, ``map`` and ``scan``.

Copies: where a value and a copy of it both leave a partition, XNNPACK's passes remove the copy, one value becomes two
outputs of the delegate, and the backend fails ("already in the inputs", backends/xnnpack/xnnpack_preprocess.py). `scan`
has such copies, since torch lets its body not return one value twice. Delete `leave_copies_outside` once upstream
compiles ``return y, y.clone()``.

Cycles: upstream proposes partitions that depend on each other. Delete `generate_partitions` with `partition_cycles`.

Dynamic sizes: XNNPACK's reshapes take one dynamic dimension. Upstream's partitioner checks that of views, but not of
``unsqueeze`` and of convolutions over one dimension. Their delegates fail ("XNNPACK reshape only supports 1 dynamic
dimension"). Delete `_Unsqueeze` and `_Convolution` once backends/xnnpack/partition/config checks it.

Largest values: XNNPACK computes ``max`` over dimension 2 or 3 and keeps the dimension. The partitioner takes others as
well, whose delegates fail ("amax.default only supports keep_dim == True"). Delete `_MaxDim` once upstream's checks it.

PReLU: XNNPACK's passes give its input channels last, so that it must have four dimensions. The partitioner takes others
as well, such as those after linear layers ("Attempting to convert non-NHWC compatible node to NHWC"). Delete `_Prelu`
once it checks it.

Bilinear resizing: XNNPACK derives the scale from the sizes, torch takes the one that is given. With
``scale_factor=0.3``, 64 rows become 19, which is not 0.3 of 64. Delete `_Bilinear` once the partitioner compares them.

Layouts: where the model changes the layout of a quantized value, as with ``x.to(memory_format=torch.channels_last)``,
XNNPACK's passes mistake it for one of their own copies, and the file computes something else. Delete `_ToDimOrderCopy`
once they tell these apart.

Padding: a pass of XNNPACK's (backends/xnnpack/_passes/insert_pad_qdq.py) gives the scale of a quantized value to what
pads it with zeros, also where the value is needed in floating point, as in ``unfold``, and the file cannot be loaded
("Failed to create StaticConstantPad node"). Delete `_ConstantPad` once it quantizes both sides or none.

State: where a method overwrites a buffer that is the weight of a linear layer, the delegate crashes. Delete `_Linear`,
`_MM` and `_Addmm` once the partitioner checks it.

GELU: see `xnnpack_gelu`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from executorch.backends.xnnpack.partition.config import (
    ALL_PARTITIONER_CONFIGS,
    AddmmConfig,
    ConstantPadConfig,
    ConvolutionConfig,
    GeluConfig,
    LinearConfig,
    MaxDimConfig,
    MMConfig,
    PreluConfig,
    ToDimOrderCopyConfig,
    UnsqueezeCopyConfig,
    UpsampleBilinear2dConfig,
)
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.utils.quant_utils import is_dequant, is_quant
from executorch.exir.backend.partitioner import PartitionResult
from executorch.exir.dialects._ops import ops
from executorch.exir.graph_module import get_control_flow_submodules
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature
from torch.fx import Graph, GraphModule, Node
from torch.fx.passes.infra.partitioner import Partition

from .partition_cycles import have_cycle, merged_without_cycles
from .xnnpack_gelu import is_approximate

_TAG = "delegation_tag"
_COPIES = (ops.edge.dim_order_ops._clone_dim_order.default, ops.edge.aten.clone.default)  # noqa: SLF001 - the operator's name


class _Unsqueeze(UnsqueezeCopyConfig):  # type: ignore[misc]  # executorch is untyped here
    def check_constraints(self, node: Node, ep: ExportedProgram) -> bool:
        return _dynamic_sizes(node) <= 1 and bool(super().check_constraints(node, ep))


class _Convolution(ConvolutionConfig):  # type: ignore[misc]  # as above
    """Those over one dimension become ones over two: XNNPACK's passes put reshapes before and after them."""

    def check_constraints(self, node: Node, ep: ExportedProgram) -> bool:
        reshaped = node.meta["val"].dim() == 3 and _dynamic_sizes(node) > 1  # batch, channels, length
        return not reshaped and bool(super().check_constraints(node, ep))


class _MaxDim(MaxDimConfig):  # type: ignore[misc]  # as above
    def check_constraints(self, node: Node, ep: ExportedProgram) -> bool:
        _, dim, *keep = node.args
        return dim in (2, 3) and keep == [True] and bool(super().check_constraints(node, ep))


class _Gelu(GeluConfig):  # type: ignore[misc]  # as above
    """Scalars have no approximation: XNNPACK does not take their products with constants."""

    def check_constraints(self, node: Node, ep: ExportedProgram) -> bool:
        scalar = node.meta["val"].dim() == 0
        return not (scalar and is_approximate(node)) and bool(super().check_constraints(node, ep))


class _ToDimOrderCopy(ToDimOrderCopyConfig):  # type: ignore[misc]  # as above
    def check_constraints(self, node: Node, ep: ExportedProgram) -> bool:
        given: Any = node.args[0]
        same = given.meta["val"].dim_order() == node.meta["val"].dim_order()
        return (same or not is_dequant(given)) and bool(super().check_constraints(node, ep))


class _ConstantPad(ConstantPadConfig):  # type: ignore[misc]  # as above
    def check_constraints(self, node: Node, ep: ExportedProgram) -> bool:
        given: Any = node.args[0]
        zeros = len(node.args) == 2 or node.args[2] == 0
        only_given = zeros and is_dequant(given) and not any(map(is_quant, node.users))
        return not only_given and bool(super().check_constraints(node, ep))


class _Linear(LinearConfig):  # type: ignore[misc]  # as above
    def check_constraints(self, node: Node, ep: ExportedProgram) -> bool:
        return not _is_state(node.args[1], ep) and bool(super().check_constraints(node, ep))


class _MM(MMConfig):  # type: ignore[misc]  # as above
    def check_constraints(self, node: Node, ep: ExportedProgram) -> bool:
        return not _is_state(node.args[1], ep) and bool(super().check_constraints(node, ep))


class _Addmm(AddmmConfig):  # type: ignore[misc]  # as above
    def check_constraints(self, node: Node, ep: ExportedProgram) -> bool:
        return not _is_state(node.args[2], ep) and bool(super().check_constraints(node, ep))


def _is_state(weight: Any, ep: ExportedProgram) -> bool:
    """Whether a weight is a buffer that the method writes to, or a view of one."""
    while weight.op == "call_function" and weight.all_input_nodes:
        weight = weight.all_input_nodes[0]
    signature = ep.graph_signature
    return signature.inputs_to_buffers.get(weight.name) in set(signature.buffers_to_mutate.values())


class _Prelu(PreluConfig):  # type: ignore[misc]  # as above
    def check_constraints(self, node: Node, ep: ExportedProgram) -> bool:
        return node.meta["val"].dim() == 4 and bool(super().check_constraints(node, ep))  # batch, channels, two more


class _Bilinear(UpsampleBilinear2dConfig):  # type: ignore[misc]  # as above
    def check_constraints(self, node: Node, ep: ExportedProgram) -> bool:
        return bool(super().check_constraints(node, ep)) and _scales_by_sizes(node)


def _scales_by_sizes(node: Node) -> bool:
    """Whether a resize has the scale that follows from its sizes, for each dimension."""
    given, _, align_corners, *rest = node.args
    factors: Any = rest[0] if rest else node.kwargs.get("scale_factors")
    if align_corners or factors is None:
        return True
    before: Any = given
    sizes = zip(before.meta["val"].shape[2:], node.meta["val"].shape[2:], factors, strict=True)
    return all(size * factor == resized for size, resized, factor in sizes)


def _dynamic_sizes(node: Node) -> int:
    return sum(not isinstance(size, int) for size in node.meta["val"].shape)


_EXTENDED = {
    AddmmConfig: _Addmm,
    ConstantPadConfig: _ConstantPad,
    LinearConfig: _Linear,
    MMConfig: _MM,
    UnsqueezeCopyConfig: _Unsqueeze,
    ConvolutionConfig: _Convolution,
    GeluConfig: _Gelu,
    MaxDimConfig: _MaxDim,
    PreluConfig: _Prelu,
    ToDimOrderCopyConfig: _ToDimOrderCopy,
    UpsampleBilinear2dConfig: _Bilinear,
}


class ExtendedXnnpackPartitioner(XnnpackPartitioner):  # type: ignore[misc]  # executorch is untyped here
    """Also partitions the branches of ``cond`` and the bodies of ``map`` and ``scan``.

    A branch takes weights as inputs, so they are not constants there: its linear layers and convolutions are decomposed
    for the portable kernels, unless weights may be inputs of the delegate.
    """

    def __init__(self, **options: Any) -> None:
        """Takes the options of upstream's."""
        super().__init__(configs=[_EXTENDED.get(config, config) for config in ALL_PARTITIONER_CONFIGS], **options)

    def ops_to_not_decompose(self, ep: ExportedProgram) -> tuple[list[Any], Callable[[Node], bool]]:
        """Checks nodes in a branch against that branch.

        A check against the method's program would mistake a branch's input for the method's weight of the same name.
        """
        operators, supported = super().ops_to_not_decompose(ep)

        def check(node: Node) -> bool:
            if node.graph is ep.graph_module.graph:
                return bool(supported(node))
            branch = _Branch(node.graph.owning_module)
            return bool(super(ExtendedXnnpackPartitioner, self).ops_to_not_decompose(branch)[1](node))

        return operators, check

    def generate_partitions(self, ep: ExportedProgram) -> list[Partition]:
        """As upstream, unless the partitions depend on each other; then smaller ones that do not."""
        partitions: list[Partition] = super().generate_partitions(ep)
        if have_cycle(ep.graph_module.graph, partitions):
            partitions = merged_without_cycles(ep.graph_module, self.get_matched_nodes_from_configs(ep))
        return partitions

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Tags the method's own graph, then each branch with tags of its own; leaves surplus copies outside."""
        result = super().partition(exported_program)
        tags = dict(result.partition_tags)
        branches = list(_branches(exported_program.graph_module))
        for number, branch in enumerate(branches):
            found = super().partition(_Branch(branch))
            for node in branch.graph.nodes:
                if tag := node.meta.get(_TAG):
                    node.meta[_TAG] = f"branch{number}_{tag}"
            tags |= {f"branch{number}_{tag}": spec for tag, spec in found.partition_tags.items()}
        for module in (exported_program.graph_module, *branches):
            leave_copies_outside(module.graph)
        return PartitionResult(tagged_exported_program=exported_program, partition_tags=tags)


@dataclass(frozen=True)
class _Branch:
    """A nested graph with the attributes of an `ExportedProgram` that partitioners read: everything is an input."""

    graph_module: GraphModule
    graph_signature: ExportGraphSignature = field(default_factory=lambda: ExportGraphSignature([], []))
    state_dict: dict[str, torch.Tensor] = field(default_factory=dict)
    constants: dict[str, torch.Tensor] = field(default_factory=dict)

    @property
    def graph(self) -> Graph:
        return self.graph_module.graph


def _branches(module: GraphModule) -> Iterator[GraphModule]:
    for _, branch, _ in get_control_flow_submodules(module):
        yield branch
        yield from _branches(branch)


def leave_copies_outside(graph: Graph) -> None:
    """Untags copies in a tagged graph whose original, or another copy of it, also leaves the partition.

    A copy that its own partition uses stays: without it, the partition would depend on its own result.
    """
    while surplus := [copy for copy in _surplus(graph) if copy.meta[_TAG] not in _user_tags(copy)]:
        for copy in surplus:
            del copy.meta[_TAG]


def _surplus(graph: Graph) -> list[Node]:
    """For each value that leaves its partition several times, all nodes but the first."""
    leaving: dict[Node, list[Node]] = defaultdict(list)
    for node in graph.nodes:
        if (tag := node.meta.get(_TAG)) is not None and any(tag != other for other in _user_tags(node)):
            leaving[_original(node)].append(node)
    return [copy for forms in leaving.values() for copy in forms[1:]]


def _original(node: Node) -> Node:
    """The node that this one copies within its partition, or the node itself."""
    while node.target in _COPIES:
        source = node.args[0]
        if not isinstance(source, Node) or source.meta.get(_TAG) != node.meta[_TAG]:
            break
        node = source
    return node


def _user_tags(node: Node) -> list[str | None]:
    return [user.meta.get(_TAG) for user in node.users]
