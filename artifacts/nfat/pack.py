"""Several `.pte` files as one container of version 2, in which equal bytes are stored once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ...errors import FileFormatError, InputError
from ..digest import Digest, digest_bytes
from ..pte.contents import PteFile
from ..pte.cuts import Range
from ..pte.reader import read_pte
from .container import Buffer, Container, read_container
from .contents import BYTE_ALIGNMENT, DEFAULT_ALIGNMENT, Blob, Description, Extent, Manifest, Payload, Source
from .limits import check_description
from .placement import Fragment, Plan, overlapping, plan
from .sharing import Part, Sharing
from .stretches import stretches
from .v2 import write_v2


@dataclass(frozen=True, slots=True)
class PackedContainer:
    """A container, and what has to be stored beside it.

    Attributes:
        container: bytes of the container: the delegate's data.
        blobs: named data by key; views of the payloads that were packed.
        alignment: bytes; where blobs have to start in their file is a multiple of it.
    """

    container: bytes
    blobs: Mapping[Digest, memoryview]
    alignment: int

    @property
    def size(self) -> int:
        """Bytes of the container and all blobs."""
        return len(self.container) + sum(len(blob) for blob in self.blobs.values())

    def open(self) -> Container:
        """The same as a container to read."""
        return read_container(self.container, self.blobs)


def pack_v2(
    payloads: Sequence[tuple[Description, Buffer]],
    *,
    alignment: int = DEFAULT_ALIGNMENT,
    metadata: Mapping[str, str] | None = None,
    fallback: bool = True,
) -> PackedContainer:
    """Packs payloads; the same payloads in the same order give the same bytes.

    Args:
        payloads: what each is, and its `.pte` file, by preference. A file that is mapped is only read where needed.
        alignment: of blobs in their file, a power of two from 16 on.
        metadata: free-form text about the container.
        fallback: whether the last payload has to run without backends, which is a rule for files that are published.

    Raises:
        InputError: there is no fallback; as FileFormatError where a payload is not a `.pte` or a description breaks
            one of the format's limits.
    """
    descriptions = [description for description, _ in payloads]
    contents = [memoryview(content).cast("B") for _, content in payloads]
    for description in descriptions:
        check_description(description)
    if fallback and (not descriptions or descriptions[-1].backends):
        raise InputError("the last payload of a fat file has to be one that needs no backend, such as portable")
    every = [
        stretch
        for index, (description, content) in enumerate(zip(descriptions, contents, strict=True))
        for stretch in stretches(index, _read(description, content))
    ]
    stored = _Stored(contents, plan(Sharing(contents, every)))
    manifest = Manifest(
        tuple(
            Payload(description, len(content), digest_bytes(content), stored.extents(index))
            for index, (description, content) in enumerate(zip(descriptions, contents, strict=True))
        ),
        tuple(Blob(digest, len(blob)) for digest, blob in stored.blobs.items()),
        alignment,
        metadata or {},
    )
    return PackedContainer(write_v2(manifest, stored.inline), stored.blobs, alignment)


def _read(description: Description, content: memoryview) -> PteFile:
    try:
        return read_pte(content)
    except FileFormatError as error:
        raise FileFormatError(f"payload {description.name}: {error}") from error


class _Stored:
    """A plan carried out.

    Attributes:
        inline: the inline section.
        blobs: by digest, in the order of storing.
    """

    def __init__(self, contents: Sequence[memoryview], planned: Plan) -> None:
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
