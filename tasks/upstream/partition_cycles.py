"""ExecuTorch 1.5.1 proposes partitions for XNNPACK that depend on each other; they are merged again, with a check.

`GroupBasedPartitioner._can_merge_partitions` (exir/backend/canonical_partitioners/group_partitioner.py) does not merge
two partitions if a path leaves them and comes back. It follows paths from node to node and overlooks that every other
partition becomes one node, too: a path that enters a partition can leave it from any of its nodes. So two partitions
can be proposed each of which uses a result of the other. The one that is fused last fails ("Invalid partition, found
dependency cycles", torch/fx/passes/utils/fuser_utils.py).

Dynamically quantized layers that share an input are one partition from the start, and it takes the place of the last of
them in the order of merging, which makes this likely. In Llama, the layers of queries, keys and values are merged with
the cosines of the rotary embedding, and the permuted queries and keys with the frequencies of these cosines.

Sound because partitions without a cycle stay as upstream proposes them, and otherwise only the choice of the nodes that
share a partition changes. Delete once upstream's check goes through partitions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from graphlib import CycleError, TopologicalSorter
from typing import Any

from executorch.exir.backend.canonical_partitioners.group_partitioner import GroupBasedPartitioner
from torch.fx import Graph, GraphModule, Node
from torch.fx.passes.infra.partitioner import Partition
from torch.fx.passes.operator_support import create_op_support


def have_cycle(graph: Graph, partitions: Iterable[Partition]) -> bool:
    """Whether a partition depends on its own result, alone or through others.

    Constants do not count, since each partition that uses one gets a copy of it.
    """
    owners: dict[Node, Any] = {node: partition.id for partition in partitions for node in partition.nodes}
    order: TopologicalSorter[Any] = TopologicalSorter()
    for node in graph.nodes:
        owner = owners.get(node, node)
        before = {owners.get(used, used) for used in node.all_input_nodes if used.op != "placeholder"}
        order.add(owner, *(before - {owner}))
    try:
        order.prepare()
    except CycleError:
        return True
    return False


def merged_without_cycles(module: GraphModule, groups: Sequence[Sequence[Node]]) -> list[Partition]:
    """Merges groups of nodes as upstream does, but never into partitions that depend on each other."""
    partitions: list[Partition] = _Partitioner(module, groups).propose_partitions()
    return partitions


class _Partitioner(GroupBasedPartitioner):  # type: ignore[misc]  # executorch is untyped here
    def __init__(self, module: GraphModule, groups: Sequence[Sequence[Node]]) -> None:
        nodes = {node for group in groups for node in group}
        supported = create_op_support(lambda _, node: node in nodes)
        super().__init__(module, supported, allows_single_node_partition=True, node_groups=groups)

    def _merge_partitions(self, partitions: dict[int, Partition], *tables: Any) -> None:
        """Repeats upstream's pass over all pairs, since a merge can make way for others."""
        count = None
        while count != len(partitions):
            count = len(partitions)
            super()._merge_partitions(partitions, *tables)

    def _can_merge_partitions(self, first: int, second: int, partitions: Mapping[int, Partition]) -> bool:
        if not super()._can_merge_partitions(first, second, partitions):
            return False
        pair = partitions[first], partitions[second]
        others = [partition.nodes for partition in partitions.values() if partition not in pair]
        return not _comes_back({node for partition in pair for node in partition.nodes}, others)


def _comes_back(merged: AbstractSet[Node], others: Iterable[Collection[Node]]) -> bool:
    """Whether a path leaves the nodes and comes back. One that enters another partition leaves it from any node."""
    partitions = {node: nodes for nodes in others for node in nodes}
    ahead = _users(merged) - merged
    passed: set[Node] = set()
    while ahead:
        node = ahead.pop()
        entered = partitions.get(node, (node,))
        passed.update(entered)
        found = _users(entered)
        if not merged.isdisjoint(found):
            return True
        ahead |= found - passed
    return False


def _users(nodes: Iterable[Node]) -> set[Node]:
    return {user for node in nodes if node.op != "placeholder" for user in node.users}
