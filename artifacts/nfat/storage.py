"""A plan carried out: the inline section and the blobs, and where in them payloads have their bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..digest import Digest, digest_bytes
from ..pte.cuts import Range
from .contents import BYTE_ALIGNMENT, Extent, Source
from .placement import Fragment, Plan, overlapping
from .sharing import Part


class Storage:
    """A plan carried out.

    Attributes:
        inline: the inline section.
        blobs: by digest, in the order of storing.
    """

    def __init__(self, contents: Sequence[memoryview], planned: Plan) -> None:
        """Stores all runs of a plan; `contents` are the payloads' bytes."""
        self.inline = bytearray()
        self.blobs: dict[Digest, memoryview] = {}
        self._fragments = planned.fragments
        self._parts = planned.parts
        self._places: dict[tuple[int, Range], tuple[Source, int, Digest | None]] = {}
        for run, fragments in planned.fragments.items():
            for fragment in fragments:
                self._store(contents[run.payload], run.payload, fragment)
        self._indices = {digest: index for index, digest in enumerate(self.blobs)}

    def _store(self, content: memoryview, payload: int, fragment: Fragment) -> None:
        stored = content[fragment.range.offset : fragment.range.end]
        if fragment.inline:
            self.inline += bytes((fragment.range.offset - len(self.inline)) % BYTE_ALIGNMENT)
            self._places[payload, fragment.range] = Source.INLINE, len(self.inline), None
            self.inline += stored
        else:
            digest = digest_bytes(stored)
            self.blobs.setdefault(digest, stored)
            self._places[payload, fragment.range] = Source.BLOB, 0, digest

    def extents(self, payload: int) -> tuple[Extent, ...]:
        """A payload's extents, those that continue each other as one."""
        found: list[Extent] = []
        parts = sorted((part for part in self._parts if part.payload == payload), key=lambda part: part.range)
        for extent in (extent for part in parts for extent in self._extents_of(part)):
            if found and _continues(found[-1], extent):
                found[-1] = replace(found[-1], size=found[-1].size + extent.size)
            else:
                found.append(extent)
        return tuple(found)

    def _extents_of(self, part: Part) -> Iterator[Extent]:
        if part.run is None:
            yield Extent(part.range.offset, part.range.size, Source.ZEROS)
            return
        wanted = Range(part.position, part.range.size)
        for fragment in overlapping(self._fragments[part.run], wanted):
            start = max(fragment.range.offset, wanted.offset)
            size = min(fragment.range.end, wanted.end) - start
            source, offset, digest = self._places[part.run.payload, fragment.range]
            yield Extent(
                position=part.range.offset + start - wanted.offset,
                size=size,
                source=source,
                offset=offset + start - fragment.range.offset,
                blob=self._indices[digest] if digest else 0,
            )


def _continues(first: Extent, second: Extent) -> bool:
    if (first.source, first.blob) != (second.source, second.blob):
        return False
    return first.source is Source.ZEROS or first.offset + first.size == second.offset
