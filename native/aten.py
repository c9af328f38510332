"""A partition as an ATen program again, so that each specialization is lowered the way whole programs are."""

from __future__ import annotations

import copy

import torch
from torch._export.verifier import Verifier
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from .branches import branch_nodes, inner_module
from .constants import unshare
from .support import scalar_constant, unwrapped


def to_aten(partition: ExportedProgram) -> ExportedProgram:
    """The same program with operators out of their edge wrappers. Weights are shared, `partition` is not changed."""
    graph_module = _to_aten(partition.graph_module)
    program = ExportedProgram(
        root=graph_module,
        graph=graph_module.graph,
        graph_signature=partition.graph_signature,
        state_dict=partition.state_dict,
        range_constraints=partition.range_constraints,
        module_call_graph=partition.module_call_graph,
        constants=partition.constants,
        verifiers=[Verifier],
    )
    return unshare(program)


def _to_aten(graph_module: GraphModule) -> GraphModule:
    graph = copy.deepcopy(graph_module.graph)
    for node in list(graph.nodes):
        node.meta.pop("delegation_tag", None)
        if (constant := scalar_constant(graph_module, node)) is not None:
            _inline(node, constant)
        elif (operator := unwrapped(node)) is not None:
            node.target = operator
    copied = GraphModule(graph_module, graph)  # takes over what the graph names, and no constants any more
    for node in graph.nodes:
        for branch in branch_nodes(node):
            copied.set_submodule(str(branch.target), _to_aten(inner_module(branch)))
    return copied


def _inline(owned: Node, constant: torch.Tensor) -> None:
    """Makes the tensor where it is needed: branches that own tensors cannot be traced again."""
    with owned.graph.inserting_before(owned):
        made = owned.graph.call_function(torch.ops.aten.full.default, ([], constant.item()), {"dtype": constant.dtype})
    made.meta = dict(owned.meta)
    owned.replace_all_uses_with(made)
    owned.graph.erase_node(owned)
