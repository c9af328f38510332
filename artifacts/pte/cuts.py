"""Where a `.pte` is cut: ranges that are worth an object of their own, so that other artifacts can share them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from .contents import PteFile

SMALLEST = 1024
"""Ranges of fewer bytes go to the glue: an object of its own costs more than it saves."""


@dataclass(frozen=True, slots=True, order=True)
class Range:
    """`size` bytes at `offset` of a file."""

    offset: int
    size: int

    @property
    def end(self) -> int:
        """Offset behind the last byte."""
        return self.offset + self.size


def cut(pte: PteFile) -> tuple[Range, ...]:
    """Ranges to store one by one, by offset, without overlaps; what is between them is glue.

    These are the tensors, exactly their own bytes so that they equal the weights of programs; the segments' other
    bytes; delegate data inside the flatbuffer; and what the file has outside of program and segments.
    """
    data = _apart(
        [
            *(Range(constant.offset, constant.size) for constant in pte.constants),
            *(
                Range(delegate.offset, delegate.size)
                for method in pte.methods
                for delegate in method.delegates
                if delegate.location == "inline"
            ),
        ]
    )
    in_program = [each for each in data if each.offset < pte.program_size]
    behind = [each for each in data if each.offset >= pte.program_size]
    behind += [Range(segment.offset, segment.size) for segment in pte.segments if segment.size]
    edges = {pte.program_size, pte.size, *(each.offset for each in behind), *(each.end for each in behind)}
    found = [*in_program, *(Range(start, end - start) for start, end in pairwise(sorted(edges)))]
    return tuple(each for each in found if each.size >= SMALLEST)


def _apart(ranges: Iterable[Range]) -> list[Range]:
    """The ranges by offset; of those that overlap only the first, the longest of those that start together."""
    kept: list[Range] = []
    for each in sorted(ranges, key=lambda each: (each.offset, -each.size)):
        if each.size and (not kept or each.offset >= kept[-1].end):
            kept.append(each)
    return kept
