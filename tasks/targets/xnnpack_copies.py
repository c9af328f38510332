"""Copies of values, which XNNPACK's partitioner claims and its passes remove.

Where a value and a copy of it both leave a partition, one value would be two outputs of the delegate, which XNNPACK
refuses ("already in the inputs", executorch/backends/xnnpack/xnnpack_preprocess.py, 1.5.1). `scan` has such copies:
torch lets its body not return one value twice.
"""

from __future__ import annotations

from collections import defaultdict

from executorch.exir.dialects._ops import ops
from torch.fx import Graph, Node

_TAG = "delegation_tag"
_COPIES = (ops.edge.dim_order_ops._clone_dim_order.default, ops.edge.aten.clone.default)  # noqa: SLF001 - the operator's name


def leave_copies_outside(graph: Graph) -> None:
    """Takes copies out of the partitions of a tagged graph that another form of the same value leaves, too.

    A copy that its partition uses itself stays: without it, the partition would depend on its own result.
    """
    while surplus := [copy for copy in _surplus(graph) if copy.meta[_TAG] not in _tags(copy)]:
        for copy in surplus:
            del copy.meta[_TAG]


def _surplus(graph: Graph) -> list[Node]:
    """Of each value that leaves its partition several times all but the first."""
    leaving: dict[Node, list[Node]] = defaultdict(list)
    for node in graph.nodes:
        if (tag := node.meta.get(_TAG)) is not None and any(tag != other for other in _tags(node)):
            leaving[_original(node)].append(node)
    return [copy for forms in leaving.values() for copy in forms[1:]]


def _original(node: Node) -> Node:
    """What a node is a copy of within its partition, or the node itself."""
    while node.target in _COPIES:
        source = node.args[0]
        if not isinstance(source, Node) or source.meta.get(_TAG) != node.meta[_TAG]:
            break
        node = source
    return node


def _tags(node: Node) -> list[str | None]:
    """Tags of those that use a node."""
    return [user.meta.get(_TAG) for user in node.users]
