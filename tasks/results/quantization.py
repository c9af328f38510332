"""The result of quantization for a method's weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from ...artifacts.records import Record
from ...errors import TargetError
from .finding import Fact, Finding

if TYPE_CHECKING:
    from .delivered import Delivered

_NAMED = 3  # reasons, and weights of each, that a message names
_LITTLE = 0.5  # share of the weights below which a run warns


@dataclass(frozen=True, slots=True)
class LeftWeight:
    """A weight that stays in floating point, with the operators that take it, and the reason, in words."""

    name: str
    operators: tuple[str, ...]
    elements: int
    why: str


@dataclass(frozen=True, slots=True)
class WidenedRange:
    """An activation whose range the last quarter of the calibration samples has widened."""

    name: str  # of the module that computes it, or of the operator
    factor: float  # the width that all samples need, as a multiple of what the others need


@dataclass(frozen=True, slots=True)
class SmoothedLayer:
    """A layer with scales moved between its inputs and its weights."""

    name: str
    left: float  # share of the squared error of its outputs on samples


@dataclass(frozen=True, slots=True)
class CorrectedBias:
    """A layer with a bias that makes up for what its weights lose on average over samples."""

    name: str
    shift: float  # the most of all channels, as a share of the deviation of their outputs


@dataclass(frozen=True, slots=True)
class Quantization(Finding):
    """Weights of one method after quantization: matrices and kernels, and not biases, scales and state."""

    role: ClassVar = "quantization"
    of: ClassVar = "method"

    sizes: Mapping[str, int]  # dtype to bytes
    elements: int  # the number of the weights' elements
    quantized: int  # how many of them are integers
    left: tuple[LeftWeight, ...]  # weights in floating point, the largest first
    method: str = ""
    widened: tuple[WidenedRange, ...] = ()  # the widest first
    smoothed: tuple[SmoothedLayer, ...] = ()
    corrected: tuple[CorrectedBias, ...] = ()
    # of a quantized checkpoint, layers that keep its numbers, and those that are rounded to others
    exact: tuple[str, ...] = ()
    rounded: tuple[str, ...] = ()

    @property
    def share(self) -> float:
        return self.quantized / self.elements if self.elements else 1.0

    def to_json(self) -> dict[str, Any]:
        return {**Record.to_json(self), "share": round(self.share, 6)}

    def after(self, transformed: Quantization) -> Quantization:
        """Adds the reasons of transforms before quantizers, for weights of lookups, which only those take."""
        lookups = [weight for weight in transformed.left if all(map(_is_lookup, weight.operators))]
        reasons = {weight.name: weight.why for weight in lookups}
        left = (replace(weight, why=reasons.get(weight.name, weight.why)) for weight in self.left)
        return replace(self, left=tuple(left))

    def check(self, at_least: float | None, field: str) -> None:
        """Raises TargetError if the share is below what a field of the recipe asks for."""
        if at_least is not None and self.share < at_least:
            raise TargetError(
                f"the recipe asks for {at_least:.0%} (`{field}`), and {self}; write these layers with others that are "
                "quantized, or ask for less"
            )

    @classmethod
    def facts(cls, findings: Sequence[Self], file: Delivered) -> Iterator[Fact]:  # noqa: ARG003 - the base's
        """The share of each method, what is left and why."""
        for reached in findings:
            where = f"method {reached.method}: " if len(findings) > 1 else ""
            share, note = round(100 * reached.share, 1), f"{where}{reached}"
            yield Fact("quantization", f"{where}integers", share, "%", note=note, telling=reached.share < _LITTLE)
            if reached.smoothed:
                left = [layer.left for layer in reached.smoothed]
                many = f"{len(left)} layers" if len(left) > 1 else "a layer"
                note = f"{where}scales are moved to the weights of {many}, with {min(left):.2f}"
                note += f" to {max(left):.2f} of the error" if len(left) > 1 else " of the error"
                yield Fact("quantization", note=note)
            if reached.corrected:
                most = max(bias.shift for bias in reached.corrected)
                many = f"{len(reached.corrected)} layers are" if len(reached.corrected) > 1 else "a layer is"
                note = f"{where}biases of {many} corrected by at most {most:.2f} of what their outputs vary"
                yield Fact("quantization", note=note)
            if reached.exact or reached.rounded:
                kept = "1 layer has" if len(reached.exact) == 1 else f"{len(reached.exact) or 'no'} layers have"
                note = f"{where}{kept} the numbers of the checkpoint"
                note += f"; rounded to others: {_named(reached.rounded)}" if reached.rounded else ""
                yield Fact("quantization", note=note)
            if reached.widened:
                names = ", ".join(f"{each.name} ({each.factor:.1f} times)" for each in reached.widened[:_NAMED])
                count = f"{len(reached.widened)} activations" if len(reached.widened) > 1 else "an activation"
                note = f"{where}the last quarter of the calibration samples widened the range of {count}: {names}"
                yield Fact(
                    "quantization", note=f"{note}; more samples are needed to cover what they take", telling=True
                )

    def __str__(self) -> str:
        text = f"{self.share:.0%} of the weights are integers"
        return f"{text}; in floating point: {_describe(self.left)}" if self.left else text


def _is_lookup(operator: str) -> bool:
    return operator.startswith("aten.embedding")


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"


def _describe(weights: Sequence[LeftWeight]) -> str:
    """The reasons, with names of weights, those with most elements first."""
    sizes = Counter[str]()
    for weight in weights:
        sizes[weight.why] += weight.elements
    parts = []
    for why, _ in sizes.most_common(_NAMED):
        parts.append(f"{_named([weight.name for weight in weights if weight.why == why])} ({why})")
    return "; ".join(parts) + ("; and others" if len(sizes) > _NAMED else "")
