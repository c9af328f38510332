"""Results of ``cond`` that another control flow operator overwrites, in ExecuTorch 1.5.1.

Memory planning (exir/memory_planning.py, `_apply_algo_to_submodules`) gives the tensors of all branches and bodies of a
graph the same memory, which is right while they run. But the emitter (exir/emit/_emitter.py) has the result of ``cond``
refer to the branch's own tensor, so that the next control flow operator overwrites it. Two ``cond`` whose results are
added are enough. Here, results that are needed so long are copied. Delete once the emitter copies results of ``cond``,
or the planner keeps their memory.
"""

from __future__ import annotations

import operator
from itertools import pairwise

import torch
from executorch.exir.dialects._ops import ops
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node

_COND = torch.ops.higher_order.cond
_CONTROL_FLOW = (_COND, torch.ops.higher_order.map_impl, torch.ops.higher_order.scan)
_CLONE = ops.edge.dim_order_ops._clone_dim_order.default  # noqa: SLF001 - the operator's name
_VIEWS = (ops.edge.aten.view_copy.default,)  # which become views of the same memory


def copy_results_of_cond(program: ExportedProgram) -> None:
    """Copies the results of ``cond`` that are used by or after the next control flow operator, in place."""
    for module in program.graph_module.modules():
        if isinstance(module, GraphModule):
            _copy_results(module.graph)


def _copy_results(graph: Graph) -> None:
    flows = [node for node in graph.nodes if node.target in _CONTROL_FLOW]
    for node, later in pairwise(flows):
        if node.target is _COND:
            for result in [user for user in node.users if user.target is operator.getitem]:
                if isinstance(result.meta["val"], torch.Tensor) and _is_used_from(later, result):
                    node.append(result)  # it may stand behind the operator that overwrites it
                    _copy(result)


def _is_used_from(later: Node, value: Node) -> bool:
    return any(not user < later or (user.target in _VIEWS and _is_used_from(later, user)) for user in value.users)


def _copy(value: Node) -> None:
    with value.graph.inserting_after(value):
        copy = value.graph.call_function(_CLONE, (value,))
    copy.meta |= value.meta
    value.replace_all_uses_with(copy, delete_user_cb=lambda user: user is not copy)
