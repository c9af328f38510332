"""Nodes that can be claimed, grouped into partitions."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import torch
from torch.fx import GraphModule, Node
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner

from .branches import branch_nodes
from .support import Support, is_symbolic


def group(graph_module: GraphModule, listed: Collection[torch._ops.OpOverload]) -> list[list[Node]]:
    """The partitions of one graph module, each with its nodes in graph order.

    Only tensors cross the border of a partition. A payload is a program, and the runtime takes a program's numbers for
    what they were when it was made. So what takes a number from outside, or gives one, is left out; that may cut a
    partition up anew, and is repeated until nothing is left to leave out.

    Args:
        graph_module: not looked into where control flow calls other graph modules.
        listed: operators that are supported besides core ATen and what decomposes into it.
    """
    position = {node: index for index, node in enumerate(graph_module.graph.nodes)}
    refused: set[Node] = set()
    while True:
        support = Support(listed, refused)
        proposed = CapabilityBasedPartitioner(
            graph_module, support, allows_single_node_partition=True
        ).propose_partitions()
        partitions = [sorted(partition.nodes, key=position.__getitem__) for partition in proposed]
        crossing = {node for nodes in partitions for node in _crossing(nodes)}
        if not crossing:
            computing = [nodes for nodes in partitions if not all(map(is_symbolic, nodes))]
            return sorted((_with_branches(nodes) for nodes in computing), key=lambda nodes: position[nodes[-1]])
        refused |= crossing


def _crossing(nodes: Collection[Node]) -> Iterator[Node]:
    """Those nodes of a partition through which numbers would cross its border."""
    members = set(nodes)
    for node in nodes:
        takes = any(is_symbolic(each) and each not in members for each in node.all_input_nodes)
        gives = is_symbolic(node) and not members.issuperset(node.users)
        if takes or gives:
            yield node


def _with_branches(nodes: Collection[Node]) -> list[Node]:
    """The nodes, and the branches of the `torch.cond`s among them: these belong to nobody else."""
    return [*(branch for node in nodes for branch in branch_nodes(node)), *nodes]
