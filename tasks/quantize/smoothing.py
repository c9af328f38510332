"""Scales that are moved between the inputs and the weights of a layer, so that both lose less when they are rounded.

The method is SmoothQuant (Xiao et al., 2023, arXiv:2211.10438), with a strength for each layer, found as AWQ does it
(Lin et al., 2024, arXiv:2306.00978): by what integers make of the layer's outputs on samples. A layer computes the same
in floating point: its inputs are divided by what its weights are multiplied with. If a norm or a layer comes before it,
also with a ReLU, its weights are divided (as in cross-layer equalization, Nagel et al., 2019, arXiv:1906.04721); else
there is an operator more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Interpreter, Node

from ..results.quantization import SmoothedLayer
from ..upstream.torch_export import add_constant, call_operator

_ATEN = torch.ops.aten
_LINEAR, _CONV = _ATEN.linear.default, _ATEN.conv2d.default
_STRENGTHS = (0.25, 0.5, 0.75)
_GAIN = 0.8  # share of the squared error that is left, above which a layer stays as it is
_ROWS = 512  # of a layer's inputs that are tried
_PREFIX = "_smoothing_"


@dataclass(frozen=True)
class _Layers:
    """Layers with the same inputs, with names of their weights."""

    inputs: tuple[Node, ...]
    users: tuple[Node, ...]
    weights: tuple[str, ...]

    @property
    def convolves(self) -> bool:
        return self.users[0].target is _CONV


def smooth(
    module: GraphModule, samples: Iterable[Sequence[Any]], *, by_row: bool, leaves: Callable[[Node], bool]
) -> tuple[list[SmoothedLayer], list[Node]]:
    """Moves scales in a module where that makes a layer's outputs more exact; returns which, and the operators added.

    Args:
        module: calls ATen operators.
        samples: flat inputs.
        by_row: whether inputs get a scale for each row when they come, and not one for all of them.
        leaves: whether an operator is not quantized.
    """
    found = list(_layers(module, leaves))
    smoothed, added = list[SmoothedLayer](), list[Node]()
    for number, (layers, inputs) in enumerate(zip(found, _rows(module, found, samples), strict=True)):
        weights = [module.get_parameter(name).detach() for name in layers.weights]
        losses = {0.0: _loss(inputs, weights, torch.ones(()), by_row=by_row)}
        scales = {strength: _scale(inputs, weights, strength) for strength in _STRENGTHS}
        losses |= {strength: _loss(inputs, weights, scale, by_row=by_row) for strength, scale in scales.items()}
        best = min(losses, key=lambda strength: losses[strength])
        if losses[best] < _GAIN * losses[0.0]:
            added += _move(module, layers, scales[best], f"{_PREFIX}{number}")
            left = losses[best] / losses[0.0]
            smoothed += [SmoothedLayer(name.removesuffix(".weight"), left) for name in layers.weights]
    module.recompile()
    return smoothed, added


def _layers(module: GraphModule, leaves: Callable[[Node], bool]) -> Iterator[_Layers]:
    """Layers whose weights nothing else uses, by their inputs."""
    users: dict[str, list[Node]] = {}
    for node in module.graph.nodes:
        if node.op == "get_attr":
            users.setdefault(str(node.target), []).extend(node.users)
    parameters = dict(module.named_parameters())
    groups: dict[tuple[Any, ...], list[tuple[str, list[Node]]]] = {}
    for name, nodes in users.items():
        if name in parameters and all(_takes(node, name) and not leaves(node) for node in nodes):
            inputs = tuple(dict.fromkeys(node.args[0] for node in nodes))
            form = [node.args[3:6] for node in nodes[:1] if node.target is _CONV]
            groups.setdefault((inputs, nodes[0].target, str(form), parameters[name].shape[1:]), []).append(
                (name, nodes)
            )
    for (inputs, *_), members in groups.items():
        yield _Layers(inputs, tuple(node for _, nodes in members for node in nodes), tuple(name for name, _ in members))


def _takes(node: Node, name: str) -> bool:
    """Whether it is a layer with this weight, whose inputs may be scaled by channel."""
    if node.target not in (_LINEAR, _CONV) or node.args[1].target != name or isinstance(node.args[0], str):
        return False
    value = node.args[0].meta.get("val")
    if value is None or node.args[0].op == "get_attr":
        return False
    groups = node.args[6] if len(node.args) > 6 else 1
    return value.dim() == 4 and groups == 1 if node.target is _CONV else value.dim() > 1


def _rows(module: GraphModule, found: Sequence[_Layers], samples: Iterable[Sequence[Any]]) -> list[Tensor]:
    """Some of the inputs of layers, a row for each output: [rows, features]."""
    taken: dict[Node, list[int]] = {}
    for position, layers in enumerate(found):
        for node in layers.inputs:
            taken.setdefault(node, []).append(position)
    rows: list[list[Tensor]] = [[] for _ in found]

    class Observing(Interpreter):  # type: ignore[misc]  # torch.fx is untyped here
        def run_node(self, n: Node) -> Any:
            value = super().run_node(n)
            for position in taken.get(n, ()):
                rows[position].append(_some(_as_rows(value.float(), found[position]), _ROWS))
            return value

    with torch.no_grad():
        for sample in samples:
            Observing(module).run(*sample, enable_io_processing=False)
    return [_some(torch.cat(parts), _ROWS) for parts in rows]


def _as_rows(value: Tensor, layers: _Layers) -> Tensor:
    if not layers.convolves:
        return value.flatten(0, -2)
    arguments, defaults = layers.users[0].args, ([1, 1], [0, 0], [1, 1])
    form = [*arguments[3:6], *defaults[max(0, len(arguments) - 3) :]]
    stride, padding, dilation = form
    kernel = arguments[1].meta["val"].shape[2:]
    patches = nn.functional.unfold(value, tuple(kernel), dilation, padding, stride)
    return patches.transpose(1, 2).flatten(0, 1)


def _some(rows: Tensor, most: int) -> Tensor:
    """Evenly spaced rows."""
    return rows[:: max(1, -(-len(rows) // most))]


def _scale(inputs: Tensor, weights: Sequence[Tensor], strength: float) -> Tensor:
    """What weights are multiplied with, by channel of the inputs: large where inputs are."""
    channels = weights[0].shape[1]
    of_inputs = inputs.abs().amax(0).reshape(channels, -1).amax(1)
    of_weights = torch.stack([weight.float().abs().transpose(0, 1).flatten(1).amax(1) for weight in weights]).amax(0)
    used = (of_inputs > 0) & (of_weights > 0)
    scale = torch.where(used, of_inputs**strength / of_weights ** (1 - strength), torch.nan)
    middle = scale[used].log().mean().exp() if used.any() else torch.tensor(1.0)
    return (scale / middle).nan_to_num(1.0).clamp(1e-4, 1e4)


def _loss(inputs: Tensor, weights: Sequence[Tensor], scale: Tensor, *, by_row: bool) -> float:
    """The squared error of outputs whose inputs and weights are rounded to eight bits."""
    loss = 0.0
    for weight in weights:
        matrix = weight.float().flatten(1)
        across = scale.repeat_interleave(matrix.shape[1] // len(scale)) if scale.dim() else scale
        scaled = matrix * across
        step = scaled.abs().amax(1, keepdim=True).clamp(min=1e-12) / 127
        rounded = (scaled / step).round() * step
        loss += float((_rounded(inputs / across, by_row=by_row) @ rounded.T - inputs @ matrix.T).square().sum())
    return loss


def _rounded(values: Tensor, *, by_row: bool) -> Tensor:
    lowest, highest = (values.amin(1, True), values.amax(1, True)) if by_row else (values.amin(), values.amax())
    lowest, highest = lowest.clamp(max=0), highest.clamp(min=0)
    step = ((highest - lowest) / 255).clamp(min=1e-12)
    zero = (-lowest / step).round()
    return ((values / step + zero).round().clamp(0, 255) - zero) * step


def _move(module: GraphModule, layers: _Layers, scale: Tensor, name: str) -> list[Node]:
    """Multiplies weights, and divides inputs; returns the operators that do."""
    for weight in layers.weights:
        path, _, last = weight.rpartition(".")
        owner = module.get_submodule(path)
        old = owner.get_parameter(last)
        shaped = scale.reshape(1, -1, *([1] * (old.dim() - 2))).to(old.dtype)
        setattr(owner, last, nn.Parameter(old.detach() * shaped, requires_grad=False))
    added = []
    for number, value in enumerate(layers.inputs):
        if not _divide_before(module, value, layers, scale):
            divided = _divided(module, value, layers, scale, f"{name}_{number}")
            added.append(divided)
            for user in layers.users:
                if user.args[0] is value:
                    user.update_arg(0, divided)
    return added


def _divided(module: GraphModule, value: Node, layers: _Layers, scale: Tensor, name: str) -> Node:
    factor = (1 / scale).to(value.meta["val"].dtype).reshape(-1, *([1, 1] if layers.convolves else []))
    with module.graph.inserting_after(value):
        constant = add_constant(module, name, factor, like=value)
    with module.graph.inserting_after(constant):
        divided = call_operator(module.graph, _ATEN.mul.Tensor, value, constant)
    divided.meta = {**layers.users[0].meta, "val": divided.meta["val"]}
    return divided


def _divide_before(module: GraphModule, value: Node, layers: _Layers, scale: Tensor) -> bool:
    """Divides the weights of what computes a value, if nothing else takes the value or these weights."""
    weights = _weights_before(value, {*layers.users}, layers.users[0].target) if len(layers.inputs) == 1 else []
    parameters = dict(module.named_parameters())
    uses = Counter(str(node.target) for node in module.graph.nodes if node.op == "get_attr" for _ in node.users)
    names = [str(node.target) for node in weights]
    if not names or any(uses[name] > 1 or len(parameters.get(name, ())) != len(scale) for name in names):
        return False
    for name in names:
        path, _, last = name.rpartition(".")
        old = parameters[name].detach()
        divided = old / scale.reshape(-1, *([1] * (old.dim() - 1))).to(old.dtype)
        setattr(module.get_submodule(path), last, nn.Parameter(divided, requires_grad=False))
    return True


def _weights_before(value: Node, users: Collection[Node], layer: object) -> list[Node]:
    """Weights and biases by channel of the norm or the layer that computes a value, also with a ReLU after it.

    Channels are where the operator `layer` has them.
    """
    if not {*value.users} <= {*users}:
        return []
    if value.target is _ATEN.relu.default:
        return _weights_before(value.args[0], [value], layer)
    weights: list[Any] = []
    if value.target is layer:
        weights = [*value.args[1:3]]
    elif value.target is _ATEN.layer_norm.default and layer is _LINEAR:
        weights = [*value.args[2:4]] if len(value.args[1]) == 1 else []
    elif value.target is _ATEN.mul.Tensor:
        factors = [node for node in value.args if isinstance(node, Node)]
        of_norm = [node for node in factors if node.op == "get_attr"]  # the end of a norm without a mean
        if of_norm and layer is _LINEAR:
            weights = [node for node in of_norm if node.meta["val"].dim() == 1]
        elif not of_norm:
            whole = (node for node in factors if node.meta["val"].shape == value.meta["val"].shape)
            weights = next(filter(None, (_weights_before(node, [value], layer) for node in whole)), [])
    weights = [weight for weight in weights if weight is not None]
    return weights if all(weight.op == "get_attr" for weight in weights) else []
