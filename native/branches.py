"""Graph modules inside of graph modules: branches of `torch.cond`, bodies of loops."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node


def branch_nodes(node: Node) -> tuple[Node, ...]:
    """The `get_attr` nodes of a `torch.cond`'s branches, the true one first; none for other nodes."""
    if node.op != "call_function" or node.target is not torch.ops.higher_order.cond:
        return ()
    return tuple(each for each in node.args[1:3] if isinstance(each, Node) and each.op == "get_attr")


def inner_module(branch: Node) -> GraphModule:
    """The graph module that a `get_attr` node names."""
    owner = branch.graph.owning_module
    if owner is None:
        raise ValueError(f"{branch} belongs to no graph module")
    module = owner.get_submodule(str(branch.target))
    if not isinstance(module, GraphModule):
        raise TypeError(f"{branch} is a {type(module).__name__}, not a graph module")
    return module
