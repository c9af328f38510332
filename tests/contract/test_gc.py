"""Garbage collection and verification, on every store."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pteforge.artifacts.digest import digest_bytes, digest_json
from pteforge.artifacts.gc import collect, usage, verify_store
from pteforge.artifacts.lease import LeaseTiming
from pteforge.artifacts.ledger import FoundCase, StageRecord
from pteforge.artifacts.local_store import VERIFIED_MTIME_NS
from pteforge.artifacts.ref import ArtifactRef
from pteforge.artifacts.runs import RunRecord, StageOutcome, run_lease
from pteforge.artifacts.store import RemoteStore, Store, open_store
from pteforge.tests.contract.conftest import commit

NOW = timedelta(0)
AT_ONCE = timedelta(seconds=-2)
"""Servers round times to seconds: this includes objects of the same second."""


def _digests(store: Store, record: StageRecord) -> set[str]:
    return {blob.digest for blob in store.objects_of(record.outputs["program"])} | {record.log.digest}


def _litter(store: Store) -> ArtifactRef:
    ref = store.local.put_artifact("litter", b"no record names this")
    store.publish(ref)
    return ref


def test_only_unneeded_objects_go(place):
    """Objects that records refer to stay, logs and shared objects included; others go after the grace period."""
    with place.open("a") as store, place.open("b") as fresh:
        records = [commit(store, number) for number in range(3)]
        litter = _litter(store)
        needed = set().union(*(_digests(store, record) for record in records))
        assert collect(store).objects_removed == 0
        assert store.has(litter)
        report = collect(store, keep_newer_than=AT_ONCE)
        assert (report.objects_removed, report.bytes_removed) == (1, litter.root.size)
        assert report.objects_kept == len(needed)
        assert {stored.digest for stored in store.objects()} == needed
        assert not fresh.has(litter)
        for record in records:
            fresh.fetch(record.outputs["program"])


def test_what_searches_have_found_stays(place):
    """Inputs that verification runs again are kept without a stage that made them, and are named as the reason."""
    with place.open("a") as store, place.open("b") as fresh:
        found = FoundCase(_litter(store), digest_bytes(b"file"), wrong=True)
        store.ledger.keep_found("net/int8", found)
        report = collect(store, keep_newer_than=AT_ONCE, older_than=NOW)
        assert (report.objects_removed, report.objects_kept) == (0, 1)
        assert list(report.kept) == ["found by searches, which verification repeats"]
        fresh.fetch(found.inputs)


def test_old_records_are_dropped(place):
    """Records older than `older_than` are dropped with their objects, except those that younger records share."""
    with place.open() as store:
        old = commit(store, 0, finished=datetime.now(UTC) - timedelta(days=3))
        young = commit(store, 1, finished=datetime.now(UTC) - timedelta(days=1))
        litter = _litter(store)
        unneeded = _digests(store, old) - _digests(store, young)
        ages = {"keep_newer_than": AT_ONCE, "older_than": timedelta(days=2)}
        tried = collect(store, **ages, dry_run=True)
        assert store.has(litter)
        assert store.ledger.lookup(old.key) == old
        report = collect(store, **ages)
        assert tried == replace(report, dry_run=True)
        assert report.records_dropped == 1
        assert report.objects_removed == 1 + len(unneeded)
        assert store.ledger.lookup(old.key) is None
        assert list(store.ledger) == [young]
        assert {stored.digest for stored in store.objects()} == _digests(store, young)


def test_objects_of_running_stages_stay(place):
    """Objects published (even again) since the oldest current lease stay, whatever the grace period."""
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
from pteforge.artifacts.ref import ArtifactManifest
from pteforge.artifacts.store import open_store
with open_store(sys.argv[1], cache=Path(sys.argv[2])) as store:
    print("ready", flush=True)
    for number in range(int(sys.argv[3])):
        key = digest_json(["published", number])
        with store.leases.hold(key):
            pieces = (number, number + 1, 255) if sys.argv[4] == "shared" else (number, number + 60, number + 120)
            blobs = tuple(store.local.put_bytes(bytes([piece]) * 100) for piece in pieces)
            ref = store.local.put_manifest(ArtifactManifest("program/aten", blobs, None))
            store.publish(ref)
            store.ledger.commit(StageRecord(key, {}, {"program": ref}, 1.0, 0, "2026-01-01T00:00:00+00:00"))
        if number % 3 == 2:
            store.ledger.forget(key)
"""


@pytest.mark.slow
def test_collecting_during_publishing_loses_nothing(shared_place, start):
    """While a process publishes, no collection removes objects of a record, even without a grace period.

    On a disk this includes unneeded objects that are published again; a server protects them by the grace period only.
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
from pteforge.artifacts.digest import digest_bytes
from pteforge.artifacts.files import staging_file
from pteforge.artifacts.lease import LocalLeases
from pteforge.artifacts.store import open_store
with open_store(sys.argv[1], cache=Path(sys.argv[2])) as store, store.local.scratch() as folder:
    (folder / "weights").write_bytes(b"x" * 1000)
    leases = LocalLeases(store.local.root / "leases")
    with staging_file(store.local.root / "tmp") as (path, file), leases.hold(digest_bytes(sys.argv[3].encode())):
        print("half", flush=True)
        sys.stdin.readline()
        print(path.exists(), (folder / "weights").exists(), flush=True)
"""


def test_staging_files_of_running_processes_stay(shared_place, start):
    """A collection keeps the files and leases of a process that is writing, and removes those of a killed one."""
    host = str(shared_place.folder / "host")
    alive, dead = (start(_WRITER, shared_place.url, host, name) for name in ("alive", "dead"))
    assert alive.stdout.readline() == dead.stdout.readline() == "half\n"
    dead.send_signal(signal.SIGKILL)
    dead.wait()
    with shared_place.open("host") as store:
        report = collect(store, keep_newer_than=AT_ONCE)
        assert report.leftovers_removed == 3  # a file, a folder and a lease
        assert [path.name for path in (store.local.root / "leases").iterdir()] == [digest_bytes(b"alive")]
        assert alive.communicate("\n")[0] == "True True\n"
        assert alive.returncode == 0
        assert list((store.local.root / "tmp").iterdir()) == []


def test_damaged_objects_are_swept_after_the_grace(place):
    """Quarantined objects are kept for the grace period, then removed."""
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
    """Verification finds damage that sizes and times do not show, and lists the stages that must run again."""
    with place.open("a") as store, place.open("b") as fresh:
        good, bad, gone = (commit(store, number) for number in range(3))
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


def _run(store: Store, hours_ago: float, *records: StageRecord, zoo: str = "zoo", status: str = "completed") -> None:
    """Records a run that used some stages."""
    stages = tuple(StageOutcome(f"net/{r.key}", "edge", None, (), "cached", r.key) for r in records)
    started = (datetime.now(UTC) - timedelta(hours=hours_ago)).isoformat()
    store.runs.write(RunRecord(f"{zoo}{hours_ago}", zoo, started, 1.0, {"net": stages} if stages else {}, status))


def _old(store: Store, number: int) -> StageRecord:
    return commit(store, number, finished=datetime.now(UTC) - timedelta(days=30))


def test_what_the_last_runs_used(place):
    """`keep_last` keeps what so many runs of each zoo used, not counting empty ones, and what is young."""
    with place.open() as store:
        records = [_old(store, number) for number in range(5)]
        _run(store, 500, records[0])
        _run(store, 400, records[1])
        _run(store, 300, records[2])
        _run(store, 290)  # found nothing
        _run(store, 450, records[3], zoo="other")
        tried = collect(store, keep_newer_than=AT_ONCE, keep_last=2, dry_run=True)
        assert tried.records_dropped == 2
        young = commit(store, 6)
        done = collect(store, keep_newer_than=timedelta(hours=420), keep_last=1)
        assert done.records_dropped == 2  # 0 and 4: within 420 hours are the runs that used 1 and 2
        assert {record.key for record in store.ledger} == {r.key for r in (*records[1:4], young)}
        assert collect(store, keep_newer_than=AT_ONCE, keep_last=0).objects_kept == 0


def test_what_fits(place):
    """`max_bytes` drops what was not used for the longest time until the rest fits, and nothing that is kept anyway."""
    with place.open() as store:
        records = [_old(store, number) for number in range(4)]
        _run(store, 300, records[0])
        _run(store, 200, records[2])
        size = usage(store).size
        assert collect(store, keep_newer_than=AT_ONCE, max_bytes=size).records_dropped == 0
        report = collect(store, keep_newer_than=AT_ONCE, max_bytes=size - 1)
        assert (report.records_dropped, report.objects_removed) == (1, 3)  # what others share stays
        report = collect(store, keep_newer_than=AT_ONCE, max_bytes=0, keep_last=1)
        assert report.bytes_kept > 0
        assert [record.key for record in store.ledger] == [records[2].key]
        assert store.has(records[2].outputs["program"])


def test_runs_under_way(place):
    """While a zoo is lowered, nothing that any of its runs used goes: it may be in use."""
    with place.open() as store:
        records = [_old(store, number) for number in range(2)]
        _run(store, 500, records[0])
        _run(store, 400, records[1])
        _run(store, 0.1, status="running")
        with store.leases.hold(run_lease("zoo0.1")):
            for bounds in ({"keep_last": 0}, {"max_bytes": 0}):
                report = collect(store, keep_newer_than=AT_ONCE, **bounds)
                assert report.records_dropped == 0
                assert list(report.kept) == ["used by earlier runs of zoo, which run zoo0.1 is lowering now"]
        assert collect(store, keep_newer_than=AT_ONCE, keep_last=1).records_dropped == 1
        assert [record.key for record in store.ledger] == [records[1].key]


@pytest.mark.parametrize("place", ["s3"], indirect=True)
def test_leases_of_other_machines(place):
    """The lease of a machine that died is free within minutes by the server's clock, if nothing is heard then."""
    timing = LeaseTiming(heartbeat=1000, expiry=0.3, poll=0.05)
    with RemoteStore(place.url, place.folder / "host", timing=timing) as store, store.leases.hold(run_lease("run")):
        now = store.clock()
        assert set(store.leases.held(now + 60)) == {run_lease("run")}
        assert store.leases.held(now + 120) == {}


def test_incomplete_runs(place):
    """A run that did not come to its end takes no other's place among those that `keep_last` keeps, and is kept."""
    with place.open() as store:
        records = [_old(store, number) for number in range(3)]
        _run(store, 500, records[0])
        _run(store, 400, records[1])
        _run(store, 300, records[2], status="interrupted")
        _run(store, 200, records[2], status="running")  # and killed
        assert collect(store, keep_newer_than=AT_ONCE, keep_last=1).records_dropped == 1
        assert {record.key for record in store.ledger} == {record.key for record in records[1:]}


def _run_of(store: Store, hours_ago: float, *records: StageRecord, **fields: Any) -> None:
    """Records a run that made the files of models a and b, unless `fields` say something else."""
    stages = tuple(StageOutcome(f"net/{r.key}", "edge", None, (), "ran", r.key) for r in records)
    started = (datetime.now(UTC) - timedelta(hours=hours_ago)).isoformat()
    files = {name: {"fast": {"status": "made"}} for name in "ab"}
    store.runs.write(RunRecord(**{"id": f"{hours_ago}", "files": files, **fields}, zoo="zoo", started=started,
                               seconds=1.0, models={"net": stages}))  # fmt: skip


ONE = {"a": {"fast": {"status": "made"}}}


@pytest.mark.parametrize(
    ("later", "counts"),
    [
        ([{}], True),
        ([{"files": ONE}], True),  # the other one is in the zoo no more
        ([{"status": "running"}], False),  # and killed
        ([{"status": "interrupted"}], False),
        ([{"files": ONE, "parameters": {"models": "a"}, "part_of": "killed"}], False),
        ([{"files": ONE, "parameters": {"models": "a"}, "status": "running", "part_of": "killed"}], False),
        ([{"files": ONE, "parameters": {"models": "a"}}], False),
        ([{"files": {}, "parameters": {"models": "*", "until": "export"}}], False),
        ([{"files": {**ONE, "b": {"fast": {"status": "failed"}}}, "status": "failed"}], False),
        ([{"files": {**ONE, "c": {"fast": {"status": "failed"}}}, "status": "failed"}], True),  # never was made
        ([{"id": "1", "status": "failed", "files": {}}, {"id": "1"}], True),  # attempts of one run
        ([{"id": "1", "status": "failed", "files": {}}, {"id": "1", "status": "running"}], False),
    ],
)
def test_only_whole_runs_count(tmp_path, later, counts):
    """`keep_last` counts runs that made all that their zoo could; newer ones are kept with them."""
    with open_store(str(tmp_path / "store")) as store:
        before, whole, *others = (_old(store, number) for number in range(2 + len(later)))
        _run_of(store, 900, before)
        _run_of(store, 800, whole)
        for index, (record, fields) in enumerate(zip(others, later, strict=True)):
            _run_of(store, 700 - index, record, **fields)
        collect(store, keep_newer_than=AT_ONCE, keep_last=1)
        kept = {record.key for record in store.ledger}
        assert (whole.key not in kept) == counts
        assert {record.key for record in others[-1:]} <= kept
        assert before.key not in kept


def test_each_kept_object_has_a_reason(place):
    """The reasons say what keeps each object, which counts once; those of a dry run are the same."""
    with place.open() as store:
        used, other, recent = (_old(store, number) for number in range(3))
        _run(store, 500, used)
        _run(store, 300, other, zoo="other")
        _run(store, 1, recent)
        litter = _litter(store)
        for options in (
            {},
            {"keep_last": 1},
            {"keep_last": 0, "keep_newer_than": timedelta(hours=400)},
            {"keep_newer_than": AT_ONCE, "keep_last": 0, "max_bytes": 10**6},
            {"keep_newer_than": AT_ONCE, "keep_last": 0},
        ):
            tried = collect(store, **options, dry_run=True)
            assert sum(kept.objects for kept in tried.kept.values()) == tried.objects_kept == len(tried.reasons)
            assert sum(kept.size for kept in tried.kept.values()) == tried.bytes_kept
            assert {*tried.reasons.values()} == tried.kept.keys()
        assert collect(store, keep_last=1).reasons[other.log.digest] == "used by the newest run of other"
        report = collect(store, keep_newer_than=timedelta(hours=400), keep_last=0)
        assert report.reasons[recent.log.digest] == "used within the grace period (--keep-newer-than)"
        assert report.reasons[litter.root.digest].startswith("needed by no stage, written within the grace period")
        with store.leases.hold(digest_json("a stage")):
            again = _litter(store)
            report = collect(store, keep_newer_than=timedelta(seconds=-60))
        assert "since the oldest stage or run that is going on began" in report.reasons[again.root.digest]


def _flip_unnoticed(place, store: Store, digest: str) -> None:
    """Simulates a disk error: changes bytes, but neither size nor times."""
    place.plant(store, digest, b"W" + place.stored(store, digest)[1:])
    if place.is_local:
        path = store.local.root / "objects" / digest[:2] / digest
        path.chmod(0o444)
        os.utime(path, ns=(VERIFIED_MTIME_NS, VERIFIED_MTIME_NS))


def test_usage_counts(place):
    """Usage counts records, objects, bytes, and artifacts of each kind."""
    with place.open() as store:
        commit(store, 0)
        record = commit(store, 1)
        store.ledger.commit(replace(record, key=digest_json("same outputs")))
        counted = usage(store)
        assert (counted.records, counted.objects) == (3, 7)
        assert counted.size == sum(stored.size for stored in store.objects())
        assert counted.artifacts == {"program/aten": 2}
        assert counted.models == {}
        _run(store, 1, record, replace(record, key=digest_json("gone")))
        counted = usage(store)
        outputs = {stored.digest: stored.size for stored in store.objects()}
        (kind,), (model,) = counted.kinds.values(), counted.models.values()
        logs = sum(len(f"log {number}") for number in range(2))
        assert (kind.stages, kind.size) == (3, counted.size - logs)
        assert (model.stages, model.newest) == (1, record.finished)
        assert model.size == sum(outputs[blob.digest] for blob in store.objects_of(record.outputs["program"]))
