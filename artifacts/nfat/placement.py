"""Where runs are stored: small ones in the container, large ones as blobs that are cut where their users differ."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..pte.cuts import Range
from .contents import BYTE_ALIGNMENT
from .sharing import WORTH, Ban, Part, Run, Sharing

SMALLEST_BLOB = 4096
"""Runs of fewer bytes are inline: mapping takes whole pages."""

_MOST_UNUSED = 16
"""A payload that points into a blob uses it but for one part in so many."""


@dataclass(frozen=True, slots=True)
class Fragment:
    """Consecutive bytes of a run that are stored together; `range` is where they are in the run's payload."""

    range: Range
    inline: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """Where every byte is to be.

    Attributes:
        parts: of all payloads, in the order of storing.
        fragments: of each run, by offset.
    """

    parts: tuple[Part, ...]
    fragments: dict[Run, tuple[Fragment, ...]]


def plan(sharing: Sharing) -> Plan:
    """Decides what is shared and how it is stored."""
    bans: set[Ban] = set()
    while True:
        parts = sharing.parts(bans)
        uses = _uses(parts)
        new_bans = {ban for run, by_payload in uses.items() for ban in _bad_bargains(run, by_payload)}
        if new_bans <= bans:
            break
        bans |= new_bans
    runs = [part.run for part in parts if part.own and part.run]
    return Plan(tuple(parts), {run: _fragments(run, _partial(run, uses[run])) for run in runs})


_Uses = dict[int, list[Range]]
"""What payloads other than a run's own use of it, by payload; ranges in the run's payload."""


def _uses(parts: Iterable[Part]) -> defaultdict[Run, _Uses]:
    found: defaultdict[Run, _Uses] = defaultdict(dict)
    for part in parts:
        if part.run and part.payload != part.run.payload:
            found[part.run].setdefault(part.payload, []).append(Range(part.position, part.range.size))
    return found


def _partial(run: Run, uses: _Uses) -> _Uses:
    """Those that would map much of the run for nothing."""
    if run.range.size < SMALLEST_BLOB:
        return {}
    enough = run.range.size - run.range.size // _MOST_UNUSED
    return {payload: ranges for payload, ranges in uses.items() if _covered(ranges) < enough}


def _bad_bargains(run: Run, uses: _Uses) -> Iterable[Ban]:
    """Payloads that share so little of a run that it is better left in one piece."""
    partial = _partial(run, uses)
    shared = _covered([each for ranges in partial.values() for each in ranges])
    return [(payload, run.stretch) for payload in partial] if shared * WORTH < run.range.size else []


def _covered(ranges: Iterable[Range]) -> int:
    """Number of bytes in the union of ranges."""
    covered = end = 0
    for each in sorted(ranges):
        covered += max(each.end - max(end, each.offset), 0)
        end = max(end, each.end)
    return covered


def _fragments(run: Run, partial: _Uses) -> tuple[Fragment, ...]:
    """A run in fragments: its unaligned head, and blobs between the borders of what payloads use."""
    start, end = run.range.offset, run.range.end
    aligned = min(start + -start % BYTE_ALIGNMENT, end)
    if end - aligned < SMALLEST_BLOB:
        return (Fragment(run.range, inline=True),)
    head = [Fragment(Range(start, aligned - start), inline=True)] if aligned > start else []
    borders = [aligned]
    for border in sorted(_borders(partial.values())):
        if borders[-1] + SMALLEST_BLOB <= border <= end - SMALLEST_BLOB:
            borders.append(border)
    borders.append(end)
    bodies = [Fragment(Range(first, second - first), inline=False) for first, second in pairwise(borders)]
    return (*head, *bodies)


def _borders(used: Iterable[Collection[Range]]) -> set[int]:
    """Aligned positions around what is used."""
    ranges = [each for one in used for each in one]
    starts = {each.offset - each.offset % BYTE_ALIGNMENT for each in ranges}
    return starts | {each.end + -each.end % BYTE_ALIGNMENT for each in ranges}


def overlapping(fragments: Sequence[Fragment], wanted: Range) -> Sequence[Fragment]:
    """The fragments that have bytes of a range which lies within their run."""
    first = bisect_right(fragments, wanted.offset, key=lambda each: each.range.offset) - 1
    last = bisect_right(fragments, wanted.end - 1, key=lambda each: each.range.offset)
    return fragments[first:last]
