"""Figures of outputs compared with eager's, and of their parts, such as scores from 0 to 1 next to boxes in pixels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from ...configs.verification import VerifyBounds
from ...errors import VerificationFailed
from ..results.figures import Case, Part, is_as_good, least_sqnr
from ..usercode.inputs import StoredCase

_COARSE = {torch.bfloat16: "bfloat16", torch.float16: "float16"}
_ORDER = ("bfloat16", "int8", "float16")  # the coarsest first
_SILENT_DB = 300.0  # stands for infinity, and its opposite for eager's zeros where the runtime returns others
_PIXELS = (torch.uint8, torch.int8)  # integers that may be amounts; others are indices, classes and numbers of things

_SLICES = 256  # slices of a dimension; those of a longer one are of four or more entries each
_FEWEST = 3  # values of a slice from which on they can be said to vary
_VARIES = 0.02  # standard deviation as a share of the root mean square
_ROUNDING = 64  # times the epsilon of an output's dtype, as a share of its largest value: less may be rounding
# A part has a range of its own where the smallest of the other entries is more than so many times as large, it is at
# least that share of the entries, and the output is not one of shares and probabilities, small for what is not there.
# Of 64 channels of a layer with ranges that differ as a log-normal distribution of 1.5, int8 loses some in 99 of 100
# outputs, of which these bounds take one for a part of its own.
_TIMES, _SHARE, _PROBABILITY = 8, 24, 1.01


def compare_all(outputs: Sequence[Any], stored: StoredCase, *, method: str, rounding: str = "") -> Iterator[Case]:
    """Figures of all outputs of one execution, against eager's; `rounding` is that of the program.

    Raises VerificationFailed if their number is not that of eager's, or one cannot be compared.
    """
    label, references, number = stored.label, stored.expected, len(outputs)
    if number != len(references):
        raise VerificationFailed(f"method {method!r} gives {number} outputs on {label}, eager gives {len(references)}")
    exact = stored.exact if stored.exact and len(stored.exact) == number else [None] * number
    for position, (output, reference, wide) in enumerate(zip(outputs, references, exact, strict=True)):
        case = compare(output, reference, method=method, label=label, output_position=position)
        rounded_to = next((name for name in _ORDER if name in (case.rounded_to, rounding)), "")
        lost, eager_db = (None, None) if rounded_to == "int8" else _lost(output, reference, wide)
        slices = slices_of(output, reference)
        yield replace(case, rounded_to=rounded_to, lost_db=lost, eager_db=eager_db, slices=slices)


def _lost(output: Any, reference: Any, exact: Any) -> tuple[float | None, float | None]:
    """Decibels by which an output's noise is above that of eager's, both against a wider dtype; and eager's SQNR."""
    values = (output, reference, exact)
    if not all(isinstance(value, torch.Tensor) and value.shape == output.shape for value in values):
        return None, None
    ours, eager, wide = (value.to(torch.float64) for value in values)
    finite = wide.isfinite()
    noise, eager_noise = ((value - wide)[finite].square().sum().item() for value in (ours, eager))
    if not math.isfinite(noise + eager_noise):
        return None, None
    eager_db = _decibels(wide[finite].square().sum().item(), eager_noise)
    if not noise or not eager_noise:
        return (_SILENT_DB if noise else -_SILENT_DB), eager_db
    return 10 * math.log10(noise / eager_noise), eager_db


def compare(output: Any, reference: Any, *, method: str, label: str, output_position: int) -> Case:
    """Figures of one output; raises VerificationFailed if its type, shape, dtype, or NaN and infinity differ."""
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
    others = ours[~finite], eager[~finite]
    if not torch.equal(finite, torch.isfinite(ours)) or not torch.allclose(*others, equal_nan=True):
        raise VerificationFailed(f"{where}: NaN or infinity where eager has none, or the other way round")
    case = _figures(ours[finite], eager[finite], replace(case, rounded_to=_COARSE.get(reference.dtype, "")))
    if reference.dim() == 2 and reference.shape[1] >= 2 and reference.is_floating_point():  # of a classifier
        agreeing = int((output.argmax(1) == reference.argmax(1)).sum())
        case = replace(case, classified=len(reference), agreeing=agreeing)
    if reference.is_floating_point() or reference.is_complex():
        return case
    counted = replace(case, counted=reference.numel(), equal=int((output == reference).sum()))
    return counted if reference.dtype in _PIXELS else replace(counted, sqnr_db=None)


def _figures(ours: torch.Tensor, eager: torch.Tensor, case: Case) -> Case:
    difference = (ours - eager).abs()
    error = difference.max().item() if difference.numel() else 0.0
    if not error:
        return case
    peak = eager.abs().max().item()
    if not peak:
        return replace(case, max_abs_error=error, max_relative_error=error, sqnr_db=-_SILENT_DB)
    # Values are scaled to at most 1 before they are squared, so that sums neither overflow nor vanish.
    ratio = (eager / peak).square().sum().item() / (difference / error).square().sum().item()
    decibels = 10 * math.log10(ratio) + 20 * (math.log10(peak) - math.log10(error))
    return replace(case, max_abs_error=error, max_relative_error=error / peak, sqnr_db=max(decibels, -_SILENT_DB))


class Slices(NamedTuple):
    """Sums and extremes of the slices of an output along one dimension."""

    dimension: int
    entries: int  # of the dimension
    sums: torch.Tensor  # [4, slices]: number of values, their sum and sum of squares in eager, and that of the noise
    ends: torch.Tensor  # [4, slices]: largest value and largest negated one, in eager and in the file
    epsilon: float  # of the dtype


def slices_of(output: Any, reference: Any) -> tuple[Slices, ...]:
    """The slices along each dimension of a tensor of finite floating-point numbers."""
    if not (isinstance(reference, torch.Tensor) and reference.is_floating_point() and reference.isfinite().all()):
        return ()
    sizes = reference.shape if reference.numel() else ()
    return tuple(_along(output, reference, dimension) for dimension, size in enumerate(sizes) if size > 1)


def _along(output: torch.Tensor, reference: torch.Tensor, dimension: int) -> Slices:
    entries = reference.shape[dimension]
    ours, eager = (value.double().movedim(dimension, 0).reshape(entries, -1) for value in (output, reference))
    slices = entries if entries <= _SLICES else min(entries // 4, _SLICES)
    at = (torch.arange(entries) * slices // entries).expand(4, -1)
    count = torch.full((entries,), float(eager.shape[1]), dtype=torch.float64)
    sums = torch.stack([count, eager.sum(1), eager.square().sum(1), (ours - eager).square().sum(1)])
    ends = torch.stack([eager.amax(1), -eager.amin(1), ours.amax(1), -ours.amin(1)])
    empty = torch.zeros(4, slices, dtype=torch.float64)
    ends = empty.scatter_reduce(1, at, ends, "amax", include_self=False)
    return Slices(dimension, entries, empty.scatter_add(1, at, sums), ends, torch.finfo(reference.dtype).eps)


def worst_parts(cases: Iterable[Case], bounds: VerifyBounds) -> list[Part]:
    """The worst part of each output over all its cases, where it has less SQNR than outputs need, or is lost."""
    along: dict[tuple[str, str, int], dict[tuple[int, int], list[Slices]]] = {}
    least = -math.inf
    for case in cases:
        least = max(least, -math.inf if bounds.min_sqnr_db is None else least_sqnr(bounds.min_sqnr_db, case.rounded_to))
        of_output = along.setdefault((case.payload, case.method, case.output), {})
        for slices in () if is_as_good(case, bounds) else case.slices:
            of_output.setdefault((slices.dimension, slices.entries), []).append(slices)
    worst: list[Part] = []
    for (payload, method, output), of_output in along.items():
        parts = [_worst(slices, Part(method, output, payload=payload), bounds) for slices in of_output.values()]
        wrong = [part for part in parts if part.lost or part.sqnr_db < least]
        worst += sorted(wrong, key=lambda part: (not part.own_range, not part.lost, part.sqnr_db))[:1]
    return worst


def _worst(along: list[Slices], part: Part, bounds: VerifyBounds) -> Part:
    """Returns the lost slices along one dimension, or else the worst.

    A slice is lost if it varies in eager and not in the file, or has less SQNR than a part needs, unless it is so small
    next to others that it may be rounding.
    """
    count, total, squares, noise = torch.stack([slices.sums for slices in along]).sum(0)
    most, least, made_most, made_least = torch.stack([slices.ends for slices in along]).amax(0)
    largest = torch.maximum(most, least)
    varies = (squares / count - (total / count).square()).clamp(min=0) > _VARIES**2 * squares / count
    decibels = torch.tensor([_decibels(*ratio) for ratio in zip(squares.tolist(), noise.tolist(), strict=True)])
    known = varies & (count >= _FEWEST)
    lost = (made_most == -made_least) | (decibels < (bounds.min_part_sqnr_db or 0.0))
    lost &= known & (largest > _ROUNDING * along[0].epsilon * largest.max())
    chosen = (lost if lost.any() else decibels == decibels.min()).nonzero().flatten()
    rest = largest[~lost & known]
    apart = bool(lost.any()) and len(rest) > 0 and bool(rest.min() > _TIMES * largest[chosen].max())
    values = torch.cat([made_most[chosen], -made_least[chosen]]).unique().tolist()
    return replace(
        part,
        dimension=along[0].dimension,
        of=along[0].entries,
        entries=_runs(chosen.tolist(), len(largest), along[0].entries),
        sqnr_db=_decibels(squares[chosen].sum().item(), noise[chosen].sum().item()),
        largest=largest[chosen].max().item(),
        largest_of_output=largest.max().item(),
        constant=values[0] if lost.any() and len(values) == 1 else None,
        lost=bool(lost.any()),
        own_range=apart and _SHARE * len(chosen) >= len(largest) and bool(largest.max() > _PROBABILITY),
    )


def _decibels(signal: float, noise: float) -> float:
    if not (signal and noise):
        return -_SILENT_DB if noise else _SILENT_DB
    return 10 * math.log10(signal / noise)


def _runs(chosen: list[int], slices: int, entries: int) -> tuple[tuple[int, int], ...]:
    """The first and the last entry of each run of slices."""
    runs: list[tuple[int, int]] = []
    for at in chosen:
        first, last = -(-at * entries // slices), -(-(at + 1) * entries // slices) - 1
        if runs and runs[-1][1] == first - 1:
            first = runs.pop()[0]
        runs.append((first, last))
    return tuple(runs)
