"""Figures of outputs, compared with eager's."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from ...errors import VerificationFailed
from ..results.figures import Case
from ..usercode.inputs import StoredCase
from .parts import slices_of

_COARSE = {torch.bfloat16: "bfloat16", torch.float16: "float16"}
_ORDER = ("bfloat16", "int8", "float16")  # the coarsest first
_SILENT_DB = -300.0  # stands for minus infinity: eager returns zeros and the runtime does not


def compare_all(outputs: Sequence[Any], stored: StoredCase, *, method: str, rounding: str = "") -> Iterator[Case]:
    """Figures of all outputs of one execution, against eager's; `rounding` is that of the program.

    Raises VerificationFailed if their number is not that of eager's, or one cannot be compared.
    """
    label, references = stored.label, stored.expected
    if len(outputs) != len(references):
        raise VerificationFailed(
            f"method {method!r} gives {len(outputs)} outputs on {label}, eager gives {len(references)}"
        )
    exact = stored.exact if stored.exact and len(stored.exact) == len(outputs) else [None] * len(outputs)
    for position, (output, reference, wide) in enumerate(zip(outputs, references, exact, strict=True)):
        case = compare(output, reference, method=method, label=label, output_position=position)
        rounded_to = next((name for name in _ORDER if name in (case.rounded_to, rounding)), "")
        lost = _lost(output, reference, wide) if rounded_to in _COARSE.values() else None
        yield replace(case, rounded_to=rounded_to, lost_db=lost, slices=slices_of(output, reference))


def _lost(output: Any, reference: Any, exact: Any) -> float | None:
    """Decibels by which an output's noise is above that of eager's, both against the output in float32."""
    values = (output, reference, exact)
    if not all(isinstance(value, torch.Tensor) and value.shape == output.shape for value in values):
        return None
    ours, eager, wide = (value.to(torch.float64) for value in values)
    finite = wide.isfinite()
    noise, eager_noise = ((value - wide)[finite].square().sum().item() for value in (ours, eager))
    if not math.isfinite(noise + eager_noise):
        return None
    if not noise or not eager_noise:
        return -_SILENT_DB if noise else _SILENT_DB
    return 10 * math.log10(noise / eager_noise)


def compare(output: Any, reference: Any, *, method: str, label: str, output_position: int) -> Case:
    """Figures of one output.

    Raises VerificationFailed if their types, shapes or dtypes differ, or NaN and infinity are in other places.
    """
    case = Case(method, label, output_position, 0.0, 0.0, None)
    where = case.where
    if not isinstance(reference, torch.Tensor):
        if output != reference:
            raise VerificationFailed(f"{where}: it gives {output!r}, eager gives {reference!r}")
        return case
    if not isinstance(output, torch.Tensor):
        raise VerificationFailed(f"{where}: it gives {type(output).__name__}, eager gives a tensor")
    if (output.shape, output.dtype) != (reference.shape, reference.dtype):
        raise VerificationFailed(
            f"{where}: it gives {output.dtype} {tuple(output.shape)}, "
            f"eager gives {reference.dtype} {tuple(reference.shape)}"
        )
    ours, eager = output.to(torch.float64), reference.to(torch.float64)
    finite = torch.isfinite(eager)
    if not torch.equal(finite, torch.isfinite(ours)) or not _same_not_finite(ours[~finite], eager[~finite]):
        raise VerificationFailed(f"{where}: NaN or infinity where eager has none, or the other way round")
    classified, agreeing = _top1(output, reference)
    rounded_to = _COARSE.get(reference.dtype, "")
    case = replace(case, classified=classified, agreeing=agreeing, rounded_to=rounded_to)
    case = _figures(ours[finite], eager[finite], case)
    if reference.is_floating_point() or reference.is_complex():
        return case
    counted = replace(case, counted=reference.numel(), equal=int((output == reference).sum()))
    return counted if reference.dtype in _PIXELS else replace(counted, sqnr_db=None)


_PIXELS = (torch.uint8, torch.int8)
"""Integers that may be amounts; others are indices, classes and numbers of things."""


def _top1(output: torch.Tensor, reference: torch.Tensor) -> tuple[int, int]:
    """The number of rows of a classifier's output, and of those whose largest element is where the reference's is."""
    if reference.dim() != 2 or reference.shape[1] < 2 or not reference.is_floating_point():
        return 0, 0
    return len(reference), int((output.argmax(1) == reference.argmax(1)).sum())


def _same_not_finite(ours: torch.Tensor, eager: torch.Tensor) -> bool:
    same_values = torch.equal(torch.nan_to_num(ours, nan=0.0), torch.nan_to_num(eager, nan=0.0))
    return bool(same_values and torch.equal(torch.isnan(ours), torch.isnan(eager)))


def _figures(ours: torch.Tensor, eager: torch.Tensor, case: Case) -> Case:
    difference = (ours - eager).abs()
    error = difference.max().item() if difference.numel() else 0.0
    if not error:
        return case
    peak = eager.abs().max().item()
    if not peak:
        return replace(case, max_abs_error=error, max_relative_error=error, sqnr_db=_SILENT_DB)
    # Values are scaled to at most 1 before they are squared, so that sums neither overflow nor vanish.
    ratio = (eager / peak).square().sum().item() / (difference / error).square().sum().item()
    decibels = 10 * math.log10(ratio) + 20 * (math.log10(peak) - math.log10(error))
    return replace(case, max_abs_error=error, max_relative_error=error / peak, sqnr_db=max(decibels, _SILENT_DB))
