"""Remainders of negative integers: ExecuTorch 1.5.1's runtime gives those of C++, which have the dividend's sign.

Of sizes: ``-length % 8``, as models say to pad to a multiple of eight, is traced as Python's remainder, which has the
divisor's sign. The runtime's operator (kernels/prim_ops/register_prim_ops.cpp) takes C++'s ``%``: the padding is a
negative number, and what comes after fails, or the process dies of a division by zero. Adding the divisor to a
remainder and taking the remainder again is the same in Python, and right with C++'s. Delete once the runtime floors.

Of tensors: the kernel of ``remainder`` (kernels/portable/cpu/op_remainder.cpp) does the same for integers, so that
``torch.tensor(-7) % 2`` is -1. Division that floors is right, and what it leaves is the remainder, also where a product
overflows. Delete `_floor_divide` once the kernel is right for ``torch.tensor([-7]) % 2``.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from executorch.exir.dialects._ops import ops
from torch.export import ExportedProgram

_DIVISIONS = {
    ops.edge.aten.remainder.Tensor: (ops.edge.aten.div.Tensor_mode, ops.edge.aten.mul.Tensor),
    ops.edge.aten.remainder.Scalar: (ops.edge.aten.div.Scalar_mode, ops.edge.aten.mul.Scalar),
}
"""Operators of remainders to those that divide and multiply."""


def floor_remainders(program: ExportedProgram) -> None:
    """Has remainders whose dividend may be negative come out as Python's, in place."""
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.find_nodes(op="call_function", target=operator.mod):
                dividend, divisor = node.args
                if _may_be_negative(dividend):
                    _add_and_take_again(module.graph, node, divisor)
            for target in _DIVISIONS:
                for node in module.graph.find_nodes(op="call_function", target=target):
                    if node.meta["val"].dtype.is_signed and not node.meta["val"].is_floating_point():
                        _floor_divide(module.graph, node)


def _may_be_negative(size: Any) -> bool:
    value = size.meta["val"] if isinstance(size, torch.fx.Node) else size
    if isinstance(value, torch.SymInt):
        return bool(value.node.shape_env.bound_sympy(value.node.expr).lower < 0)
    return bool(value < 0)


def _add_and_take_again(graph: torch.fx.Graph, remainder: torch.fx.Node, divisor: Any) -> None:
    value = divisor.meta["val"] if isinstance(divisor, torch.fx.Node) else divisor
    with graph.inserting_after(remainder):
        total = graph.call_function(operator.add, (remainder, divisor))
    with graph.inserting_after(total):
        floored = graph.call_function(operator.mod, (total, divisor))
    total.meta |= {**remainder.meta, "val": remainder.meta["val"] + value}
    floored.meta |= remainder.meta
    remainder.replace_all_uses_with(floored, delete_user_cb=lambda user: user is not total)


def _floor_divide(graph: torch.fx.Graph, remainder: torch.fx.Node) -> None:
    """Writes a remainder as what is left of the dividend."""
    dividend, divisor = remainder.args
    divide, multiply = _DIVISIONS[remainder.target]
    with graph.inserting_before(remainder):
        quotient = graph.call_function(divide, (dividend, divisor), {"rounding_mode": "floor"})
        product = graph.call_function(multiply, (quotient, divisor))
        left = graph.call_function(ops.edge.aten.sub.Tensor, (dividend, product))
    for node in (quotient, product, left):
        node.meta |= remainder.meta
    remainder.replace_all_uses_with(left)
    graph.erase_node(remainder)
