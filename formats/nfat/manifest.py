"""The manifest of a version 2 container: written as a flatbuffer, read with every offset checked."""

# mypy: disallow-untyped-calls=False
# flatbuffers is untyped.

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from enum import IntEnum
from itertools import pairwise
from typing import Any

from flatbuffers import Builder  # type: ignore[import-untyped]  # ships neither stubs nor py.typed

from ...artifacts.digest import Digest
from ...errors import FileFormatError
from ..pte.contents import Extent
from ..pte.tables import F64, U8, U32, U64, Flatbuffer, TableView
from . import contents
from . import slots_generated as slots
from .limits import MAX_BACKENDS, MAX_MANIFEST, MAX_METHOD, MAX_METHODS, MAX_NOTES, MAX_PAYLOADS, MAX_WORD

_BLOB = struct.Struct("<Q32s")
_SHA256_SIZE = 32


def read_manifest(content: memoryview) -> contents.Manifest:
    """Reads a manifest; raises FileFormatError if it is damaged. `limits.check_manifest` checks its meaning."""
    if not 8 <= len(content) <= MAX_MANIFEST:
        raise FileFormatError(f"a manifest of {len(content)} bytes; 8 to {MAX_MANIFEST} are possible")
    if content[4:8] != slots.IDENTIFIER:
        raise FileFormatError(f"a manifest with identifier {bytes(content[4:8])!r}, not {slots.IDENTIFIER!r}")
    try:
        return _Reader(content).manifest()
    except FileFormatError as error:
        # Messages of `pte.tables` are about programs.
        raise FileFormatError(f"damaged manifest: {str(error).removeprefix('damaged program: ')}") from error


def write_manifest(manifest: contents.Manifest) -> bytes:
    """The flatbuffer; equal manifests have equal bytes. Nothing is checked: see `limits.check_manifest`."""
    builder = Builder(1024)
    payloads = _write_offsets(builder, [_write_payload(builder, payload) for payload in manifest.payloads])
    rows = [(blob.size, *bytes.fromhex(blob.digest)) for blob in manifest.blobs]
    blobs = _write_structs(builder, (U64, *[U8] * _SHA256_SIZE), rows)
    metadata = _write_notes(builder, manifest.metadata)
    builder.StartObject(len(slots.Manifest))
    builder.PrependUOffsetTRelativeSlot(slots.Manifest.PAYLOADS, payloads, 0)
    builder.PrependUOffsetTRelativeSlot(slots.Manifest.BLOBS, blobs, 0)
    builder.PrependUint32Slot(slots.Manifest.ALIGNMENT, manifest.alignment, contents.BYTE_ALIGNMENT)
    builder.PrependUOffsetTRelativeSlot(slots.Manifest.METADATA, metadata, 0)
    builder.Finish(builder.EndObject(), file_identifier=slots.IDENTIFIER)
    return bytes(builder.Output())


class _Reader:
    def __init__(self, content: memoryview) -> None:
        self._tables = Flatbuffer(content)
        self._extents_left = len(content) // contents.EXTENT.size

    def manifest(self) -> contents.Manifest:
        root = self._tables.root()
        return contents.Manifest(
            payloads=tuple(self._payload(node) for node in self._nodes(root, slots.Manifest.PAYLOADS, MAX_PAYLOADS)),
            blobs=tuple(
                contents.Blob(Digest(sha256.hex()), size)
                for size, sha256 in _BLOB.iter_unpack(self._structs(root, slots.Manifest.BLOBS, _BLOB))
            ),
            alignment=root.number(slots.Manifest.ALIGNMENT, U32, 16),
            metadata=self._metadata(root, slots.Manifest.METADATA),
        )

    def _payload(self, node: TableView) -> contents.Payload:
        size = node.number(slots.Payload.SIZE, U64)
        features = node.number(slots.Payload.FEATURES, U64)
        sha256 = self._digest(node, slots.Payload.SHA256)
        if sha256 is None:
            raise FileFormatError("a SHA-256 of 0 bytes")
        description = contents.Description(
            name=node.text(slots.Payload.NAME),
            backends=tuple(self._texts(node, slots.Payload.BACKENDS, MAX_BACKENDS, MAX_WORD)),
            methods=tuple(self._texts(node, slots.Payload.METHODS, MAX_METHODS, MAX_METHOD)),
            executorch_version=node.text(slots.Payload.EXECUTORCH_VERSION),
            metadata=self._metadata(node, slots.Payload.METADATA),
        )
        parts_sha256 = self._digest(node, slots.Payload.PARTS_SHA256)
        payload = contents.Payload(description, size, sha256, (), features, parts_sha256)
        if payload.unknown_features:
            return payload
        extents = self._halved(node, tuple(self._extents(node, size)))
        transposes = tuple(self._transposes(node, len(extents)))
        return replace(payload, extents=extents, transposes=transposes, self_check=self._self_check(node))

    def _self_check(self, node: TableView) -> contents.SelfCheck | None:
        check = node.child(slots.Payload.SELF_CHECK)
        if check is None:
            return None
        blob, repeats = check.number(slots.SelfCheck.BLOB, U32), check.number(slots.SelfCheck.REPEATS, U32)
        return contents.SelfCheck(blob, check.number(slots.SelfCheck.TOLERANCE, F64, 0.0), repeats)

    def _digest(self, node: TableView, slot: IntEnum) -> Digest | None:
        extent = node.extent(slot)
        if extent.size not in (0, _SHA256_SIZE):
            raise FileFormatError(f"a SHA-256 of {extent.size} bytes")
        return Digest(bytes(extent.of(self._tables.content)).hex()) if extent.size else None

    def _extents(self, node: TableView, size: int) -> Iterator[contents.MappedExtent]:
        """The extents with sizes, which are 0 or negative if positions do not ascend."""
        structs = self._structs(node, slots.Payload.EXTENTS, contents.EXTENT)
        self._extents_left -= len(structs) // contents.EXTENT.size
        if self._extents_left < 0:
            raise FileFormatError("payloads have more extents than fit into the manifest")
        for start in range(0, len(structs), contents.EXTENT.size):
            position, offset, source, blob = contents.EXTENT.unpack_from(structs, start)
            following = start + contents.EXTENT.size
            end = U64.packer_type.unpack_from(structs, following)[0] if following < len(structs) else size
            yield contents.MappedExtent(position, end - position, _source(source), offset, blob)

    def _transposes(self, node: TableView, most: int) -> Iterator[contents.Transpose]:
        _check_count(slots.Payload.TRANSPOSES, node.extent(slots.Payload.TRANSPOSES).size, most)
        structs = contents.TRANSPOSE.iter_unpack(self._structs(node, slots.Payload.TRANSPOSES, contents.TRANSPOSE))
        return (contents.Transpose(extent, contents.MatrixShape(*shape)) for extent, *shape in structs)

    def _halved(self, node: TableView, extents: tuple[contents.MappedExtent, ...]) -> tuple[contents.MappedExtent, ...]:
        """The extents, with those marked that are stored as 32-bit numbers."""
        _check_count(slots.Payload.HALVES, node.extent(slots.Payload.HALVES).size, len(extents))
        structs = self._structs(node, slots.Payload.HALVES, contents.HALF)
        halves = [index for (index,) in contents.HALF.iter_unpack(structs)]
        for last, index in pairwise([-1, *halves]):
            if not last < index < len(extents):
                raise FileFormatError(f"half extent {index} after {last}; there are {len(extents)} extents")
        marked = set(halves)
        return tuple(replace(extent, half=True) if index in marked else extent for index, extent in enumerate(extents))

    def _structs(self, node: TableView, slot: IntEnum, layout: struct.Struct) -> memoryview:
        vector = node.extent(slot)
        structs = Extent(vector.offset, vector.size * layout.size)
        self._tables.charge(structs.offset, structs.size)
        return structs.of(self._tables.content)

    def _texts(self, node: TableView, slot: IntEnum, most: int, longest: int) -> Iterator[str]:
        vector = node.extent(slot)
        _check_count(slot, vector.size, most)
        for item in range(vector.offset, vector.offset + 4 * vector.size, 4):
            position = item + self._tables.number(U32, item)
            text = Extent(position + 4, self._tables.number(U32, position))
            self._tables.charge(text.offset, text.size)
            if text.size > longest:
                raise FileFormatError(f"a text of {text.size} bytes in {slot.name.lower()}; {longest} are possible")
            yield _text(text.of(self._tables.content), slot)

    def _metadata(self, node: TableView, slot: IntEnum) -> dict[str, str]:
        nodes = self._nodes(node, slot, MAX_NOTES)
        notes = [(note.text(slots.Note.KEY), note.text(slots.Note.VALUE)) for note in nodes]
        metadata = dict(notes)
        if len(metadata) != len(notes):
            raise FileFormatError("a metadata key is repeated")
        return metadata

    def _nodes(self, node: TableView, slot: IntEnum, most: int) -> Sequence[TableView]:
        _check_count(slot, node.extent(slot).size, most)
        return list(node.children(slot))


def _check_count(slot: IntEnum, count: int, most: int) -> None:
    if count > most:
        raise FileFormatError(f"{count} {slot.name.lower()}; {most} are possible")


def _source(number: int) -> contents.Source:
    try:
        return contents.Source(number)
    except ValueError:
        raise FileFormatError(f"an extent has source {number}, which is unknown") from None


def _text(content: memoryview, slot: IntEnum) -> str:
    try:
        return str(content, "utf-8")
    except UnicodeDecodeError as error:
        raise FileFormatError(f"text in {slot.name.lower()} is not UTF-8: {error}") from error


def _write_payload(builder: Builder, payload: contents.Payload) -> int:
    description = payload.description
    name = builder.CreateString(description.name)
    version = builder.CreateString(description.executorch_version)
    sha256 = builder.CreateByteVector(bytes.fromhex(payload.sha256 or ""))
    parts = builder.CreateByteVector(bytes.fromhex(payload.parts_sha256)) if payload.parts_sha256 else 0
    backends = _write_offsets(builder, [builder.CreateString(backend) for backend in description.backends])
    methods = _write_offsets(builder, [builder.CreateString(method) for method in description.methods])
    metadata = _write_notes(builder, description.metadata)
    extents = _write_structs(
        builder,
        (U64, U64, U32, U32),
        [(extent.position, extent.offset, extent.source, extent.blob) for extent in payload.extents],
    )
    shapes = [(turn.extent, turn.shape.item, turn.shape.rows, turn.shape.columns) for turn in payload.transposes]
    transposes = _write_structs(builder, [U32] * 4, shapes) if shapes else 0
    halves = _write_structs(builder, [U32], [(index,) for index in payload.halves]) if payload.halves else 0
    check = _write_self_check(builder, payload.self_check) if payload.self_check else 0
    builder.StartObject(len(slots.Payload))
    builder.PrependUOffsetTRelativeSlot(slots.Payload.NAME, name, 0)
    builder.PrependUint64Slot(slots.Payload.SIZE, payload.size, 0)
    builder.PrependUOffsetTRelativeSlot(slots.Payload.SHA256, sha256, 0)
    builder.PrependUOffsetTRelativeSlot(slots.Payload.EXTENTS, extents, 0)
    builder.PrependUOffsetTRelativeSlot(slots.Payload.BACKENDS, backends, 0)
    builder.PrependUOffsetTRelativeSlot(slots.Payload.METHODS, methods, 0)
    builder.PrependUOffsetTRelativeSlot(slots.Payload.EXECUTORCH_VERSION, version, 0)
    builder.PrependUint64Slot(slots.Payload.FEATURES, payload.features, 0)
    builder.PrependUOffsetTRelativeSlot(slots.Payload.METADATA, metadata, 0)
    builder.PrependUOffsetTRelativeSlot(slots.Payload.PARTS_SHA256, parts, 0)
    builder.PrependUOffsetTRelativeSlot(slots.Payload.TRANSPOSES, transposes, 0)
    builder.PrependUOffsetTRelativeSlot(slots.Payload.HALVES, halves, 0)
    builder.PrependUOffsetTRelativeSlot(slots.Payload.SELF_CHECK, check, 0)
    return int(builder.EndObject())


def _write_self_check(builder: Builder, check: contents.SelfCheck) -> int:
    builder.StartObject(len(slots.SelfCheck))
    builder.PrependFloat64Slot(slots.SelfCheck.TOLERANCE, check.tolerance, 0.0)
    builder.PrependUint32Slot(slots.SelfCheck.BLOB, check.blob, 0)
    builder.PrependUint32Slot(slots.SelfCheck.REPEATS, check.repeats, 0)
    return int(builder.EndObject())


def _write_notes(builder: Builder, metadata: Mapping[str, str]) -> int:
    notes = []
    for key, value in sorted(metadata.items()):
        texts = builder.CreateString(key), builder.CreateString(value)
        builder.StartObject(len(slots.Note))
        builder.PrependUOffsetTRelativeSlot(slots.Note.KEY, texts[0], 0)
        builder.PrependUOffsetTRelativeSlot(slots.Note.VALUE, texts[1], 0)
        notes.append(builder.EndObject())
    return _write_offsets(builder, notes)


def _write_offsets(builder: Builder, offsets: Sequence[int]) -> int:
    builder.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        builder.PrependUOffsetTRelative(offset)
    return int(builder.EndVector())


def _write_structs(builder: Builder, members: Sequence[Any], rows: Sequence[Sequence[int]]) -> int:
    """A vector of structs without padding, from the types of their members and a row of numbers for each."""
    builder.StartVector(sum(flags.bytewidth for flags in members), len(rows), max(flags.bytewidth for flags in members))
    for row in reversed(rows):
        for flags, number in reversed(list(zip(members, row, strict=True))):
            builder.Prepend(flags, number)
    return int(builder.EndVector())
