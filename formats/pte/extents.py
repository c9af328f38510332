"""Which extents of a `.pte` are worth storing as objects of their own, so that other files can share them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise

from .contents import Extent, PteFile

Shareable = Mapping[str, tuple[Extent, ...]]
"""By key of named data, the extents of it that other files may contain, too, such as single weights; by offset."""

MIN_SHAREABLE = 1024
"""Smaller extents are not stored separately: an object costs more than it saves."""


def shareable_extents(pte: PteFile) -> tuple[Extent, ...]:
    """Extents to store separately, by offset and without overlaps. They do not cover the file.

    These are the tensors, exactly their own bytes so that they equal the weights of programs; the other bytes of
    segments; delegate data inside the flatbuffer; and the bytes outside of program and segments.
    """
    delegates = (delegate for method in pte.methods for delegate in method.delegates)
    data = _without_overlaps(
        [
            *(constant.extent for constant in pte.constants),
            *(delegate.extent for delegate in delegates if delegate.location == "inline"),
        ]
    )
    in_program = [extent for extent in data if extent.offset < pte.program_size]
    after_program = [extent for extent in (*data, *pte.segments) if extent.size and extent.offset >= pte.program_size]
    rest = Extent(pte.program_size, pte.size - pte.program_size)
    found = [extent for extent in in_program if extent.size >= MIN_SHAREABLE]
    return (*found, *cut(rest, inside(rest, after_program)))


def inside(whole: Extent, extents: Iterable[Extent]) -> Iterator[Extent]:
    """Those of the extents that lie in `whole`, counted from its start."""
    for extent in extents:
        if whole.offset <= extent.offset and extent.end <= whole.end:
            yield Extent(extent.offset - whole.offset, extent.size)


def cut(whole: Extent, parts: Iterable[Extent]) -> Iterator[Extent]:
    """The parts of `whole`, which count from its start, and what is between them, as far as it is worth storing."""
    borders = {whole.offset, whole.end}
    borders.update(whole.offset + border for part in parts for border in (part.offset, part.end))
    for start, end in pairwise(sorted(borders)):
        if end - start >= MIN_SHAREABLE:
            yield Extent(start, end - start)


def _without_overlaps(extents: Iterable[Extent]) -> list[Extent]:
    """Sorts by offset. Keeps the first of overlapping extents, and the longest of those that start together."""
    kept: list[Extent] = []
    for extent in sorted(extents, key=lambda extent: (extent.offset, -extent.size)):
        if extent.size and (not kept or extent.offset >= kept[-1].end):
            kept.append(extent)
    return kept
