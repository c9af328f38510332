"""Recurrent layers as the linear layers that they compute with, for quantizers that know no others.

An LSTM is one operator of ATen, and quantizers leave it in floating point with all its matrices. Lowering takes it
apart later, step by step; here, that happens before the quantizer looks at the program. Only its matrices are
quantized: what gates compute stays in floating point, since an error there would grow from step to step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import linear
from torch.utils import _pytree as pytree
from torchao.quantization.pt2e.quantizer import QuantizationAnnotation
from torchao.quantization.pt2e.quantizer.quantizer import Q_ANNOTATION_KEY

_ATEN = torch.ops.aten
STEPS = "pteforge_steps"
"""Key of a node's metadata: linear layers with one value here are the steps of one layer, with one weight."""

_State = tuple[torch.Tensor, ...]
_Step = Callable[..., _State]
"""From what the input adds to the gates, the state, and the recurrent weight, bias and projection to the next state."""


def unroll_recurrent_layers(module: GraphModule) -> None:
    """Replaces recurrent layers and cells by their operators, with a linear layer for each matrix and step."""
    for node in list(module.graph.nodes):
        if node.target in _RECURRENT:
            _unroll(module.graph, node)
    module.recompile()


def _unroll(graph: Graph, node: Node) -> None:
    values, structure = pytree.tree_flatten((node.args, node.kwargs))
    nodes = [value for value in values if isinstance(value, Node)]

    def call(*tensors: torch.Tensor) -> Any:
        left = iter(tensors)
        flat = [next(left) if isinstance(value, Node) else value for value in values]
        args, kwargs = pytree.tree_unflatten(flat, structure)
        return _RECURRENT[node.target](*args, **kwargs)

    with torch.no_grad():
        traced = make_fx(call, pre_dispatch=True)(*(value.meta["val"] for value in nodes))
    copies = dict(zip(traced.graph.find_nodes(op="placeholder"), nodes, strict=True))
    with graph.inserting_before(node):
        for step in traced.graph.nodes:
            if step.op != "call_function":
                continue
            made = copies[step] = graph.node_copy(step, copies.__getitem__)
            made.meta = {**node.meta, "val": step.meta["val"]}
            if step.target is _ATEN.linear.default:
                made.meta[STEPS] = f"{node.name}, {made.args[1]}"
            else:
                made.meta[Q_ANNOTATION_KEY] = QuantizationAnnotation(_annotated=True)  # in floating point
    results = traced.graph.output_node().args[0]
    if isinstance(results, Node):
        node.replace_all_uses_with(copies[results])
    else:
        for user in list(node.users):
            user.replace_all_uses_with(copies[results[user.args[1]]])
            graph.erase_node(user)
    graph.erase_node(node)


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
            gates, made = linear(value, matrix, bias), {}
            for index in reversed(range(len(value))) if direction else range(len(value)):
                state = step(_cut(gates, 0, index, 1), state, recurrent, other, projection)
                made[index] = state[0]
            outputs.append(torch.cat([made[index] for index in range(len(value))]))
            last.append(state)
        value = torch.cat(outputs, -1) if bidirectional else outputs[0]
    finals = [torch.cat(each) for each in zip(*last, strict=True)]
    return (value.transpose(0, 1) if batch_first else value), *finals


def _cell(step: _Step, value: Any, state: Any, matrix: Any, recurrent: Any, bias: Any = None, other: Any = None) -> Any:
    """What an operator such as aten::lstm_cell computes."""
    (*made,) = step(
        linear(value, matrix, bias), [state] if isinstance(state, torch.Tensor) else state, recurrent, other
    )
    return made[0] if len(made) == 1 else tuple(made)


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
