"""Products with weights as linear layers, for quantizers that know no others.

GPT-2's layers are `torch.addmm(bias, x, weight)`, Falcon's `x @ weight.T`. A linear layer computes the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter

import torch
from torch.fx import GraphModule, Node

_ATEN = torch.ops.aten
_PRODUCTS = (_ATEN.mm.default, _ATEN.matmul.default)
_SWAPS = {  # operators that transpose matrices, and their arguments after the matrix
    _ATEN.t.default: ((),),
    _ATEN.numpy_T.default: ((),),
    _ATEN.permute.default: (([1, 0],), ([-1, -2],)),
    _ATEN.transpose.int: ((0, 1), (1, 0), (-1, -2), (-2, -1)),
}


@dataclass(frozen=True, slots=True)
class _Product:
    """A product of a value and a parameter, or of a value and the parameter `transposed`, and a bias to add."""

    factor: Node
    weight: Node
    transposed: bool
    bias: Node | None = None


def write_as_linear(module: GraphModule) -> None:
    """Replaces products of matrices with parameters by linear layers; their weights are the parameters transposed."""
    weights = _Weights(module)
    for node in list(module.graph.nodes):
        if product := _product(node):
            with module.graph.inserting_before(node):
                weight = product.weight if product.transposed else weights.transposed(product.weight)
                arguments = (product.factor, weight, *([product.bias] if product.bias else []))
                linear = module.graph.call_function(_ATEN.linear.default, arguments)
            linear.meta = dict(node.meta)
            node.replace_all_uses_with(linear)
            module.graph.erase_node(node)
    module.graph.eliminate_dead_code()
    weights.delete_unused()
    module.recompile()


def _product(node: Node) -> _Product | None:
    if node.op != "call_function" or node.kwargs:
        return None
    if node.target == _ATEN.addmm.default and len(node.args) == 3:
        bias, factor, weight = node.args
    elif node.target in _PRODUCTS:
        bias, (factor, weight) = None, node.args
    else:
        return None
    named, transposed = weight, False
    if weight.op == "call_function" and weight.args[1:] in _SWAPS.get(weight.target, ()):
        named, transposed = weight.args[0], True
    if not _is_matrix(named) or (bias and not _fits(bias, weight)):
        return None
    return _Product(factor, named, transposed, bias)


def _is_matrix(node: Node) -> bool:
    """Whether a node is a matrix of weights, in floating point."""
    value = node.meta.get("val")
    return node.op == "get_attr" and value is not None and value.dim() == 2 and value.is_floating_point()


def _fits(bias: Node, weight: Node) -> bool:
    """Whether a linear layer takes the bias: one number for each column of the product."""
    value = bias.meta.get("val")
    return bias.op == "get_attr" and value is not None and value.shape == weight.meta["val"].shape[1:]


@dataclass
class _Weights:
    """The parameters of a module that become weights of linear layers, transposed."""

    module: GraphModule
    made: dict[str, str] = field(default_factory=dict)  # by name of a parameter, that of its transpose

    def transposed(self, weight: Node) -> Node:
        name = str(weight.target)
        if name not in self.made:
            self.made[name] = f"_transposed_{len(self.made)}"
            value = attrgetter(name)(self.module).detach().t().contiguous()
            self.module.register_parameter(self.made[name], torch.nn.Parameter(value, requires_grad=False))
        node = self.module.graph.get_attr(self.made[name])
        node.meta["val"] = weight.meta["val"].t()
        return node

    def delete_unused(self) -> None:
        used = {node.target for node in self.module.graph.nodes if node.op == "get_attr"}
        for name in self.made.keys() - used:
            owner, _, attribute = name.rpartition(".")
            delattr(self.module.get_submodule(owner), attribute)
