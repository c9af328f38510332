"""The manifest of a version 2 container, read with every offset checked."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum

from ...errors import FileFormatError
from ..digest import Digest
from ..pte.tables import U32, U64, Flatbuffer, Node
from .contents import Blob, Description, Extent, Manifest, Payload, Source
from .limits import MAX_BACKENDS, MAX_MANIFEST, MAX_METHOD, MAX_METHODS, MAX_NOTES, MAX_PAYLOADS, MAX_WORD
from .manifest_writer import IDENTIFIER
from .parts import EXTENT

_BLOB = struct.Struct("<Q32s")
_SHA256_SIZE = 32


class ManifestSlot(IntEnum):
    """Fields of the root table."""

    PAYLOADS = 0
    BLOBS = 1
    ALIGNMENT = 2
    METADATA = 3


class PayloadSlot(IntEnum):
    """Fields of a payload."""

    NAME = 0
    SIZE = 1
    SHA256 = 2
    EXTENTS = 3
    BACKENDS = 4
    METHODS = 5
    EXECUTORCH_VERSION = 6
    FEATURES = 7
    METADATA = 8
    PARTS_SHA256 = 9


class NoteSlot(IntEnum):
    """Fields of a note."""

    KEY = 0
    VALUE = 1


def read_manifest(content: memoryview) -> Manifest:
    """Reads a manifest's bytes; what they mean is checked by `limits.check_manifest`.

    Raises:
        FileFormatError: not a manifest, or damaged.
    """
    if not 8 <= len(content) <= MAX_MANIFEST:
        raise FileFormatError(f"a manifest of {len(content)} bytes; 8 to {MAX_MANIFEST} are possible")
    if content[4:8] != IDENTIFIER:
        raise FileFormatError(f"a manifest with identifier {bytes(content[4:8])!r}, which should be {IDENTIFIER!r}")
    try:
        return _Reader(content).manifest()
    except FileFormatError as error:
        # The tables were written for programs and say so.
        raise FileFormatError(f"damaged manifest: {str(error).removeprefix('damaged program: ')}") from error


class _Reader:
    def __init__(self, content: memoryview) -> None:
        self._tables = Flatbuffer(content)
        self._extents_left = len(content) // EXTENT.size

    def manifest(self) -> Manifest:
        root = self._tables.root()
        return Manifest(
            payloads=tuple(self._payload(node) for node in self._nodes(root, ManifestSlot.PAYLOADS, MAX_PAYLOADS)),
            blobs=tuple(
                Blob(Digest(sha256.hex()), size)
                for size, sha256 in _BLOB.iter_unpack(self._structs(root, ManifestSlot.BLOBS, _BLOB))
            ),
            alignment=root.number(ManifestSlot.ALIGNMENT, U32, 16),
            metadata=self._metadata(root, ManifestSlot.METADATA),
        )

    def _payload(self, node: Node) -> Payload:
        size = node.number(PayloadSlot.SIZE, U64)
        features = node.number(PayloadSlot.FEATURES, U64)
        sha256 = self._digest(node, PayloadSlot.SHA256)
        if sha256 is None:
            raise FileFormatError("a SHA-256 of 0 bytes")
        description = Description(
            name=node.text(PayloadSlot.NAME),
            backends=tuple(self._texts(node, PayloadSlot.BACKENDS, MAX_BACKENDS, MAX_WORD)),
            methods=tuple(self._texts(node, PayloadSlot.METHODS, MAX_METHODS, MAX_METHOD)),
            executorch_version=node.text(PayloadSlot.EXECUTORCH_VERSION),
            metadata=self._metadata(node, PayloadSlot.METADATA),
        )
        return Payload(
            description,
            size,
            sha256,
            () if features else tuple(self._extents(node, size)),
            features,
            self._digest(node, PayloadSlot.PARTS_SHA256),
        )

    def _digest(self, node: Node, slot: IntEnum) -> Digest | None:
        start, count = node.span(slot)
        if count not in (0, _SHA256_SIZE):
            raise FileFormatError(f"a SHA-256 of {count} bytes")
        return Digest(bytes(self._tables.content[start : start + count]).hex()) if count else None

    def _extents(self, node: Node, size: int) -> Iterator[Extent]:
        """The extents with sizes, which are negative or 0 where positions do not ascend."""
        structs = self._structs(node, PayloadSlot.EXTENTS, EXTENT)
        self._extents_left -= len(structs) // EXTENT.size
        if self._extents_left < 0:
            raise FileFormatError("payloads have more extents than the manifest has room for")
        for start in range(0, len(structs), EXTENT.size):
            position, offset, source, blob = EXTENT.unpack_from(structs, start)
            behind = start + EXTENT.size
            end = U64.packer_type.unpack_from(structs, behind)[0] if behind < len(structs) else size
            yield Extent(position, end - position, _source(source), offset, blob)

    def _structs(self, node: Node, slot: IntEnum, layout: struct.Struct) -> memoryview:
        """The bytes of a vector of structs."""
        start, count = node.span(slot)
        size = count * layout.size
        self._tables.charge(start, size)
        return self._tables.content[start : start + size]

    def _texts(self, node: Node, slot: IntEnum, most: int, longest: int) -> Iterator[str]:
        """The strings of a vector."""
        start, count = node.span(slot)
        _check_count(slot, count, most)
        for place in range(start, start + 4 * count, 4):
            at = place + self._tables.number(U32, place)
            size = self._tables.number(U32, at)
            self._tables.charge(at + 4, size)
            if size > longest:
                raise FileFormatError(f"a text of {size} bytes in {slot.name.lower()}; {longest} are possible")
            yield _text(self._tables.content[at + 4 : at + 4 + size], slot)

    def _metadata(self, node: Node, slot: IntEnum) -> dict[str, str]:
        notes = [(note.text(NoteSlot.KEY), note.text(NoteSlot.VALUE)) for note in self._nodes(node, slot, MAX_NOTES)]
        metadata = dict(notes)
        if len(metadata) != len(notes):
            raise FileFormatError("a metadata key is there twice")
        return metadata

    def _nodes(self, node: Node, slot: IntEnum, most: int) -> Sequence[Node]:
        """The tables of a vector that has no more than `most`."""
        _, count = node.span(slot)
        _check_count(slot, count, most)
        return list(node.children(slot))


def _check_count(slot: IntEnum, count: int, most: int) -> None:
    if count > most:
        raise FileFormatError(f"{count} {slot.name.lower()}; {most} are possible")


def _source(number: int) -> Source:
    try:
        return Source(number)
    except ValueError:
        raise FileFormatError(f"an extent has source {number}, which is not known") from None


def _text(content: memoryview, slot: IntEnum) -> str:
    try:
        return str(content, "utf-8")
    except UnicodeDecodeError as error:
        raise FileFormatError(f"text in {slot.name.lower()} is not UTF-8: {error}") from error
