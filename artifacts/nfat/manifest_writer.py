"""The manifest of a version 2 container, written as a flatbuffer."""

# flatbuffers and the code that its compiler makes have no types.
# mypy: disallow-untyped-calls=False

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from flatbuffers import Builder  # type: ignore[import-untyped]  # ships neither stubs nor py.typed

from . import nfat_generated as generated
from .contents import Manifest, Payload

IDENTIFIER = b"NFM2"


def write_manifest(manifest: Manifest) -> bytes:
    """The flatbuffer; equal manifests have equal bytes. Nothing is checked: `limits.check_manifest` does."""
    builder = Builder(1024)
    payloads = _offsets(
        builder,
        generated.ManifestStartPayloadsVector,
        [_write_payload(builder, payload) for payload in manifest.payloads],
    )
    generated.ManifestStartBlobsVector(builder, len(manifest.blobs))
    for blob in reversed(manifest.blobs):
        generated.CreateBlob(builder, blob.size, bytes.fromhex(blob.digest))
    blobs = builder.EndVector()
    metadata = _write_notes(builder, generated.ManifestStartMetadataVector, manifest.metadata)
    generated.ManifestStart(builder)
    generated.ManifestAddPayloads(builder, payloads)
    generated.ManifestAddBlobs(builder, blobs)
    generated.ManifestAddAlignment(builder, manifest.alignment)
    generated.ManifestAddMetadata(builder, metadata)
    builder.Finish(generated.ManifestEnd(builder), file_identifier=IDENTIFIER)
    return bytes(builder.Output())


def _write_payload(builder: Builder, payload: Payload) -> int:
    description = payload.description
    name = builder.CreateString(description.name)
    version = builder.CreateString(description.executorch_version)
    sha256 = builder.CreateByteVector(bytes.fromhex(payload.sha256 or ""))
    parts = builder.CreateByteVector(bytes.fromhex(payload.parts_sha256)) if payload.parts_sha256 else None
    backends = _write_texts(builder, generated.PayloadStartBackendsVector, description.backends)
    methods = _write_texts(builder, generated.PayloadStartMethodsVector, description.methods)
    metadata = _write_notes(builder, generated.PayloadStartMetadataVector, description.metadata)
    generated.PayloadStartExtentsVector(builder, len(payload.extents))
    for extent in reversed(payload.extents):
        generated.CreateExtent(builder, extent.position, extent.offset, extent.source, extent.blob)
    extents = builder.EndVector()
    generated.PayloadStart(builder)
    generated.PayloadAddName(builder, name)
    generated.PayloadAddSize(builder, payload.size)
    generated.PayloadAddSha256(builder, sha256)
    generated.PayloadAddExtents(builder, extents)
    generated.PayloadAddBackends(builder, backends)
    generated.PayloadAddMethods(builder, methods)
    generated.PayloadAddExecutorchVersion(builder, version)
    generated.PayloadAddFeatures(builder, payload.features)
    generated.PayloadAddMetadata(builder, metadata)
    if parts is not None:
        generated.PayloadAddPartsSha256(builder, parts)
    written: int = generated.PayloadEnd(builder)
    return written


_StartVector = Callable[[Builder, int], int]


def _write_notes(builder: Builder, start: _StartVector, metadata: Mapping[str, str]) -> int:
    notes = []
    for key, value in sorted(metadata.items()):
        texts = builder.CreateString(key), builder.CreateString(value)
        generated.NoteStart(builder)
        generated.NoteAddKey(builder, texts[0])
        generated.NoteAddValue(builder, texts[1])
        notes.append(generated.NoteEnd(builder))
    return _offsets(builder, start, notes)


def _write_texts(builder: Builder, start: _StartVector, texts: Sequence[str]) -> int:
    return _offsets(builder, start, [builder.CreateString(text) for text in texts])


def _offsets(builder: Builder, start: _StartVector, offsets: Sequence[int]) -> int:
    start(builder, len(offsets))
    for offset in reversed(offsets):
        builder.PrependUOffsetTRelative(offset)
    written: int = builder.EndVector()
    return written
