"""Biases that make up for what rounded weights lose on average (Nagel et al., 2019, arXiv:1906.04721, section 4.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Interpreter, Node

from ..export.batch_norms import WITH_WEIGHTS
from ..results.quantization import CorrectedBias

_BIAS = 2  # its position among the arguments
_LARGEST = 127
_LEAST = 0.01  # of the deviation of a layer's outputs; less than that changes nothing


def correct_biases(
    module: GraphModule, samples: Iterable[Sequence[Any]], *, per_channel: bool, leaves: Callable[[Node], bool]
) -> list[CorrectedBias]:
    """Adds to biases what int8 weights lose on average over samples; returns the layers where that is noticeable.

    Each layer is observed with the inputs that it has in floating point, so all of them are in one pass.

    Args:
        module: calls ATen operators.
        samples: flat inputs.
        per_channel: whether each output channel of a weight has a scale of its own.
        leaves: whether an operator is not quantized.
    """
    layers = list(_layers(module, leaves))
    lost: dict[Node, list[Tensor]] = {node: [] for node in layers}
    spread: dict[Node, list[Tensor]] = {node: [] for node in layers}

    class Observing(Interpreter):  # type: ignore[misc]  # torch.fx is untyped here
        def run_node(self, n: Node) -> Any:
            value = super().run_node(n)
            if n in lost:
                inputs, weight, *rest = self.fetch_args_kwargs_from_env(n)[0]
                error = n.target(inputs, _rounded(weight, n, per_channel=per_channel) - weight, None, *rest[1:])
                lost[n].append(_by_channel(error, n).mean(1))
                spread[n].append(_by_channel(value, n).std(1))
            return value

    with torch.no_grad():
        for sample in samples:
            Observing(module).run(*sample, enable_io_processing=False)
    corrected = []
    for number, node in enumerate(layers):
        shift = torch.stack(lost[node]).mean(0)
        share = float((shift.abs() / torch.stack(spread[node]).mean(0).clamp(min=1e-12)).amax())
        if share > _LEAST:
            _subtract(module, node, shift, f"_corrected_bias_{number}")
            corrected.append(CorrectedBias(str(node.args[1].target).removesuffix(".weight"), share))
    module.recompile()
    return corrected


def _layers(module: GraphModule, leaves: Callable[[Node], bool]) -> Iterator[Node]:
    parameters = dict(module.named_parameters())
    for node in module.graph.nodes:
        if getattr(node.target, "overloadpacket", None) in WITH_WEIGHTS and not leaves(node):
            weight, *bias = node.args[1 : _BIAS + 1]
            fixed = [value for value in (weight, *bias) if value is not None]
            if all(value.op == "get_attr" and str(value.target) in parameters for value in fixed):
                yield node


def _rounded(weight: Tensor, node: Node, *, per_channel: bool) -> Tensor:
    transposed = "transpose" in str(node.target)
    rest = [axis for axis in range(weight.dim()) if axis != transposed] if per_channel else list(range(weight.dim()))
    step = weight.abs().amax(rest, keepdim=True).clamp(min=1e-12) / _LARGEST
    return (weight / step).round() * step


def _by_channel(value: Tensor, node: Node) -> Tensor:
    """Values by output channel: [channels, others]."""
    after = node.args[1].meta["val"].dim() - 2  # dimensions of a kernel
    return value.float().movedim(value.dim() - after - 1, 0).flatten(1)


def _subtract(module: GraphModule, node: Node, shift: Tensor, name: str) -> None:
    """Gives the layer a bias of its own, smaller by a shift for each channel."""
    old = node.args[_BIAS] if len(node.args) > _BIAS else None
    before = module.get_parameter(str(old.target)) if old is not None else torch.zeros(())
    bias = (before.detach() - shift).to(module.get_parameter(str(node.args[1].target)).dtype)
    module.register_parameter(name, nn.Parameter(bias, requires_grad=False))
    with module.graph.inserting_before(node):
        constant = module.graph.get_attr(name)
    constant.meta["val"] = node.meta["val"].fake_mode.from_tensor(bias, static_shapes=True)
    node.args = (*node.args[:_BIAS], constant, *node.args[_BIAS + 1 :])
