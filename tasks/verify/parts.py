"""Parts of outputs, which one figure for the whole hides: scores from 0 to 1 next to boxes in pixels."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from ...configs.verification import VerifyBounds
from ..results.figures import Case, Part, is_as_good, least_sqnr

_MOST = 256  # slices of a dimension; those of a longer one are of four or more entries each
_FEWEST = 3  # values of a slice from which on they can be said to vary
_VARIES = 0.02  # standard deviation as a share of the root mean square
_ROUNDING = 64  # times the epsilon of an output's dtype, as a share of its largest value: less may be rounding
_SILENT_DB = 300.0  # stands for infinity


class Slices(NamedTuple):
    """Sums and extremes of the slices of an output along one dimension."""

    dimension: int
    entries: int  # of the dimension
    sums: torch.Tensor  # [4, slices]: number of values, their sum and sum of squares in eager, and that of the noise
    ends: torch.Tensor  # [4, slices]: largest value and largest negated one, in eager and in the file
    epsilon: float  # of the dtype


def slices_of(output: Any, reference: Any) -> tuple[Slices, ...]:
    """Those along each dimension of a tensor of finite floating-point numbers."""
    if not (isinstance(reference, torch.Tensor) and reference.is_floating_point() and reference.isfinite().all()):
        return ()
    sizes = reference.shape if reference.numel() else ()
    return tuple(_along(output, reference, dimension) for dimension, size in enumerate(sizes) if size > 1)


def _along(output: torch.Tensor, reference: torch.Tensor, dimension: int) -> Slices:
    entries = reference.shape[dimension]
    ours, eager = (value.double().movedim(dimension, 0).reshape(entries, -1) for value in (output, reference))
    slices = entries if entries <= _MOST else min(entries // 4, _MOST)
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


# A part has a range of its own where the smallest of the other entries is more than so many times as large, it is at
# least that share of the entries, and the output is not one of shares and probabilities, small for what is not there.
# Of 64 channels of a layer with ranges that differ as a log-normal distribution of 1.5, int8 loses some in 99 of 100
# outputs, of which these bounds take one for a part of its own.
_TIMES, _SHARE, _PROBABILITY = 8, 24, 1.01


def _worst(found: list[Slices], part: Part, bounds: VerifyBounds) -> Part:
    """Returns the lost slices along one dimension, or else the worst.

    A slice is lost if it varies in eager and not in the file, or has less SQNR than a part needs, unless it is so small
    next to others that it may be rounding.
    """
    count, total, squares, noise = torch.stack([slices.sums for slices in found]).sum(0)
    most, least, made_most, made_least = torch.stack([slices.ends for slices in found]).amax(0)
    largest = torch.maximum(most, least)
    varies = (squares / count - (total / count).square()).clamp(min=0) > _VARIES**2 * squares / count
    decibels = torch.tensor([_decibels(*ratio) for ratio in zip(squares.tolist(), noise.tolist(), strict=True)])
    known = varies & (count >= _FEWEST)
    lost = (made_most == -made_least) | (decibels < (bounds.min_part_sqnr_db or 0.0))
    lost &= known & (largest > _ROUNDING * found[0].epsilon * largest.max())
    chosen = (lost if lost.any() else decibels == decibels.min()).nonzero().flatten()
    rest = largest[~lost & known]
    apart = bool(lost.any()) and len(rest) > 0 and bool(rest.min() > _TIMES * largest[chosen].max())
    values = torch.cat([made_most[chosen], -made_least[chosen]]).unique().tolist()
    return replace(
        part,
        dimension=found[0].dimension,
        of=found[0].entries,
        entries=_runs(chosen.tolist(), len(largest), found[0].entries),
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
