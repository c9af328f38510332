"""Biases that make up for what rounded weights lose on average (Nagel et al., 2019, arXiv:1906.04721, section 4.2)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Interpreter, Node

from ..export.batch_norms import WITH_WEIGHTS
from ..results.quantization import CorrectedBias
from ..upstream.torch_export import add_constant

_BIAS = 2  # its position among the arguments
_LEAST = 0.01  # of the deviation of a layer's outputs; less than that changes nothing


def correct_biases(module: GraphModule, samples: Iterable[Sequence[Any]]) -> list[CorrectedBias]:
    """Adds to biases what rounded weights lose on average over samples; returns the layers where that is noticeable.

    Each layer is observed with the inputs that it has in floating point, so all of them are in one pass.

    Args:
        module: prepared by PT2E, with an observer for each weight that will be rounded. It is not calibrated.
        samples: flat inputs.
    """
    errors = dict(_errors(module))
    # by weight and bias, since an unrolled recurrent layer has several calls, for which PT2E copies biases
    layers: dict[tuple[Any, ...], list[Node]] = {}
    for node in errors:
        weight, *bias = (_value(module, value) for value in node.args[1 : _BIAS + 1] if value is not None)
        layers.setdefault((weight.data_ptr(), *(tuple(value.tolist()) for value in bias)), []).append(node)
    lost: dict[Node, list[Tensor]] = {node: [] for node in errors}
    moments: dict[Node, list[Tensor]] = {node: [] for node in errors}

    class Observing(Interpreter):  # type: ignore[misc]  # torch.fx is untyped here
        def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:  # noqa: ARG002 - the base's
            return args[0]  # which an observer would see

        def run_node(self, n: Node) -> Any:
            value = super().run_node(n)
            if n in errors:
                inputs, _, *rest = self.fetch_args_kwargs_from_env(n)[0]
                lost[n].append(_by_channel(n.target(inputs, errors[n], None, *rest[1:]), n).mean(1))
                values = _by_channel(value, n)
                moments[n].append(torch.stack([values.mean(1), values.square().mean(1)]))
            return value

    with torch.no_grad():
        for sample in samples:
            Observing(module).run(*sample, enable_io_processing=False)
    corrected = []
    for number, nodes in enumerate(layers.values()):
        shift = torch.stack([each for node in nodes for each in lost[node]]).mean(0)
        spread = _deviation(torch.stack([each for node in nodes for each in moments[node]]).mean(0))
        share = float((shift.abs() / spread).amax())
        if share > _LEAST:
            _subtract(module, nodes, shift, f"_corrected_bias_{number}")
            corrected.append(CorrectedBias(str(_attribute(nodes[0].args[1]).target).removesuffix(".weight"), share))
    module.recompile()
    return corrected


def _errors(module: GraphModule) -> Iterator[tuple[Node, Tensor]]:
    """Each layer whose weight will be rounded, and by how much."""
    for node in module.graph.nodes:
        if getattr(node.target, "overloadpacket", None) in WITH_WEIGHTS and node.args[1].op == "call_module":
            weight, *bias = (_attribute(value) for value in node.args[1 : _BIAS + 1] if value is not None)
            if all(value.op == "get_attr" for value in (weight, *bias)):  # and not computed from others
                value = _value(module, weight)
                yield node, _rounded(module.get_submodule(str(node.args[1].target)), value) - value


def _attribute(node: Node) -> Node:
    """A constant, which may have an observer."""
    return node.args[0] if node.op == "call_module" else node


def _value(module: GraphModule, node: Node) -> Tensor:
    value: Tensor = attrgetter(str(_attribute(node).target))(module)
    return value.detach()


def _rounded(observer: Any, weight: Tensor) -> Tensor:
    observer(weight)
    scale, zero = (value.to(weight.dtype) for value in observer.calculate_qparams())
    if scale.numel() > 1:
        shape = [1] * weight.dim()
        shape[observer.ch_axis] = -1
        scale, zero = scale.reshape(shape), zero.reshape(shape)
    integers = ((weight / scale).round() + zero).clamp(observer.quant_min, observer.quant_max)
    return (integers - zero) * scale


def _deviation(moments: Tensor) -> Tensor:
    """The deviation of values by channel, from their mean and that of their squares; a single value's magnitude."""
    mean, squares = moments
    deviation = (squares - mean.square()).clamp(min=0).sqrt()
    return deviation.where(deviation > 0, squares.sqrt()).clamp(min=1e-12)


def _by_channel(value: Tensor, node: Node) -> Tensor:
    """Values by output channel: [channels, others]."""
    after = _attribute(node.args[1]).meta["val"].dim() - 2  # dimensions of a kernel
    by_channel = value.float().movedim(value.dim() - after - 1, 0)
    return by_channel.reshape(len(by_channel), -1)  # of an unbatched linear layer, one each


def _subtract(module: GraphModule, nodes: Sequence[Node], shift: Tensor, name: str) -> None:
    """Gives the calls of a layer a bias of their own, smaller by a shift for each channel."""
    first = nodes[0]
    old = first.args[_BIAS] if len(first.args) > _BIAS else None
    before = _value(module, old) if old is not None else torch.zeros(())
    value = (before - shift).to(first.meta["val"].dtype)
    with module.graph.inserting_before(next(iter(module.graph.nodes))):
        constant = add_constant(module, name, nn.Parameter(value, requires_grad=False), like=first)
    for node in nodes:
        old = node.args[_BIAS] if len(node.args) > _BIAS else None
        if old is not None and old.op == "call_module":
            old.args = (constant,)
        else:
            node.args = (*node.args[:_BIAS], constant, *node.args[_BIAS + 1 :])
