"""The ledger of every store."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from pteforge.artifacts.digest import digest_bytes, digest_json
from pteforge.artifacts.ledger import FoundCase, Ledger, ModelRecord, SlotRecord, SourceRecord, StageRecord
from pteforge.artifacts.records import Seal
from pteforge.artifacts.ref import ArtifactRef, BlobRef
from pteforge.artifacts.runs import StageOutcome
from pteforge.artifacts.store import Store
from pteforge.errors import ObjectDamaged

BLOB = BlobRef(digest_bytes(b"x"), 1)
REF = ArtifactRef("program/aten", BLOB, digest_bytes(b"canonical"), composite=True)


def _record(number: int = 0) -> StageRecord:
    fields = {"stage": "export", "versions": {"torch": "2.13.0"}, "inputs": {}, "number": number}
    return StageRecord(
        digest_json(fields), fields, {"program": REF}, 1.25, 1 << 30, datetime.now(UTC).isoformat(), log=BLOB
    )


def _file(record: StageRecord) -> str:
    return f"ledger/stages/{record.key[:2]}/{record.key}"


def test_life_of_a_record(place):
    """A committed record is found on all hosts, a later one replaces it, and after `forget` it is a miss."""
    record = _record()
    with place.open("a") as here, place.open("b") as there:
        assert here.ledger.lookup(record.key) is None
        here.ledger.commit(record)
        assert there.ledger.lookup(record.key) == record
        here.ledger.commit(replace(record, seconds=9.0))
        assert there.ledger.lookup(record.key).seconds == 9.0
        assert len(list(there.ledger)) == 1
        there.ledger.forget(record.key)
        there.ledger.forget(record.key)
        assert here.ledger.lookup(record.key) is None


def test_whole_models(place):
    """A zoo's models are found on all hosts, under its own name; whatever stage is forgotten, they are, too."""
    record = _record()
    source = SourceRecord({"builder": "nets:linear", "kwargs": {"width": 8}}, ("plugin",), BLOB.digest)
    stage = StageOutcome("net/export", "export", None, ("portable",), "cached", record.key)
    model = ModelRecord(record.key, ("torch",), (source,), (stage,), ({"recipe": "portable"},), (BLOB,))
    with place.open("a") as here, place.open("b") as there:
        assert here.ledger.whole_models("zoo") == {}
        here.ledger.commit(record)
        here.ledger.remember_whole_models("zoo", {"net": model, "twin": model})
        here.ledger.remember_whole_models("other zoo", {"net": model})
        assert there.ledger.whole_models("zoo") == {"net": model, "twin": model}
        assert list(there.ledger) == [record]
        there.ledger.forget(record.key)
        assert here.ledger.whole_models("zoo") == here.ledger.whole_models("other zoo") == {}


def test_all_records_are_listed(place):
    """Iteration yields each valid record once."""
    with place.open() as store:
        records = [_record(number) for number in range(5)]
        for record in records:
            store.ledger.commit(record)
        assert sorted(store.ledger, key=lambda record: record.key) == sorted(records, key=lambda record: record.key)


# tests/artifacts/test_records.py damages seals in every way.
DAMAGE = (
    lambda _: b"",
    lambda sealed: sealed[:-1],
    lambda sealed: sealed[:-20] + bytes([sealed[-20] ^ 1]) + sealed[-19:],
    lambda sealed: sealed.split(b"\n", 1)[1],  # not sealed
)


def test_damaged_record_is_a_miss(place, caplog):
    """A damaged record is not used, is reported, and can be replaced."""
    with place.open() as store:
        for number, damage in enumerate(DAMAGE):
            record = _record(number)
            store.ledger.commit(record)
            sealed = store.ledger._files.read(_file(record))
            store.ledger._files.write(_file(record), damage(sealed))
            assert store.ledger.lookup(record.key) is None
            assert record.key in caplog.text
            assert record not in list(store.ledger)
            store.ledger.commit(record)
            assert store.ledger.lookup(record.key) == record


def test_sealed_content_of_another_form_is_a_miss(place, caplog):
    """Sealed content that is no record, for example of an older pteforge, is a miss too, and reported once."""
    contents = (b"null", b"[]", b"{}", b'{"key": 1}', b"not json", b"\xff", b"[" * 100_000)
    with place.open() as store:
        for number, content in enumerate(contents, 1):
            record = _record(number)
            store.ledger._records.write(_file(record), f"stage/{record.key}", content)
            for _ in range(2):
                assert store.ledger.lookup(record.key) is None
            assert caplog.text.count("not used") == number


def test_copied_record_is_a_miss(place, caplog):
    """A record that was copied to another key is not used for that key."""
    record, other = _record(0), _record(1)
    with place.open() as store:
        store.ledger.commit(record)
        store.ledger._files.write(_file(other), store.ledger._files.read(_file(record)))
        assert store.ledger.lookup(other.key) is None
        assert other.key in caplog.text


@pytest.mark.parametrize("key", [None, "somebody else's key, also longer than 32 characters"])
def test_records_of_others_are_misses(place, key, caplog):
    """If records are signed, those without our signature are misses, so that none of their objects is unpickled."""
    record = _record()
    with place.open() as store:
        Ledger(store.ledger._files, Seal(key)).commit(record)
        trusted = key is None and not place.url.startswith("s3")
        assert store.ledger.lookup(record.key) == (record if trusted else None)
        assert trusted or record.key in caplog.text


def test_slot_remembers_the_last_key(place):
    """A slot of any name returns the key and fields of its last use."""
    with place.open("a") as here, place.open("b") as there:
        slot = "modèle/../export/forward"
        assert here.ledger.last(slot) is None
        here.ledger.remember(slot, digest_bytes(b"1"), {"a": 1})
        here.ledger.remember(slot, digest_bytes(b"2"), {"a": {"b": [2, None]}})
        assert there.ledger.last(slot) == SlotRecord(slot, digest_bytes(b"2"), {"a": {"b": [2, None]}})
        assert there.ledger.last("another") is None
        assert list(here.ledger) == []


def test_watch_list_comes_back(place, caplog):
    """A source's watch list is stored, and an invalid one counts as empty."""
    with place.open() as store:
        assert store.ledger.watched("zoo.models:resnet8") == ()
        store.ledger.watch("zoo.models:resnet8", ["zoo.layers", "zoo.blocks"])
        assert store.ledger.watched("zoo.models:resnet8") == ("zoo.layers", "zoo.blocks")
        [name] = store.ledger._files.names("ledger/watch")
        store.ledger._records.write(name, "watch/zoo.models:resnet8", json.dumps([1]).encode())
        assert store.ledger.watched("zoo.models:resnet8") == ()
        assert "zoo.models:resnet8" in caplog.text


def test_found_inputs(place):
    """All hosts see what searches have found for a model and recipe: each once, the newest last, and no more than 8."""
    cases = [FoundCase(replace(REF, identity=digest_json(number)), BLOB.digest, number == 0) for number in range(10)]
    with place.open("a") as here, place.open("b") as there:
        assert here.ledger.found_inputs("net/int8") == ()
        for case in cases[:3]:
            here.ledger.keep_found("net/int8", case)
        here.ledger.keep_found("net/int8", cases[0])
        assert there.ledger.found_inputs("net/int8") == (cases[1], cases[2], cases[0])
        assert there.ledger.found_inputs("net/fp32") == ()
        here.ledger.keep_found("net/int8", *cases[3:])
        assert there.ledger.found_inputs("net/int8") == (cases[0], *cases[3:])
        assert [record.name for record in there.ledger.all_found()] == ["net/int8"]


def test_fields_must_be_json(place):
    """Fields that are not JSON are an error, and no record is written."""
    record = replace(_record(), fields={"not finite": float("nan")})
    with place.open() as store:
        with pytest.raises(ValueError, match="JSON"):
            store.ledger.commit(record)
        assert list(store.ledger) == []


def _stage(store: Store, name: str, *inputs: ArtifactRef, makes: bytes) -> tuple[StageRecord, ArtifactRef]:
    """Records a stage that read some artifacts and made one."""
    ref = store.local.put_artifact("report", makes)
    store.publish(ref)
    fields = {"stage": name, "inputs": {str(number): ref.identity for number, ref in enumerate(inputs)}}
    reads = tuple(ref.root.digest for ref in inputs)
    record = StageRecord(digest_json(name), fields, {"made": ref}, 1.0, 0, "2026-01-02", reads=reads)
    store.ledger.commit(record)
    return record, ref


def test_what_was_made_from_damage_is_forgotten(place):
    """Stages that read a damaged object, and those that read what only such stages have made, run again."""
    with place.open("a") as store:
        weights, ref = _stage(store, "export", makes=b"weights")
        edge, edged = _stage(store, "edge", ref, makes=b"edge")
        _, common = _stage(store, "names", ref, makes=b"common")
        other, _ = _stage(store, "other names", makes=b"common")
        _stage(store, "file", edged, makes=b"file")
        reader, _ = _stage(store, "reader", common, makes=b"read")
        assert store.forget_damaged() == set()
        place.plant(store, ref.root.digest, b"WEIGHTS")
        with place.open("fresh") as fresh, pytest.raises(ObjectDamaged):
            fresh.fetch(ref)
    with place.open("b") as store:
        kept = {weights.key, other.key, reader.key}
        forgotten = {record.key for record in store.ledger} - kept
        assert edge.key in forgotten
        assert store.forget_damaged() == forgotten
        assert {record.key for record in store.ledger} == kept
        assert store.forget_damaged() == set()
