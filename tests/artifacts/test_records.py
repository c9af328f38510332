"""Refs, manifests, records and seals come back as they were, and nothing else passes for them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pteforge.artifacts.digest import canonical_json, digest_bytes, digest_json, parse_digest
from pteforge.artifacts.ledger import SlotRecord, StageRecord
from pteforge.artifacts.manifest import Manifest
from pteforge.artifacts.ref import ArtifactRef, BlobRef
from pteforge.artifacts.runs import FieldChange, RunRecord, StageOutcome, differing_fields
from pteforge.artifacts.signing import Seal, SealError

names = st.text(max_size=20)
numbers = st.integers(0, 2**63)
seconds = st.floats(0, 1e9)
digests = st.binary(max_size=8).map(digest_bytes)
blobs = st.builds(BlobRef, digests, numbers)
refs = st.builds(ArtifactRef, names, blobs, digests, st.booleans())
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | names,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=10,
)
fields = st.dictionaries(names, json_values, max_size=4)
stage_records = st.builds(
    StageRecord, digests, fields, st.dictionaries(names, refs, max_size=3), seconds, numbers, names, st.none() | blobs
)
outcomes = st.builds(
    StageOutcome,
    names,
    names,
    st.none() | names,
    st.lists(names, max_size=3).map(tuple),
    st.sampled_from(["ran", "cached", "failed"]),
    st.none() | digests,
    st.lists(st.builds(FieldChange, names, json_values, json_values), max_size=3).map(tuple),
    seconds,
    names,
)
run_records = st.builds(
    RunRecord,
    names,
    names,
    names,
    seconds,
    st.dictionaries(names, st.lists(outcomes, max_size=2).map(tuple), max_size=2),
)


@given(blobs)
def test_blob_ref_comes_back(blob):
    """A blob ref survives JSON."""
    assert BlobRef.from_json(blob.to_json()) == blob


@given(refs)
def test_artifact_ref_comes_back(ref):
    """An artifact ref survives JSON."""
    assert ArtifactRef.from_json(ref.to_json()) == ref


@given(names, st.lists(blobs, max_size=4).map(tuple), json_values)
def test_manifest_comes_back(kind, children, body):
    """A manifest survives encoding, and equal manifests have equal bytes."""
    manifest = Manifest(kind, children, body)
    assert Manifest.decode(manifest.encode()) == manifest
    assert Manifest.decode(manifest.encode()).encode() == manifest.encode()


@given(stage_records)
def test_stage_record_comes_back(record):
    """A stage record survives encoding."""
    assert StageRecord.decode(record.encode()) == record


@given(names, digests, fields)
def test_slot_record_comes_back(slot, key, key_fields):
    """A slot record survives encoding."""
    record = SlotRecord(slot, key, key_fields)
    assert SlotRecord.decode(record.encode()) == record


@given(run_records)
def test_run_record_comes_back(record):
    """A run record survives encoding."""
    assert RunRecord.decode(record.encode()) == record


@pytest.mark.parametrize("decode", [Manifest.decode, StageRecord.decode, SlotRecord.decode, RunRecord.decode])
@given(value=json_values)
def test_other_json_is_refused(decode, value):
    """JSON of another shape is a ValueError, never a record with wrong attributes."""
    with pytest.raises(ValueError, match="not a"):
        decode(canonical_json(value))


@pytest.mark.parametrize("parse", [BlobRef.from_json, ArtifactRef.from_json, parse_digest])
@given(value=json_values)
def test_other_values_are_no_refs(parse, value):
    """Values of another shape are a ValueError."""
    with pytest.raises(ValueError, match="not a"):
        parse(value)


@pytest.mark.parametrize("key", [None, "k" * 32])
@given(purpose=names, content=st.binary())
def test_seal_opens_for_its_purpose(key, purpose, content):
    """What was sealed comes back, for the same purpose only."""
    sealed = Seal(key).close(purpose, content)
    assert Seal(key).open(purpose, sealed) == content
    with pytest.raises(SealError):
        Seal(key).open(purpose + "x", sealed)


@pytest.mark.parametrize("key", [None, "k" * 32])
@given(content=st.binary(max_size=50), position=st.integers(0), bit=st.integers(0, 7), cut=st.integers(0))
def test_seal_notices_every_change(key, content, position, bit, cut):
    """No bit of a sealed content can be flipped, and none of it cut off."""
    sealed = Seal(key).close("stage/x", content)
    flipped = bytearray(sealed)
    flipped[position % len(sealed)] ^= 1 << bit
    for changed in (bytes(flipped), sealed[: cut % len(sealed)], sealed + b"\n"):
        with pytest.raises(SealError):
            Seal(key).open("stage/x", changed)


@pytest.mark.parametrize(
    ("ours", "theirs", "reason"),
    [("a" * 32, None, "not signed"), ("a" * 32, "b" * 32, "another key"), (None, "a" * 32, "another way")],
)
def test_seal_says_why_it_does_not_open(ours, theirs, reason):
    """A record that others sealed is refused with what is wrong."""
    with pytest.raises(SealError, match=reason):
        Seal(ours).open("stage/x", Seal(theirs).close("stage/x", b"content"))


def test_purpose_and_content_are_kept_apart():
    """A part of the purpose cannot be moved into the content."""
    sealed = Seal("k" * 32).close("stage/x", b"y")
    with pytest.raises(SealError):
        Seal("k" * 32).open("stage/", sealed.replace(b"\ny", b"\nx\0y"))


@given(fields)
def test_equal_fields_do_not_differ(before):
    """Nothing differs between equal fields."""
    assert differing_fields(before, before) == ()


@given(fields, fields)
def test_fields_differ_exactly_where_keys_do(before, after):
    """Some field differs if, and only if, the keys made of them do; seen from the other side it is the reverse."""
    changes = differing_fields(before, after)
    assert bool(changes) == (digest_json(before) != digest_json(after))
    reverse = tuple(FieldChange(change.field, change.after, change.before) for change in changes)
    assert differing_fields(after, before) == reverse


def test_differing_fields_have_dotted_paths():
    """Nested objects are compared field by field; lists, and values of another type, as a whole."""
    before = {
        "params": {"delegate": {"threads": 1, "layout": [1, 2]}, "old": 1},
        "stage": "edge",
        "one": 1,
        "gone": None,
    }
    after = {"params": {"delegate": {"threads": 4, "layout": [1, 3]}, "new": {}}, "stage": "edge", "one": 1.0}
    assert differing_fields(before, after) == (
        FieldChange("gone", None, None),
        FieldChange("one", 1, 1.0),
        FieldChange("params.delegate.layout", [1, 2], [1, 3]),
        FieldChange("params.delegate.threads", 1, 4),
        FieldChange("params.new", None, {}),
        FieldChange("params.old", 1, None),
    )
