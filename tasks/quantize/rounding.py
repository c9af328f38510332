"""Weights rounded by what that does to samples, and not each to its nearest number.

The method is GPTQ (Frantar et al., 2022, arXiv:2210.17323): what rounding one column of a weight leaves out, the
columns after it make up for, as far as the layer's inputs depend on each other. torchao quantizes a layer as it does in
any case; then its scales are chosen anew, those with the least squared error where inputs are large, and its integers.
Bytes and kernels are the same. torchao's own GPTQ (prototype/gptq of 0.18) makes tensors that ExecuTorch cannot export.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torchao.quantization import IntxUnpackedToInt8Tensor

from ...artifacts.local_store import LocalStore
from ...artifacts.ref import ArtifactRef
from ...configs.model import MethodDefinition, ModelDefinition
from ...errors import SourceError
from ..export.eager import Call, as_traced
from ..programs.values import load_values
from ..upstream.compat import pytree
from ..usercode.model_source import user_code_error
from ..usercode.modules import copy_modules

_DAMPING = 0.01  # added to second moments, as a share of their mean
_COLUMNS = 128  # that are rounded before the rest of a weight makes up for them
_FACTORS = (1.0, *(0.38 + 0.02 * step for step in range(40)))  # of torchao's scales, that are tried
_MEMORY = 1 << 30  # bytes of second moments at a time
_OFF = 0.04  # of a step, by which numbers of a grid may be off it
_LEAST_GROUP = 16  # weights that are not on a grid by chance
_COMPARED = 16  # rows of a weight
_FEWEST = 2  # integers; weights with no more of them are constants, or masks


@dataclass(frozen=True)
class ObservedCalls:
    """Calls of a model's methods in floating point, in which its layers are observed.

    Attributes:
        modules: by method.
        samples: by method, what returns the arguments of the calls, again each time.
        identity: JSON that tells these calls from others.
    """

    modules: Mapping[str, nn.Module]
    samples: Mapping[str, Callable[[], Iterable[Call]]]
    identity: Sequence[Any]

    def in_place_of(self, module: nn.Module, other: nn.Module) -> ObservedCalls:
        """The calls of one module, of another one that computes the same."""
        methods = [method for method, own in self.modules.items() if own is module]
        samples = {method: self.samples[method] for method in methods}
        return ObservedCalls(dict.fromkeys(methods, other), samples, self.identity)

    def second_moments(self, layers: Sequence[nn.Linear]) -> Iterator[tuple[list[nn.Linear], dict[nn.Linear, Tensor]]]:
        """The sum of ``x * x.T`` over a layer's inputs ``x``: [in_features, in_features], in float32.

        Layers are those of the modules if they have their weights. As many at a time as fit into a GiB, in the order in
        which they are given; each time, the modules are called with all samples. Raises SourceError if a call fails.
        """
        left = list(layers)
        while left:
            size, count = 0, 0
            while count < len(left) and (not count or size + 4 * left[count].in_features ** 2 <= _MEMORY):
                size += 4 * left[count].in_features ** 2
                count += 1
            some, left = left[:count], left[count:]
            yield some, self._observed(some)

    def _observed(self, layers: Sequence[nn.Linear]) -> dict[nn.Linear, Tensor]:
        moments = {layer: torch.zeros(layer.in_features, layer.in_features) for layer in layers}
        of_weights = {id(layer.weight): moments[layer] for layer in layers}

        def observe(layer: nn.Module, inputs: tuple[Any, ...]) -> None:
            rows = inputs[0].detach().reshape(-1, inputs[0].shape[-1]).float()
            of_weights[id(layer.weight)].addmm_(rows.T, rows)

        modules = copy_modules(self.modules)  # calls change buffers
        for module in modules.values():
            if hasattr(module, "all_logits"):  # of a language model, for the layer that makes them
                module.all_logits = True
        watched = {
            child
            for module in modules.values()
            for child in module.modules()
            if isinstance(child, nn.Linear) and id(child.weight) in of_weights
        }
        with ExitStack() as stack:
            for child in watched:
                stack.callback(child.register_forward_pre_hook(observe).remove)
            for method, calls in self.samples.items():
                for number, (args, kwargs) in enumerate(calls()):
                    try:
                        with as_traced():
                            modules[method](*args, **kwargs)
                    except Exception as error:
                        what = f"calibration sample {number} of method {method!r}"
                        raise user_code_error(what, error) from error
        return moments


def observed_calls(definition: ModelDefinition, samples: Mapping[str, ArtifactRef], store: LocalStore) -> ObservedCalls:
    """The calls of those methods of a model that have samples in a store; raises SourceError if there is none."""
    samples = {name: ref for name, ref in samples.items() if name in definition.methods}
    if not samples:
        methods = ", ".join(definition.methods)
        raise SourceError(f"`rounding: gptq` and `equalize: awq` need calibration samples of a method: {methods}")

    def calls_of(method: MethodDefinition, ref: ArtifactRef) -> Callable[[], Iterable[Call]]:
        keywords = method.example_kwarg_inputs[0] if method.example_kwarg_inputs else {}
        structure = pytree.tree_structure((method.example_inputs[0], dict(keywords)))
        return lambda: (pytree.tree_unflatten(flat, structure) for flat in load_values(ref, store))

    return ObservedCalls(
        {name: definition.methods[name].module for name in samples},
        {name: calls_of(definition.methods[name], ref) for name, ref in samples.items()},
        [[name, ref.identity] for name, ref in sorted(samples.items())],
    )


def rounded(weight: Tensor, quantized: Any, moments: Tensor) -> tuple[Tensor, Tensor]:
    """Integers of a weight [out_features, in_features] in place of the nearest ones, and scales of their groups.

    Args:
        weight: in floating point.
        quantized: the same as torchao quantized it, an `IntxUnpackedToInt8Tensor` with a scale for each group of a row.
        moments: second moments of the layer's inputs, [in_features, in_features].
    """
    least, largest = -(1 << _bits(quantized) - 1), (1 << _bits(quantized) - 1) - 1
    order = moments.diagonal().argsort(descending=True, stable=True)  # what counts most has most to make up for it
    scales = _scales(weight, quantized, moments.diagonal(), least, largest)
    scale, zero = (
        value.float().repeat_interleave(quantized.block_size[1], 1)[:, order]
        for value in (scales, quantized.zero_point)
    )
    factor = _factor(moments[order][:, order])
    left = weight.detach().float()[:, order]
    integers = torch.empty_like(left)
    for first in range(0, left.shape[1], _COLUMNS):
        last = min(first + _COLUMNS, left.shape[1])
        errors = torch.empty_like(left[:, first:last])
        for column in range(first, last):
            value = left[:, column]
            steps = (value * (1.0 / scale[:, column])).round()  # as torchao computes it
            integers[:, column] = (steps + zero[:, column]).clamp(least, largest)
            kept = (integers[:, column] - zero[:, column]) * scale[:, column]
            errors[:, column - first] = (value - kept) / factor[column, column]
            left[:, column:last] -= errors[:, column - first, None] * factor[column, column:last]
        left[:, last:] -= errors @ factor[first:last, last:]
    return integers[:, order.argsort()].to(torch.int8), scales


def _scales(weight: Tensor, quantized: Any, counts: Tensor, least: int, largest: int) -> Tensor:
    """The scales of groups with the least squared error of weights rounded to the nearest, each error times a count."""
    groups = weight.detach().float().unflatten(1, (-1, quantized.block_size[1]))
    counts = counts.unflatten(0, groups.shape[1:])
    best, zero = quantized.scale.float(), quantized.zero_point.float()[..., None]
    losses = torch.full_like(best, torch.inf)
    for factor in _FACTORS:
        scale = quantized.scale.float() * factor
        kept = ((groups / scale[..., None] + zero).round().clamp(least, largest) - zero) * scale[..., None]
        loss = ((kept - groups).square() * counts).sum(-1)
        best = torch.where(loss < losses, scale, best)
        losses = torch.minimum(loss, losses)
    return best


def on_grid(weight: Tensor, quantized: Any) -> tuple[Tensor, Tensor] | None:
    """Integers and scales of a weight whose groups are integers times a number already, or None for other weights.

    Such are those of quantized checkpoints, in floating point, where they are exact or rounded to 8 bits.

    Args:
        weight: in floating point.
        quantized: the same as torchao quantized it, an `IntxUnpackedToInt8Tensor` without zero points.
    """
    group = quantized.block_size[1]
    if group < _LEAST_GROUP or quantized.zero_point.any():
        return None
    largest = (1 << _bits(quantized) - 1) - 1
    parts = []
    for rows in weight.detach().split([1, *_chunks(weight)]):
        if (part := _grid(rows.float().unflatten(1, (-1, group)), largest)) is None:
            return None
        parts.append(part)
    integers, scales = (torch.cat(each) for each in zip(*parts, strict=True))
    return (integers.flatten(1), scales) if len(integers.unique()) > _FEWEST else None


def kept_layers(original: nn.Module, transformed: nn.Module) -> tuple[list[str], list[str]]:
    """Names of quantized layers whose weights are those of the original, by their first rows, and of all others."""
    kept, others = list[str](), list[str]()
    for name, layer in transformed.named_modules():
        quantized = getattr(layer, "weight", None)
        if isinstance(quantized, IntxUnpackedToInt8Tensor):
            with suppress(AttributeError):  # functions of the user's may have other names
                rows = original.get_submodule(name).weight.detach()[:_COMPARED].float()
                groups = rows.unflatten(1, (-1, quantized.block_size[1]))
                integers, scales, zeros = (
                    value[:_COMPARED].float() for value in (quantized.qdata, quantized.scale, quantized.zero_point)
                )
                steps = groups / scales[..., None] + zeros[..., None]
                is_kept = (steps.flatten(1) - integers).abs().amax() < _OFF
                (kept if is_kept else others).append(name)
    return kept, others


def _chunks(weight: Tensor) -> list[int]:
    """Numbers of rows after the first that take some MiB each."""
    rows, each = len(weight) - 1, max(1, (1 << 22) // weight.shape[1])
    return [min(each, rows - first) for first in range(0, rows, each)]


def _grid(groups: Tensor, largest: int) -> tuple[Tensor, Tensor] | None:
    """The same for [rows, groups, weights]: integers of that shape, and scales [rows, groups]."""
    flat = groups.flatten(0, 1)
    extreme = flat.gather(1, flat.abs().argmax(1, keepdim=True)).squeeze(1)
    steps, left = torch.zeros_like(flat), extreme.nonzero().squeeze(1)
    for count in range(largest + 1, 0, -1):  # most groups have one of the largest integers
        tried = left[extreme[left] < 0] if count > largest else left
        found = flat[tried] * (count / extreme[tried].abs())[:, None]
        fits = (found - found.round()).abs().amax(1) < _OFF
        steps[tried[fits]] = found[fits].round()
        left = left[steps[left].abs().amax(1) == 0]
        if not len(left):
            break
    else:
        return None
    scales = (flat * steps).sum(1) / steps.square().sum(1).clamp(min=1)
    scales = torch.where(extreme == 0, 1.0, scales)
    return steps.to(torch.int8).reshape(groups.shape), scales.reshape(groups.shape[:2])


def _bits(quantized: Any) -> int:
    return int(str(quantized.target_dtype).removeprefix("torch.int"))


def _factor(moments: Tensor) -> Tensor:
    """The upper Cholesky factor of the inverse of moments, to which a share of their mean is added."""
    mean = moments.diagonal().mean()
    damped = moments + torch.eye(len(moments)) * (_DAMPING * mean if mean else 1.0)
    return torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(damped)), upper=True)
