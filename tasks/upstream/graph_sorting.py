"""ExecuTorch 1.5.1 copies a whole graph for each partition, to sort it; with this patch its nodes are moved instead.

`create_submodule_from_nodes` (exir/lowered_backend_module.py) calls torch 2.13's `legalize_graph`
(torch/fx/passes/tools_common.py), which makes a new graph of copied nodes in another order. That is more than half of
the work of partitioning a transformer of 12 layers. Sound because the new graph is the same in all that a pass can see:
the order of nodes, of users and of what `find_nodes` finds, and names, also of nodes that are created later. The old
graph is left empty, and nothing reads it. Delete once exir sorts once for all partitions, or torch sorts in place.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from executorch.exir import lowered_backend_module
from torch.fx import Graph, GraphModule, Node
from torch.fx.passes.tools_common import legalize_graph

_FIRST = frozenset(
    {
        *(operator.add, operator.mul, operator.sub, operator.floordiv, operator.truediv, operator.mod),
        *(operator.le, operator.lt, operator.ge, operator.gt, operator.eq, operator.ne),
        torch.ops.aten.sym_constrain_range.default,
        torch.ops.aten.sym_constrain_range_for_size.default,
        torch.ops.aten._assert_async.msg,  # noqa: SLF001 - an operator's name
        torch.ops.aten.scalar_tensor.default,
        torch.ops.aten._assert_scalar.default,  # noqa: SLF001 - as above
    }
)
"""What `legalize_graph` takes as soon as it can: sizes and assertions about them."""


@contextmanager
def sorting_in_place() -> Iterator[None]:
    """Applies the patch while the context is open."""
    lowered_backend_module.legalize_graph = sort_nodes
    try:
        yield
    finally:
        lowered_backend_module.legalize_graph = legalize_graph


def sort_nodes(module: GraphModule) -> GraphModule:
    """In place of `legalize_graph`: gives the module a new graph with the nodes of its old one, sorted."""
    old, new = module.graph, Graph()
    nodes = _in_order(old)
    if len(nodes) < len(old.nodes):
        return legalize_graph(module)  # there is a cycle: it raises
    for node in nodes:
        node.users.clear()
    names = new._graph_namespace  # noqa: SLF001 - as `Graph.create_node` does, and below
    for node in nodes:
        node.graph = new
        new._root.prepend(node)  # noqa: SLF001
        name = names.create_name(node.name, None)
        if name != node.name:
            node.name = name
        names.associate_name_with_obj(name, node)
        for source in node.all_input_nodes:
            source.users.setdefault(node)
        new._find_nodes_lookup_table.insert(node)  # noqa: SLF001
        new._len += 1  # noqa: SLF001
    new._codegen = old._codegen  # noqa: SLF001
    module.graph = new
    return module


def _in_order(graph: Graph) -> list[Node]:
    """Nodes after all that they use, those first that have been waiting longest; without those of a cycle."""
    waiting = {node: len(node.all_input_nodes) for node in graph.nodes}
    queue = deque(node for node, count in waiting.items() if not count)
    nodes = []
    while queue:
        node = queue.popleft()
        nodes.append(node)
        for user in node.users:
            waiting[user] -= 1
            if not waiting[user]:
                first = user.op == "call_function" and user.target in _FIRST
                (queue.appendleft if first else queue.append)(user)
    return nodes
