"""The manifest is the schema's flatbuffer and round-trips."""

import json
import subprocess
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from flatbuffers import Builder
from hypothesis import given
from hypothesis import strategies as st
from pteforge.artifacts.digest import Digest
from pteforge.formats.nfat import manifest as manifest_module
from pteforge.formats.nfat import slots_generated as slots
from pteforge.formats.nfat.contents import (
    Blob,
    Description,
    Manifest,
    MappedExtent,
    MatrixShape,
    Payload,
    SelfCheck,
    Source,
    Transpose,
)
from pteforge.formats.nfat.limits import check_manifest
from pteforge.formats.nfat.manifest import read_manifest, write_manifest

_INLINE_SIZE = 1 << 20

_tolerances = st.floats(0, 1, exclude_min=True)
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
            spent = left.setdefault((source, blob), 4 * held)  # the most that a payload may take from a source
            if offset >= held or not spent:
                source, blob, offset = Source.ZEROS, 0, 0
                size = draw(st.integers(1, 2**20))
            else:
                size = draw(st.integers(1, min(held - offset, 2**20, spent)))
                left[source, blob] -= size
            extents.append(MappedExtent(position, size, source, offset, blob))
            position += size
        description = Description(
            name,
            tuple(sorted(draw(st.sets(_words, max_size=3)))),
            tuple(draw(st.lists(_texts.filter(bool), max_size=3))),
            draw(st.one_of(st.just(""), _words)),
            draw(_metadata),
        )
        parts = draw(st.one_of(st.none(), _digests))
        transposes = tuple(
            Transpose(index, MatrixShape(item, 2, 2))
            for index, extent in enumerate(extents)
            for item in [draw(st.sampled_from([0, 1, 2, 16]))]
            if item and extent.source is not Source.ZEROS and extent.size % (4 * item) == 0
        )
        turned = {transpose.extent for transpose in transposes}
        last = extents[-1]
        if (
            last.source is not Source.ZEROS
            and last.size >= 4
            and len(extents) - 1 not in turned
            and draw(st.booleans())
        ):
            extents[-1] = replace(last, size=last.size // 4 * 2, half=True)
            position = last.position + extents[-1].size
        features = int(bool(transposes)) | (2 if any(extent.half for extent in extents) else 0)
        golden = [index for index, blob in enumerate(blobs) if 4 <= blob.size <= 1 << 24]
        check = (
            draw(st.builds(SelfCheck, st.sampled_from(golden), _tolerances, st.integers(1, 100))) if golden else None
        )
        check = draw(st.sampled_from([check, None]))
        payloads.append(
            Payload(description, position, draw(_digests), tuple(extents), features, parts, transposes, check)
        )
    return Manifest(tuple(payloads), tuple(blobs), draw(st.sampled_from([16, 128, 65536])), draw(_metadata))


@given(_manifests())
def test_round_trip(manifest):
    """What was written is read as it was, and equal manifests have equal bytes."""
    check_manifest(manifest, _INLINE_SIZE)
    content = write_manifest(manifest)
    assert read_manifest(memoryview(content)) == manifest
    assert write_manifest(manifest) == content


def test_flatc_reads_what_is_written(tmp_path):
    """The code that flatc makes of the schema finds every field of a manifest where the writer put it."""
    schema = Path(manifest_module.__file__).with_name("nfat.fbs")
    flatc = Path(next(iter(find_spec("executorch").submodule_search_locations))) / "data" / "bin" / "flatc"
    digests = [Digest(f"{number:02x}" * 32) for number in range(1, 5)]
    extents = (MappedExtent(0, 16, Source.INLINE), MappedExtent(16, 8, Source.BLOB, 48, 1, half=True))
    payload = Payload(
        Description("a", ("XnnpackBackend",), ("forward", "encode"), "1.5.1", {"key": "value"}),
        24,
        digests[0],
        extents,
        3,
        digests[1],
        (Transpose(0, MatrixShape(1, 2, 8)),),
        SelfCheck(1, 0.25, 3),
    )
    manifest = Manifest((payload,), (Blob(digests[2], 5), Blob(digests[3], 7)), 128, {"made": "here"})
    (tmp_path / "manifest.bin").write_bytes(write_manifest(manifest))
    options = ["--json", "--strict-json", "--raw-binary", "-o", tmp_path, schema, "--", tmp_path / "manifest.bin"]
    subprocess.run([flatc, *options], check=True)
    assert json.loads((tmp_path / "manifest.json").read_text()) == {
        "payloads": [
            {
                "name": "a",
                "size": 24,
                "sha256": list(bytes.fromhex(digests[0])),
                "extents": [
                    {"position": 0, "offset": 0, "source": "INLINE", "blob": 0},
                    {"position": 16, "offset": 48, "source": "BLOB", "blob": 1},
                ],
                "backends": ["XnnpackBackend"],
                "methods": ["forward", "encode"],
                "executorch_version": "1.5.1",
                "features": 3,
                "metadata": [{"key": "key", "value": "value"}],
                "parts_sha256": list(bytes.fromhex(digests[1])),
                "transposes": [{"extent": 0, "item": 1, "rows": 2, "columns": 8}],
                "halves": [1],
                "self_check": {"tolerance": 0.25, "blob": 1, "repeats": 3},
            }
        ],
        "blobs": [{"size": size, "sha256": list(bytes.fromhex(digests[size // 2]))} for size in (5, 7)],
        "alignment": 128,
        "metadata": [{"key": "made", "value": "here"}],
    }


def test_fields_of_the_future_and_of_the_past(monkeypatch):
    """A reader ignores fields that a later schema adds at the end of a table; those that are left out have defaults."""
    later = {len(slots.Payload), len(slots.Manifest)}
    earlier = [slots.Payload.BACKENDS, slots.Payload.METHODS, slots.Payload.EXECUTORCH_VERSION, slots.Payload.METADATA]
    later |= {len(slots.SelfCheck)} - {len(slots.Manifest)}
    earlier += [slots.Manifest.BLOBS, slots.Manifest.ALIGNMENT, slots.Manifest.METADATA]

    class OtherBuilder(Builder):
        def StartObject(self, numfields):  # noqa: N802 - flatbuffers' name
            super().StartObject(numfields + (numfields in later))
            if numfields in later:
                self.PrependUint32Slot(numfields, 7, 0)

        def Slot(self, slotnum):  # noqa: N802 - flatbuffers' name
            if not any(slotnum is slot for slot in earlier):
                super().Slot(slotnum)

    monkeypatch.setattr(manifest_module, "Builder", OtherBuilder)
    payload = Payload(Description("portable"), 5, Digest("0" * 64), (MappedExtent(0, 5, Source.ZEROS),))
    assert read_manifest(memoryview(write_manifest(Manifest((payload,))))) == Manifest((payload,), alignment=16)
