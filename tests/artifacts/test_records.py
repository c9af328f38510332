"""Refs, manifests, records and seals survive a round trip, and nothing else is accepted in their place."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pteforge.artifacts.digest import Digest, canonical_json, digest_bytes, digest_json, parse_digest
from pteforge.artifacts.ledger import SlotRecord, StageRecord, WatchRecord
from pteforge.artifacts.records import Seal, SealError, decode
from pteforge.artifacts.ref import ArtifactManifest, ArtifactRef, BlobRef
from pteforge.artifacts.runs import FieldChange, RunRecord, StageOutcome, differing_fields
from pteforge.tasks.results.accuracy import AccuracyReport, Score, Scores
from pteforge.tasks.results.figures import Case, summarize
from pteforge.tasks.results.numerics import NodeLoss, NodeLosses, Rung

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

manifests = st.builds(ArtifactManifest, names, st.lists(blobs, max_size=4).map(tuple), json_values)
slot_records = st.builds(SlotRecord, names, digests, fields)


@given(refs | manifests | stage_records | slot_records | run_records)
def test_records_come_back(record):
    """Records survive encoding, and equal records have equal bytes."""
    decoded = type(record).decode(record.encode())
    assert decoded == record
    assert decoded.encode() == record.encode()
    assert type(record).from_json(record.to_json()) == record


@pytest.mark.parametrize(
    "kind", [BlobRef, ArtifactRef, ArtifactManifest, StageRecord, SlotRecord, StageOutcome, RunRecord, Digest]
)
@given(value=json_values)
def test_other_json_is_refused(kind, value):
    """JSON of another shape is a ValueError of one line, never a record with wrong attributes."""
    with pytest.raises(ValueError, match=r"\Anot a valid .{1,200}\Z"):
        decode(kind, canonical_json(value))


RIGHT_REF = {"kind": "report", "root": ["a" * 64, 7], "identity": "a" * 64, "composite": False}
RIGHT_MANIFEST = {"format": 1, "kind": "weights", "blobs": [], "body": None}


@pytest.mark.parametrize(
    ("kind", "right", "wrong", "problem"),
    [
        (ArtifactRef, RIGHT_REF, {"root": ["a" * 64, True]}, "root.1"),
        (ArtifactRef, RIGHT_REF, {"root": ["a" * 64, "7"]}, "root.1"),
        (ArtifactRef, RIGHT_REF, {"root": ["a" * 64, -1]}, "root.1"),
        (ArtifactRef, RIGHT_REF, {"root": ["a" * 63 + "g", 7]}, "root.0"),
        (ArtifactRef, RIGHT_REF, {"identity": "a" * 64 + "\n"}, "identity"),
        (ArtifactRef, RIGHT_REF, {"composite": 1}, "composite"),
        (ArtifactRef, RIGHT_REF, {"kind": None}, "kind"),
        *((ArtifactManifest, RIGHT_MANIFEST, {"format": version}, "format") for version in (2, "1", None)),
    ],
)
def test_wrong_members_are_named(kind, right, wrong, problem):
    """Values are not converted, a later layout is not read in part, and the message says which member is wrong."""
    assert canonical_json(kind.from_json(right).to_json()) == canonical_json(right)
    with pytest.raises(ValueError, match=f"valid {kind.__name__}: .*'{problem}'"):
        kind.from_json(right | wrong)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 100_000, b'{"key": "' + b"k" * 100_000])
def test_malformed_json_is_refused(content):
    """Bytes that are not JSON, or are nested too deeply, are a ValueError with a short message."""
    with pytest.raises(ValueError, match=r"\Anot a valid StageRecord: .{1,200}\Z"):
        StageRecord.decode(content)


@given(json_values)
def test_digests_are_checked(value):
    """Only 64 lower-case hexadecimal characters are a digest."""
    with pytest.raises(ValueError, match="not a SHA-256"):
        parse_digest(value)


@pytest.mark.parametrize("key", [None, "k" * 32])
@given(purpose=names, content=st.binary())
def test_seal_opens_for_its_purpose(key, purpose, content):
    """Sealed content is returned for the same purpose only."""
    sealed = Seal(key).close(purpose, content)
    assert Seal(key).open(purpose, sealed) == content
    with pytest.raises(SealError):
        Seal(key).open(purpose + "x", sealed)


@pytest.mark.parametrize("key", [None, "k" * 32])
@given(content=st.binary(max_size=50), position=st.integers(0), bit=st.integers(0, 7), cut=st.integers(0))
def test_seal_notices_every_change(key, content, position, bit, cut):
    """Any flipped bit and any truncation is noticed."""
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
    """A record that others sealed is refused, with the reason; the purpose's end cannot be moved into the content."""
    with pytest.raises(SealError, match=reason):
        Seal(ours).open("stage/x", Seal(theirs).close("stage/x", b"content"))
    with pytest.raises(SealError):
        Seal(ours).open("stage/", Seal(ours).close("stage/x", b"y").replace(b"\ny", b"\nx\0y"))


@given(fields, fields)
def test_fields_differ_exactly_where_keys_do(before, after):
    """Fields differ if and only if their digests do; swapping the arguments swaps the changes."""
    assert differing_fields(before, before) == ()
    changes = differing_fields(before, after)
    assert bool(changes) == (digest_json(before) != digest_json(after))
    reverse = tuple(FieldChange(change.field, change.after, change.before) for change in changes)
    assert differing_fields(after, before) == reverse


def test_differing_fields_have_dotted_paths():
    """Nested objects are compared field by field; lists, and values of another type, as a whole."""
    params = {"delegate": {"threads": 1, "layout": [1, 2]}, "old": 1}
    before = {"params": params, "stage": "edge", "one": 1, "gone": None}
    after = {"params": {"delegate": {"threads": 4, "layout": [1, 3]}, "new": {}}, "stage": "edge", "one": 1.0}
    assert differing_fields(before, after) == (
        FieldChange("gone", None, None),
        FieldChange("one", 1, 1.0),
        FieldChange("params.delegate.layout", [1, 2], [1, 3]),
        FieldChange("params.delegate.threads", 1, 4),
        FieldChange("params.new", None, {}),
        FieldChange("params.old", 1, None),
    )


A, B = "a" * 64, "b" * 64
BLOB = BlobRef(A, 7)
REF = ArtifactRef("program/aten", BLOB, B, composite=True)
FIELDS = {"params": {"é": [1, 2.5, None, True]}, "inputs": {}}
TIME = "2026-01-02T03:04:05+00:00"
CHANGES = (FieldChange("versions.torch", None, "2"),)
RAN = StageOutcome("net/export/forward", "export", "forward", ("one", "two"), "ran", A, CHANGES, 1.5)
FAILED = StageOutcome("net/verify", "verify", None, (), "failed", None, message="why")
FIGURES = summarize(
    [
        Case("forward", "example 0", 0, 0.5, 0.25, 30.0, "xnnpack", 4, 3, "float16"),
        Case("forward", "drawn 1", 0, 0.0, 0.0, None),
    ],
    {"vulkan": "no backend"},
)
SCORES = Scores((Score("", 0.75), Score("xnnpack", 0.5)), {"vulkan": "no backend"})
LOSS = NodeLoss("add", "aten.add.Tensor", ("x", "y"), "", "net.py:1 forward", FIGURES.overall, None, "NaN")
RUNG = Rung("edge", ("xnnpack",), "forward", FIGURES.overall)
RECORDS = {
    "artifact ref": REF,
    "manifest": ArtifactManifest("weights", (BLOB, BlobRef(B, 0)), {"graph": 0, "names": ["w"]}),
    "stage record": StageRecord(A, FIELDS, {"program": REF}, 2.0, 1 << 30, TIME, BLOB, reads=(A,)),
    "stage record without a log": StageRecord(A, {}, {}, 0.125, 0, TIME),
    "watch record": WatchRecord("nets:linear", ("layers",)),
    "slot record": SlotRecord("net/export/forward", A, FIELDS),
    "run record": RunRecord("id", "zoo.yaml", TIME, 3.5, {"net": (RAN, FAILED)}, "failed", {"jobs": 1}, "host", "1.0"),
    "figures": FIGURES,
    "scores": SCORES,
    "accuracy report": AccuracyReport("zoo:evaluate", 0.5, None, 0.8, SCORES),
    "rung": RUNG,
    "node losses": NodeLosses((LOSS,), 3),
}
STORED = dict(line.split("\t") for line in Path(__file__).with_name("stored.tsv").read_text("utf-8").splitlines())


@pytest.mark.parametrize("name", RECORDS)
def test_stored_bytes(name):
    """The JSON of records is a storage format: its bytes stay the same, and what is stored already stays readable."""
    assert STORED.keys() == RECORDS.keys()
    record = RECORDS[name]
    stored = STORED[name].encode()
    assert canonical_json(record.to_json()) == stored
    assert type(record).from_json(json.loads(stored)) == record
