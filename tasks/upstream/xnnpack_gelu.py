"""XNNPACK of executorch 1.5.1 computes ``gelu(approximate="tanh")`` without the approximation.

`GeluVisitor` (backends/xnnpack/operators/op_gelu.py) does not look at the argument, so that outputs of GPT-2, SigLIP or
Gemma agree to some 75 dB only. Here, a pass writes it with operators that XNNPACK has. ``(1 + tanh(u)) / 2`` is
``sigmoid(2u)``, so ``gelu(x)`` is ``x * sigmoid(x * (a + b * x * x))``. Delete once the visitor refuses the argument or
knows it.
"""

from __future__ import annotations

import math
from functools import wraps
from typing import Any

import torch
from executorch.backends.transforms.utils import create_constant_placeholder
from executorch.backends.xnnpack._passes import XNNPACKPassManager
from executorch.backends.xnnpack._passes.convert_to_linear import ConvertToLinearPass
from executorch.backends.xnnpack._passes.xnnpack_pass import XNNPACKPass
from executorch.exir.dialects._ops import ops
from torch.export.graph_signature import InputKind
from torch.fx import GraphModule, Node
from torch.fx.passes.infra.pass_base import PassResult

_GELU, _MUL, _ADD, _SIGMOID = (
    ops.edge.aten.gelu.default,
    ops.edge.aten.mul.Tensor,
    ops.edge.aten.add.Tensor,
    ops.edge.aten.sigmoid.default,
)
_FACTOR = 2 * math.sqrt(2 / math.pi)
_COEFFICIENTS = {"gelu_linear": _FACTOR, "gelu_cubic": _FACTOR * 0.044715}
_upstream = XNNPACKPassManager.__init__


class ExpandTanhGelu(XNNPACKPass):  # type: ignore[misc]  # executorch is untyped here
    """Writes the approximation as products, a sum and a sigmoid."""

    def call(self, module: GraphModule) -> PassResult:
        found = [node for node in module.graph.find_nodes(op="call_function", target=_GELU) if is_approximate(node)]
        if not found:
            return PassResult(module, modified=False)
        linear, cubic = (self._constant(module, name, value) for name, value in _COEFFICIENTS.items())
        for node in found:
            _expand(node, linear, cubic)
        module.recompile()
        return PassResult(super().call(module).graph_module, modified=True)

    def _constant(self, module: GraphModule, name: str, value: float) -> Node:
        first = next(iter(module.graph.nodes))
        with module.graph.inserting_before(first):
            made: Node = create_constant_placeholder(
                exp_program=self.exported_program,
                graph=module.graph,
                kind=InputKind.PARAMETER,
                name=name,
                data=torch.tensor([value]),
            )
        return made


def is_approximate(node: Node) -> bool:
    """Whether a GELU is the approximation by ``tanh``."""
    return bool(node.kwargs.get("approximate", "none") == "tanh")


def _expand(node: Node, linear: Node, cubic: Node) -> None:
    x: Any = node.args[0]
    graph = node.graph
    with graph.inserting_before(node):
        made = graph.call_function(_MUL, (x, x))
        steps = [made]
        for target, other in ((_MUL, cubic), (_ADD, linear), (_MUL, x), (_SIGMOID, None), (_MUL, x)):
            made = graph.call_function(target, (made,) if other is None else (made, other))
            steps.append(made)
    for step in steps:
        step.meta = node.meta.copy()
    node.replace_all_uses_with(made)
    graph.erase_node(node)


@wraps(_upstream)
def _with_pass(manager: Any, *args: Any, **options: Any) -> None:
    _upstream(manager, *args, **options)
    if ConvertToLinearPass in manager.passes[1:]:  # all passes, and not a choice of them
        manager.passes.insert(manager.passes.index(ConvertToLinearPass), ExpandTanhGelu)


def expand_tanh_gelu() -> None:
    """Applies the patch, for the rest of the process. Idempotent."""
    XNNPACKPassManager.__init__ = _with_pass
