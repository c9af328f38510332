"""Products with weights and recurrent layers as linear layers, for quantizers that know no others.

GPT-2's layers are `torch.addmm(bias, x, weight)`, Falcon's `x @ weight.T`, XLNet's `torch.einsum("ibh,hnd->ibnd", x,
weight)`. A linear layer computes the same.

An LSTM is one operator of ATen, and quantizers leave it in floating point with all its matrices. Lowering takes it
apart later, step by step; here, that happens before the quantizer looks at the program. Only its matrices are
quantized: what gates compute stays in floating point, since an error there would grow from step to step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.nn.functional import linear
from torchao.quantization.pt2e.quantizer import QuantizationAnnotation
from torchao.quantization.pt2e.quantizer.quantizer import Q_ANNOTATION_KEY

from ..upstream.torch_export import STEPS, call_operator, inline

_ATEN = torch.ops.aten
_PRODUCTS = (_ATEN.mm.default, _ATEN.matmul.default)
_EINSUM, _TENSORDOT = _ATEN.einsum.default, _ATEN.tensordot.default
TRANSPOSED = "transposed_"
"""Prefix of the names of weights that are made of others, where dots are underscores."""

SWAPS = {  # operators that transpose matrices, and their arguments after the matrix
    _ATEN.t.default: ((),),
    _ATEN.numpy_T.default: ((),),
    _ATEN.mT.default: ((),),
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


_Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Contraction:
    """A sum of products of a value and a parameter, with a label for each dimension, as `torch.einsum` has them."""

    factor: Node
    weight: Node
    of_factor: _Labels
    of_weight: _Labels
    of_result: _Labels

    @property
    def summed(self) -> _Labels:
        return tuple(label for label in self.of_weight if label in self.of_factor)

    @property
    def added(self) -> _Labels:
        return tuple(label for label in self.of_weight if label not in self.of_factor)

    @property
    def kept(self) -> _Labels:
        return tuple(label for label in self.of_factor if label not in self.of_weight)

    @property
    def is_linear(self) -> bool:
        """Whether a linear layer computes it: each dimension of the weight is either summed or new in the result."""
        labels = (self.of_factor, self.of_weight, self.of_result)
        distinct = all(len(set(each)) == len(each) and "." not in each for each in labels)
        complete = {*self.kept, *self.added} == set(self.of_result)
        return distinct and complete and all((self.summed, self.added, self.kept))


def write_as_linear(module: GraphModule) -> None:
    """Replaces products of values with parameters by linear layers; their weights are the parameters transposed."""
    weights = _Weights(module)
    for node in list(module.graph.nodes):
        with module.graph.inserting_before(node):
            if contraction := _contraction(node):
                linear = _contract(module.graph, contraction, weights)
                linear.meta = {**node.meta, "val": linear.meta["val"]}
            elif product := _product(node):
                weight = product.weight if product.transposed else weights.transposed(product.weight)
                arguments = (product.factor, weight, *([product.bias] if product.bias else []))
                linear = module.graph.call_function(_ATEN.linear.default, arguments)
                linear.meta = dict(node.meta)
            else:
                continue
        node.replace_all_uses_with(linear)
        module.graph.erase_node(node)
    module.graph.eliminate_dead_code()
    weights.delete_unused()
    module.recompile()


def _contraction(node: Node) -> _Contraction | None:
    operands, result = _labelled(node)
    for (factor, of_factor), (weight, of_weight) in (operands, operands[::-1]) if operands else ():
        value = weight.meta.get("val")
        if weight.op == "get_attr" and factor.op != "get_attr" and value is not None and value.is_floating_point():
            contraction = _Contraction(factor, weight, of_factor, of_weight, result)
            return contraction if contraction.is_linear else None
    return None


def _labelled(node: Node) -> tuple[list[tuple[Node, _Labels]], _Labels]:
    """Both operands and the result of a contraction with the labels of their dimensions; nothing for other nodes."""
    if node.target is _EINSUM and len(node.args[1]) == 2:
        given, _, result = str(node.args[0]).replace(" ", "").partition("->")
        return list(zip(node.args[1], map(tuple, given.split(",")), strict=True)), tuple(result)
    if node.target is _TENSORDOT and len(node.args) == 4:
        one, other, of_one, of_other = node.args
        first, second = _fresh("a", one), _fresh("b", other)
        for index, position in zip(of_one, of_other, strict=True):
            second[position] = first[index]
        labels = [*first, *second]
        return [(one, (*first,)), (other, (*second,))], tuple(label for label in labels if labels.count(label) == 1)
    if node.target in _PRODUCTS and node.args[1].meta["val"].dim() > 1:
        matrix, transposed = _untransposed(node.args[0])
        *batch, middle, last = _fresh("a", node.args[1])
        of_matrix = (middle, "row") if transposed else ("row", middle)
        if _is_matrix(matrix):
            return [(matrix, of_matrix), (node.args[1], (*batch, middle, last))], (*batch, "row", last)
    return [], ()


def _fresh(prefix: str, node: Node) -> list[str]:
    return [f"{prefix}{dimension}" for dimension in range(node.meta["val"].dim())]


def _contract(graph: Graph, product: _Contraction, weights: _Weights) -> Node:
    """The value of a contraction, by a linear layer."""
    sizes = dict(zip(product.of_weight, product.weight.meta["val"].shape, strict=True))
    value = _permuted(graph, product.factor, product.of_factor, product.kept + product.summed)
    if len(product.summed) > 1:
        value = call_operator(graph, _ATEN.flatten.using_ints, value, len(product.kept), -1)
    value = call_operator(graph, _ATEN.linear.default, value, weights.as_matrix(product))
    if len(product.added) > 1:
        parts = [sizes[label] for label in product.added]
        value = call_operator(graph, _ATEN.unflatten.int, value, len(product.kept), parts)
    return _permuted(graph, value, product.kept + product.added, product.of_result)


def _permuted(graph: Graph, value: Node, labels: _Labels, wanted: _Labels) -> Node:
    order = [labels.index(label) for label in wanted]
    return value if labels == wanted else call_operator(graph, _ATEN.permute.default, value, order)


def _product(node: Node) -> _Product | None:
    if node.op != "call_function" or node.kwargs:
        return None
    if node.target == _ATEN.addmm.default and len(node.args) == 3:
        bias, factor, weight = node.args
    elif node.target in _PRODUCTS:
        bias, (factor, weight) = None, node.args
    else:
        return None
    named, transposed = _untransposed(weight)
    if not _is_matrix(named) or (bias and not _fits(bias, weight)):
        return None
    return _Product(factor, named, transposed, bias)


def _untransposed(matrix: Node) -> tuple[Node, bool]:
    """What a node transposes, any number of times, and whether the node has rows for its columns."""
    transposed = False
    while matrix.op == "call_function" and matrix.args[1:] in SWAPS.get(matrix.target, ()):
        matrix, transposed = matrix.args[0], not transposed
    return matrix, transposed


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
    made: dict[str, str] = field(default_factory=dict)  # by parameter and how it is transposed, the name of the result
    replaced: set[str] = field(default_factory=set)

    def transposed(self, weight: Node) -> Node:
        return self._made(str(weight.target), weight, lambda value: value.t())

    def as_matrix(self, product: _Contraction) -> Node:
        """A row for each result of a contraction, a column for each summand."""
        order = [product.of_weight.index(label) for label in product.added + product.summed]
        rows = len(product.added)
        key = f"{product.weight.target}, {order}, {rows}"
        return self._made(key, product.weight, lambda value: value.permute(order).flatten(rows).flatten(0, -2))

    def _made(self, key: str, weight: Node, change: Callable[[torch.Tensor], torch.Tensor]) -> Node:
        self.replaced.add(str(weight.target))
        if key not in self.made:
            name = f"{TRANSPOSED}{str(weight.target).replace('.', '_')}"
            self.made[key] = name if name not in self.made.values() else f"{name}_{len(self.made)}"
            value = change(attrgetter(str(weight.target))(self.module).detach()).contiguous()
            self.module.register_parameter(self.made[key], torch.nn.Parameter(value, requires_grad=False))
        node = self.module.graph.get_attr(self.made[key])
        node.meta["val"] = change(weight.meta["val"])
        return node

    def delete_unused(self) -> None:
        used = {node.target for node in self.module.graph.nodes if node.op == "get_attr"}
        for name in self.replaced - used:
            owner, _, attribute = name.rpartition(".")
            delattr(self.module.get_submodule(owner), attribute)


_State = tuple[torch.Tensor, ...]
_Step = Callable[..., _State]
"""Makes the next state of what the input adds to the gates, the state, and recurrent weight, bias and projection."""


def unroll_recurrent_layers(module: GraphModule) -> None:
    """Replaces recurrent layers and cells by their operators, with a linear layer for each matrix and step."""
    for node in list(module.graph.nodes):
        if node.target in _RECURRENT:
            for inlined in inline(module.graph, node, _RECURRENT[node.target]):
                if inlined.target is _ATEN.linear.default:
                    inlined.meta[STEPS] = f"{node.name}, {inlined.args[1]}"
                else:
                    inlined.meta[Q_ANNOTATION_KEY] = QuantizationAnnotation(_annotated=True)  # in floating point
    module.recompile()


def _layers(  # noqa: PLR0913, PLR0917 - as the operators have them
    step: _Step,
    value: torch.Tensor,
    states: Sequence[torch.Tensor] | torch.Tensor,
    weights: Sequence[torch.Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, ...]:
    """What an operator such as aten::lstm.input computes, without dropout: models are exported for inference."""
    del dropout, train
    value = value.transpose(0, 1) if batch_first else value
    states = [states] if isinstance(states, torch.Tensor) else states
    directions = 1 + bidirectional
    count, last = len(weights) // (layers * directions), []
    for layer in range(layers):
        outputs = []
        for direction in range(directions):
            position = layer * directions + direction
            matrix, *rest = weights[position * count : (position + 1) * count]
            recurrent, bias, other = (rest[0], *rest[1:3]) if has_biases else (rest[0], None, None)
            projection = rest[-1] if len(rest) % 2 == 0 else None
            state = tuple(_cut(each, 0, position, 1) for each in states)
            gates, hidden = linear(value, matrix, bias), {}
            for index in reversed(range(len(value))) if direction else range(len(value)):
                state = step(_cut(gates, 0, index, 1), state, recurrent, other, projection)
                hidden[index] = state[0]
            outputs.append(torch.cat([hidden[index] for index in range(len(value))]))
            last.append(state)
        value = torch.cat(outputs, -1) if bidirectional else outputs[0]
    finals = [torch.cat(each) for each in zip(*last, strict=True)]
    return (value.transpose(0, 1) if batch_first else value), *finals


def _cell(step: _Step, value: Any, state: Any, matrix: Any, recurrent: Any, bias: Any = None, other: Any = None) -> Any:
    """What an operator such as aten::lstm_cell computes."""
    states = [state] if isinstance(state, torch.Tensor) else state
    after = step(linear(value, matrix, bias), states, recurrent, other)
    return after[0] if len(after) == 1 else after


def _lstm(gates: Any, state: Any, weight: Any, bias: Any, projection: Any = None) -> _State:
    hidden, cell = state
    entered, kept, new, shown = _split(gates + linear(hidden, weight, bias), 4)
    cell = kept.sigmoid() * cell + entered.sigmoid() * new.tanh()
    hidden = shown.sigmoid() * cell.tanh()
    return (hidden if projection is None else linear(hidden, projection)), cell


def _gru(gates: Any, state: Any, weight: Any, bias: Any, projection: Any = None) -> _State:
    del projection  # has none
    (hidden,) = state
    (reset, update, new), ours = _split(gates, 3), _split(linear(hidden, weight, bias), 3)
    new = (new + ours[2] * (reset + ours[0]).sigmoid()).tanh()
    return ((hidden - new) * (update + ours[1]).sigmoid() + new,)


def _rnn(activation: Any, gates: Any, state: Any, weight: Any, bias: Any, projection: Any = None) -> _State:
    del projection  # has none
    return (activation(gates + linear(state[0], weight, bias)),)


def _cut(value: torch.Tensor, dimension: int, start: int, size: int) -> torch.Tensor:
    """Part of a tensor, by the operator that backends take."""
    part: torch.Tensor = _ATEN.slice.Tensor(value, dimension, start, start + size)
    return part


def _split(value: torch.Tensor, parts: int) -> list[torch.Tensor]:
    size = value.shape[-1] // parts
    return [_cut(value, value.dim() - 1, part * size, size) for part in range(parts)]


_STEPS: dict[str, _Step] = {
    "lstm": _lstm,
    "gru": _gru,
    "rnn_tanh": partial(_rnn, torch.tanh),
    "rnn_relu": partial(_rnn, torch.relu),
}
_RECURRENT: dict[Any, Callable[..., Any]] = {
    **{getattr(_ATEN, name).input: partial(_layers, step) for name, step in _STEPS.items()},
    **{getattr(_ATEN, f"{name}_cell").default: partial(_cell, step) for name, step in _STEPS.items()},
}
