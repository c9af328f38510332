"""Several `.pte` files as one container of version 2, in which equal bytes are stored once."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from ...artifacts.digest import Digest, digest_bytes
from ...errors import FileFormatError, InputError, PteforgeError
from ..pte.contents import Extent, PteFile, Shareable, inside
from ..pte.reader import read_pte
from . import contents
from .container import Buffer, Container, read_container, write_v2
from .conversions import is_half, is_transpose
from .golden import GoldenCheck
from .limits import check_description
from .sharing import Block, Section, StoragePlan, StoredContent, StoredExtent, StoredRun, plan_storage, sections

_FREES_CONSTANTS = frozenset({"VulkanBackend", "XnnpackBackend"})
"""Backends that release constants once a method is loaded: copies of them, transposed, do not stay in memory."""


@dataclass(frozen=True, slots=True)
class PackedContainer:
    """A container, and the blobs to store with it."""

    container: bytes
    blobs: Mapping[Digest, memoryview]  # named data by key; views of the packed payloads
    alignment: int  # of blobs in their file, in bytes
    shareable: Shareable = field(default_factory=dict)  # extents of blobs that other files may also contain

    @property
    def size(self) -> int:
        return len(self.container) + sum(len(blob) for blob in self.blobs.values())

    def open(self) -> Container:
        return read_container(self.container, self.blobs)


def pack_v2(
    payloads: Sequence[tuple[contents.Description, Buffer]],
    *,
    alignment: int = contents.DEFAULT_ALIGNMENT,
    metadata: Mapping[str, str] | None = None,
    fallback: bool = True,
    share_transposed: bool = True,
    checks: Mapping[str, GoldenCheck] = MappingProxyType({}),
) -> PackedContainer:
    """Packs payloads, by preference; the same payloads in the same order produce the same bytes.

    Args:
        payloads: descriptions and `.pte` files. Only the needed pages of mapped files are read.
        alignment: of blobs in their file, a power of two of at least 16.
        metadata: free-form text about the container.
        fallback: whether the last payload has to run without backends, as in all published files.
        share_transposed: whether constants of the other payloads may be stored as what it has, in another layout or as
            numbers of twice as many bits. Delegates built before that existed pass over these payloads.
        checks: by name of a payload, how it checks itself.

    Raises InputError if there is no fallback, or a payload is a fat file itself; as FileFormatError if a payload is not
    a `.pte` or a description breaks one of the format's limits.
    """
    descriptions = [replace(one, backends=tuple(sorted(set(one.backends)))) for one, _ in payloads]
    programs = [memoryview(content).cast("B") for _, content in payloads]
    for description in descriptions:
        check_description(description)
    if fallback and (not descriptions or descriptions[-1].backends):
        raise InputError("the last payload of a fat file has to be one that needs no backend, such as portable")
    all_sections: list[Section] = []
    for index, (description, content) in enumerate(zip(descriptions, programs, strict=True)):
        pte = _read(description, content)
        backends = {*pte.backends, *description.backends}
        free = share_transposed and index + 1 < len(payloads) and bool(backends) and backends <= _FREES_CONSTANTS
        all_sections += sections(index, pte, convertible=free)
    return pack_sections(descriptions, programs, all_sections, alignment, metadata or {}, checks)


def pack_sections(
    descriptions: Sequence[contents.Description],
    programs: Sequence[memoryview],
    all_sections: Collection[Section],
    alignment: int,
    metadata: Mapping[str, str],
    checks: Mapping[str, GoldenCheck] = MappingProxyType({}),
) -> PackedContainer:
    """Packs files of any kind, by preference; the sections, in any order, together cover all of their bytes."""
    stored = _Storage(plan_storage(programs, all_sections))
    golden = {name: stored.add(check.blob) for name, check in checks.items()}
    blobs = tuple(contents.Blob(digest, len(blob)) for digest, blob in stored.blobs.items())
    payloads = [
        _payload(description, content, stored, index, blobs)
        for index, (description, content) in enumerate(zip(descriptions, programs, strict=True))
    ]
    for index, payload in enumerate(payloads):
        if check := checks.get(payload.name):
            self_check = contents.SelfCheck(golden[payload.name], check.tolerance, check.repeats)
            payloads[index] = replace(payload, self_check=self_check)
    manifest = contents.Manifest(tuple(payloads), blobs, alignment, metadata)
    return PackedContainer(write_v2(manifest, stored.inline), stored.blobs, alignment, stored.shareable)


class _Storage:
    """The inline section and the blobs of a plan, in the order of storing, and where payloads' bytes are in them."""

    def __init__(self, plan: StoragePlan) -> None:
        self.inline = bytearray()
        self.blobs: dict[Digest, memoryview] = {}
        self.shareable: dict[str, tuple[Extent, ...]] = {}
        self._plan = plan
        self._shapes = {(section.payload, section.extent): shape for section, shape in plan.transposes.items()}
        self._sources: dict[tuple[int, Extent], tuple[contents.Source, int, Digest | None]] = {}
        for run, blocks in plan.blocks.items():
            for block in blocks:
                self._store(plan.contents[run.payload], run, block)
        self._indices = {digest: index for index, digest in enumerate(self.blobs)}

    def add(self, content: memoryview) -> int:
        """Stores a blob that is not part of a payload; returns its index."""
        digest = digest_bytes(content)
        self.blobs.setdefault(digest, content)
        self.shareable.setdefault(digest, ())
        return self._indices.setdefault(digest, len(self._indices))

    def of(self, extent: contents.MappedExtent, blobs: Sequence[contents.Blob]) -> memoryview:
        inline = extent.source is contents.Source.INLINE
        return extent.stored.of(memoryview(self.inline) if inline else self.blobs[blobs[extent.blob].digest])

    def transposes(self, payload: int, extents: Sequence[contents.MappedExtent]) -> tuple[contents.Transpose, ...]:
        shapes = (self._shapes.get((payload, Extent(extent.position, extent.size))) for extent in extents)
        return tuple(contents.Transpose(index, shape) for index, shape in enumerate(shapes) if shape)

    def _store(self, content: StoredContent, run: StoredRun, block: Block) -> None:
        payload, stored = run.payload, content.of(block.extent)
        digest = None if block.inline else digest_bytes(stored)
        # Blobs have their digests for names, so that a second copy can only be inline.
        if digest is None or (digest in self.blobs and payload in self._plan.repetitive):
            self.inline += bytes((block.extent.offset - len(self.inline)) % contents.BYTE_ALIGNMENT)
            self._sources[payload, block.extent] = contents.Source.INLINE, len(self.inline), None
            self.inline += stored
        else:
            self.blobs.setdefault(digest, stored)
            self.shareable.setdefault(digest, tuple(inside(block.extent, run.section.shareable)))
            self._sources[payload, block.extent] = contents.Source.BLOB, 0, digest

    def extents(self, payload: int) -> tuple[contents.MappedExtent, ...]:
        joined: list[contents.MappedExtent] = []
        in_payload = [stored for stored in self._plan.stored_extents if stored.payload == payload]
        in_payload.sort(key=lambda stored: stored.extent)
        mapped = [extent for stored in in_payload for extent in self._extents_of(stored)]
        for extent in sorted([*mapped, *self._halves(payload)], key=lambda extent: extent.position):
            if joined and _continues(joined[-1], extent) and not self._transposed(payload, joined[-1], extent):
                joined[-1] = replace(joined[-1], size=joined[-1].size + extent.size)
            else:
                joined.append(extent)
        return tuple(joined)

    def _halves(self, payload: int) -> Iterator[contents.MappedExtent]:
        for section, numbers in self._plan.halves.items():
            stored = self._plan.find(numbers.payload, numbers.extent) if section.payload == payload else None
            for extent in self._extents_of(stored) if stored else ():
                yield replace(extent, position=section.extent.offset, size=section.extent.size, half=True)

    def _transposed(self, payload: int, *extents: contents.MappedExtent) -> bool:
        return any((payload, Extent(extent.position, extent.size)) in self._shapes for extent in extents)

    def _extents_of(self, stored: StoredExtent) -> Iterator[contents.MappedExtent]:
        position = stored.extent.offset
        if stored.run is None:
            yield contents.MappedExtent(position, stored.extent.size, contents.Source.ZEROS)
            return
        for block, used in self._plan.blocks_of(stored):
            source, offset, digest = self._sources[stored.run.payload, block.extent]
            yield contents.MappedExtent(
                position=position + used.offset - stored.position,
                size=used.size,
                source=source,
                offset=offset + used.offset - block.extent.offset,
                blob=self._indices[digest] if digest else 0,
            )


def _continues(first: contents.MappedExtent, second: contents.MappedExtent) -> bool:
    if (first.source, first.blob) != (second.source, second.blob) or first.half or second.half:
        return False
    return first.source is contents.Source.ZEROS or first.stored.end == second.offset


def _payload(
    description: contents.Description, content: memoryview, stored: _Storage, index: int, blobs: Sequence[contents.Blob]
) -> contents.Payload:
    sha256, extents = digest_bytes(content), stored.extents(index)
    transposes = stored.transposes(index, extents)
    halves = [extent for extent in extents if extent.half]

    def pair(extent: contents.MappedExtent) -> tuple[memoryview, memoryview]:
        return stored.of(extent, blobs), Extent(extent.position, extent.size).of(content)

    turned = ((extents[each.extent], each.shape) for each in transposes)
    wrong = [extent for extent, shape in turned if not is_transpose(*pair(extent), shape)]
    wrong += [extent for extent in halves if not is_half(*pair(extent))]
    if wrong:
        raise PteforgeError(f"payload {description.name}: the extent at {wrong[0].position} is not what is stored")
    return contents.Payload(
        description,
        len(content),
        sha256,
        extents,
        features=(contents.TRANSPOSED_EXTENTS if transposes else 0) | (contents.HALF_EXTENTS if halves else 0),
        parts_sha256=contents.parts_digest(len(content), sha256, extents, stored.inline, blobs, transposes),
        transposes=transposes,
    )


def _read(description: contents.Description, content: memoryview) -> PteFile:
    try:
        pte = read_pte(content)
    except FileFormatError as error:
        raise FileFormatError(f"payload {description.name}: {error}") from error
    if contents.BACKEND_ID in (*pte.backends, *description.backends):
        problem = "is a fat file itself, and those do not nest: extract its payloads"
        raise InputError(f"payload {description.name} {problem}")
    return pte
