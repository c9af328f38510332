"""Operators whose first operand is a number: ExecuTorch 1.5.1 knows few of them.

``17 % x`` is ``remainder.Scalar_Tensor``, which is no operator of the edge dialect and is not decomposed, so that
lowering fails with an error that says nothing. The number becomes a tensor without dimensions here. Delete an operator
once `to_edge` takes a program with it.
"""

from __future__ import annotations

import torch
from torch.export import ExportedProgram

_ATEN = torch.ops.aten
_OF_TENSORS = {
    _ATEN.remainder.Scalar_Tensor: _ATEN.remainder.Tensor,
    _ATEN.bitwise_and.Scalar_Tensor: _ATEN.bitwise_and.Tensor,
    _ATEN.bitwise_or.Scalar_Tensor: _ATEN.bitwise_or.Tensor,
    _ATEN.bitwise_xor.Scalar_Tensor: _ATEN.bitwise_xor.Tensor,
}


def take_numbers_as_tensors(program: ExportedProgram) -> None:
    """Gives such operators a tensor of the result's dtype as first operand, in place, also in submodules."""
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            nodes = [node for node in module.graph.nodes if node.target in _OF_TENSORS]
            for node in nodes:
                number, operand = node.args
                value = node.meta["val"]
                with module.graph.inserting_before(node):
                    made = module.graph.call_function(_ATEN.full.default, ([], number), {"dtype": value.dtype})
                made.meta = {**node.meta, "val": value.new_empty(())}
                node.target, node.args = _OF_TENSORS[node.target], (made, operand)
            if nodes:
                module.recompile()
