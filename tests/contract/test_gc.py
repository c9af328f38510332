"""What upkeep must do, and must never do, on every store."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from pteforge.artifacts.digest import digest_json
from pteforge.artifacts.gc import collect, list_objects, usage, verify_store
from pteforge.artifacts.ledger import StageRecord
from pteforge.artifacts.manifest import Manifest
from pteforge.artifacts.object_folder import VERIFIED_MTIME_NS
from pteforge.artifacts.ref import ArtifactRef
from pteforge.artifacts.store import Store

NOW = timedelta(0)
AT_ONCE = timedelta(seconds=-2)
"""Servers round times to seconds: this takes what was published in the same second too."""


def _commit(store: Store, number: int, *, finished: datetime | None = None) -> StageRecord:
    """A finished stage with a composite output of two objects, one of which all stages share, and a log."""
    blobs = (store.local.put_bytes(b"shared weights"), store.local.put_bytes(f"weights {number}".encode()))
    ref = store.local.put_manifest(Manifest("program/aten", blobs, number))
    log = store.local.put_artifact("log", f"log {number}".encode())
    store.publish(ref)
    store.publish(log)
    fields = {"number": number}
    record = StageRecord(
        digest_json(fields), fields, {"program": ref}, 1.0, 0, (finished or datetime.now(UTC)).isoformat(), log.root
    )
    store.ledger.commit(record)
    return record


def _digests(store: Store, record: StageRecord) -> set[str]:
    return {blob.digest for blob in store.objects_of(record.outputs["program"])} | {record.log.digest}


def _litter(store: Store) -> ArtifactRef:
    ref = store.local.put_artifact("litter", b"no record names this")
    store.publish(ref)
    return ref


def test_only_unneeded_objects_go(place):
    """Everything that records lead to stays, logs and shared objects too; the rest goes."""
    with place.open("a") as store, place.open("b") as fresh:
        records = [_commit(store, number) for number in range(3)]
        litter = _litter(store)
        needed = set().union(*(_digests(store, record) for record in records))
        report = collect(store, keep_newer_than=AT_ONCE)
        assert (report.objects_removed, report.bytes_removed) == (1, litter.root.size)
        assert report.objects_kept == len(needed)
        assert {stored.digest for stored in list_objects(store)} == needed
        assert not fresh.has(litter)
        for record in records:
            fresh.fetch(record.outputs["program"])


def test_young_objects_stay(place):
    """Within the grace period an object that no record names (yet) stays."""
    with place.open() as store:
        litter = _litter(store)
        assert collect(store).objects_removed == 0
        assert store.has(litter)


def test_dry_run_removes_nothing(place):
    """A dry run says what it would do, and does nothing."""
    with place.open() as store:
        record = _commit(store, 0, finished=datetime.now(UTC) - timedelta(days=3))
        litter = _litter(store)
        report = collect(store, keep_newer_than=AT_ONCE, older_than=timedelta(days=2), dry_run=True)
        assert (report.dry_run, report.records_dropped) == (True, 1)
        assert report.objects_removed == 1 + len(_digests(store, record))
        assert store.has(litter)
        assert store.ledger.lookup(record.key) == record


def test_old_records_are_dropped(place):
    """With an age given, older records go, and what only they needed; what younger ones share with them stays."""
    with place.open() as store:
        old = _commit(store, 0, finished=datetime.now(UTC) - timedelta(days=3))
        young = _commit(store, 1, finished=datetime.now(UTC) - timedelta(days=1))
        report = collect(store, keep_newer_than=AT_ONCE, older_than=timedelta(days=2))
        assert report.records_dropped == 1
        assert store.ledger.lookup(old.key) is None
        assert list(store.ledger) == [young]
        assert {stored.digest for stored in list_objects(store)} == _digests(store, young)


def test_objects_of_running_stages_stay(place):
    """What was published, even again, since the oldest lease was taken stays, whatever the grace period."""
    with place.open() as store:
        litter = _litter(store)
        with store.leases.hold(digest_json("a stage")):
            again = _litter(store)
            assert collect(store, keep_newer_than=AT_ONCE).objects_removed == 0
            assert again == litter
            assert store.has(litter)
        assert collect(store, keep_newer_than=AT_ONCE).objects_removed == 1
        assert not store.has(litter)


_PUBLISHER = """
import sys
from pathlib import Path
import pytest
from pteforge.artifacts.digest import digest_json
from pteforge.artifacts.ledger import StageRecord
from pteforge.artifacts.manifest import Manifest
from pteforge.artifacts.store import open_store
with open_store(sys.argv[1], cache=Path(sys.argv[2])) as store:
    print("ready", flush=True)
    for number in range(int(sys.argv[3])):
        key = digest_json(["published", number])
        with store.leases.hold(key):
            pieces = (number, number + 1, 255) if sys.argv[4] == "shared" else (number, number + 60, number + 120)
            blobs = tuple(store.local.put_bytes(bytes([piece]) * 100) for piece in pieces)
            ref = store.local.put_manifest(Manifest("program/aten", blobs, None))
            store.publish(ref)
            store.ledger.commit(StageRecord(key, {}, {"program": ref}, 1.0, 0, "2026-01-01T00:00:00+00:00"))
        if number % 3 == 2:
            store.ledger.forget(key)
"""


@pytest.mark.slow
def test_collecting_beside_a_publisher_loses_nothing(shared_place, start):
    """While a process publishes, no collection takes what a record names, even without any grace.

    On a disk that holds for objects too that lie around unneeded when they are published again; on a server they are
    safe within the grace period only.
    """
    rounds, pieces = (60, "shared") if shared_place.is_local else (10, "own")
    publisher = start(_PUBLISHER, shared_place.url, str(shared_place.folder / "publisher"), str(rounds), pieces)
    assert publisher.stdout.readline() == "ready\n"
    removed = 0
    with shared_place.open("collector") as store:
        while publisher.poll() is None:
            removed += collect(store, keep_newer_than=NOW).objects_removed
        assert publisher.returncode == 0
    with shared_place.open("fresh") as store:
        records = list(store.ledger)
        assert len(records) == rounds - rounds // 3
        assert verify_store(store).incomplete == ()
        removed += collect(store, keep_newer_than=AT_ONCE).objects_removed
        assert removed > 0
        for record in records:
            store.fetch(record.outputs["program"])


_WRITER = """
import sys
from pathlib import Path
from pteforge.artifacts.store import open_store
with open_store(sys.argv[1], cache=Path(sys.argv[2])) as store:
    with store.local.scratch() as folder, store.local.writer() as writer:
        (folder / "weights").write_bytes(b"x" * 1000)
        writer.write(b"half of it")
        print("half", flush=True)
        sys.stdin.readline()
        writer.write(b" and the rest")
    print(writer.ref.size, flush=True)
"""


def test_unfinished_files_of_the_living_stay(shared_place, start):
    """Collecting does not disturb a process that is writing; what a killed one leaves goes."""
    alive, dead = (start(_WRITER, shared_place.url, str(shared_place.folder / "host")) for _ in range(2))
    assert alive.stdout.readline() == dead.stdout.readline() == "half\n"
    dead.send_signal(signal.SIGKILL)
    dead.wait()
    with shared_place.open("host") as store:
        report = collect(store, keep_newer_than=AT_ONCE)
        assert report.leftovers_removed == 2  # a file and a folder
        assert len(list((store.local.root / "tmp").iterdir())) == 2
        alive.stdin.write("\n")
        alive.stdin.flush()
        assert alive.stdout.readline() == "23\n"
        assert alive.wait() == 0
        assert list((store.local.root / "tmp").iterdir()) == []


def test_damaged_objects_are_swept_after_the_grace(place):
    """What was moved aside is kept for the grace period, then goes."""
    with place.open("a") as store, place.open("b") as fresh:
        litter = _litter(store)
        place.plant(store, litter.root.digest, b"damaged")
        assert list(verify_store(fresh).damaged) == [litter.root.digest]
        assert place.quarantined(fresh) == [b"damaged"]
        collect(fresh)
        assert place.quarantined(fresh) == [b"damaged"]
        collect(fresh, keep_newer_than=AT_ONCE)
        assert place.quarantined(fresh) == []


def test_verification_finds_all_damage(place):
    """A deep check finds damage that no size or time shows, and says which stages have to run again."""
    with place.open("a") as store, place.open("b") as fresh:
        good, bad, gone = (_commit(store, number) for number in range(3))
        victims = [store.local.manifest(record.outputs["program"]).blobs[1] for record in (bad, gone)]
        _flip_unnoticed(place, store, victims[0].digest)
        place.plant(store, victims[1].digest, None)
        seen = []
        report = verify_store(fresh, progress=lambda done, total: seen.append((done, total)))
        assert report.damaged == (victims[0].digest,)
        assert set(report.incomplete) == {bad.key, gone.key}
        assert (report.objects, seen[-1]) == (9, (9, 9))
        assert verify_store(fresh).damaged == ()
        fresh.fetch(good.outputs["program"])


def _flip_unnoticed(place, store: Store, digest: str) -> None:
    """Damage as a disk makes it: the bytes change, the file's size and times do not."""
    place.plant(store, digest, b"W" + place.stored(store, digest)[1:])
    if place.is_local:
        path = store.local.root / "objects" / digest[:2] / digest
        path.chmod(0o444)
        os.utime(path, ns=(VERIFIED_MTIME_NS, VERIFIED_MTIME_NS))


def test_usage_counts(place):
    """Usage says how many records, objects, bytes and artifacts of each kind there are."""
    with place.open() as store:
        _commit(store, 0)
        record = _commit(store, 1)
        store.ledger.commit(replace(record, key=digest_json("same outputs")))
        counted = usage(store)
        assert (counted.records, counted.objects) == (3, 7)
        assert counted.size == sum(stored.size for stored in list_objects(store))
        assert counted.artifacts == {"program/aten": 2}
