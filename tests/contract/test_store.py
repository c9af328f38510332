"""Objects and artifacts of every store."""

from __future__ import annotations

import secrets
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
from pteforge.artifacts.ref import ArtifactManifest, ArtifactRef, BlobRef
from pteforge.artifacts.store import Store
from pteforge.errors import ObjectDamaged, ObjectMissing

DAMAGE = {
    "flipped": lambda content: bytes([content[0] ^ 1]) + content[1:],
    "truncated": lambda content: content[:-1],
    "emptied": lambda _: b"",
    "deleted": lambda _: None,
}


def _publish_composite(store: Store, pieces: int = 3) -> ArtifactRef:
    blobs = tuple(store.local.put_bytes(secrets.token_bytes(1000 + number)) for number in range(pieces))
    ref = store.local.put_manifest(ArtifactManifest("weights", blobs, {"pieces": pieces}))
    store.publish(ref)
    return ref


def test_artifacts_reach_another_host(place):
    """Another host fetches a published artifact: a single object, or a manifest with all its objects."""
    with place.open("a") as here, place.open("b") as there:
        simple = here.local.put_artifact("report", b"all is well")
        here.publish(simple)
        composite = _publish_composite(here)
        for ref in (simple, composite):
            assert there.has(ref)
            there.fetch(ref)
        assert there.local.read_artifact(simple) == b"all is well"
        assert there.local.path(simple.root).stat().st_mode & 0o222 == 0
        manifest = there.local.manifest(composite)
        assert manifest.body == {"pieces": 3}
        assert [there.local.read(blob) for blob in manifest.blobs] == [here.local.read(blob) for blob in manifest.blobs]
        assert there.local.objects_of(composite) == (composite.root, *manifest.blobs)


def test_absent_artifact_is_reported(place):
    """An unpublished artifact does not exist, and the error of fetching it names the missing object."""
    with place.open() as store:
        ref = ArtifactRef("report", BlobRef("0" * 64, 5), "0" * 64)
        assert not store.has(ref)
        with pytest.raises(ObjectMissing, match=r"0{64}"):
            store.fetch(ref)
        with pytest.raises(ObjectMissing):
            store.publish(ref)


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("part", ["root", "child"])
def test_damaged_object_is_never_used(place, damage, part):
    """Damage in the store is noticed before use, quarantined, and repaired by publishing again."""
    with place.open("a") as here, place.open("b") as there:
        ref = _publish_composite(here)
        manifest = here.local.manifest(ref)
        blobs = {blob.digest: here.local.read(blob) for blob in here.local.objects_of(ref)}
        victim = ref.root if part == "root" else manifest.blobs[1]
        bad = DAMAGE[damage](blobs[victim.digest])
        place.plant(here, victim.digest, bad)
        with pytest.raises(ObjectMissing if bad is None else ObjectDamaged, match=victim.digest):
            there.fetch(ref)
        assert not there.local.contains(victim)
        assert not there.has(ref)
        assert place.quarantined(there) == ([] if bad is None else [bad])
        for content in blobs.values():
            here.local.put_bytes(content)
        here.publish(ref)
        assert place.stored(here, victim.digest) == blobs[victim.digest]
        there.fetch(ref)
        assert there.local.read(victim) == blobs[victim.digest]


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_local_copy_is_never_used(place, damage):
    """A damaged local copy is noticed before use, and downloaded again if the store has a valid object."""
    with place.open() as store:
        ref = store.local.put_artifact("report", b"all is well")
        store.publish(ref)
        bad = DAMAGE[damage](b"all is well")
        place.plant_copy(store, ref.root.digest, bad)
        assert not store.local.contains(ref.root)
        if place.is_local:
            with pytest.raises(ObjectMissing):
                store.fetch(ref)
            assert store.local.put_artifact("report", b"all is well") == ref
        store.fetch(ref)
        assert store.local.read_artifact(ref) == b"all is well"


@pytest.mark.parametrize("place", ["memory", "s3"], indirect=True)
def test_objects_are_not_downloaded_beyond_their_size(place, monkeypatch):
    """Of a large file in place of a small object, one byte more than the object has is read."""
    with place.open("a") as here, place.open("b") as there:
        ref = here.local.put_artifact("report", b"all is well")
        here.publish(ref)
        place.plant(here, ref.root.digest, bytes(1 << 20))
        read, read_part = [], there._files._read_part
        monkeypatch.setattr(there._files, "_read_part", lambda *part: read.append(read_part(*part)) or read[-1])
        with pytest.raises(ObjectDamaged):
            there.fetch(ref)
        assert [len(content) for content in read] == [12, 12]


def test_publishing_again(place):
    """Publishing is idempotent: same refs, one object. A remote object of a wrong size does not count as published."""
    with place.open("a") as here, place.open("b") as there:
        ref = here.local.put_artifact("report", b"all is well")
        here.publish(ref)
        assert here.local.put_artifact("report", b"all is well") == ref
        here.publish(ref)
        assert [stored.digest for stored in here.objects()] == [ref.root.digest]
        place.plant(here, ref.root.digest, b"all is")
        here.local.put_bytes(b"all is well")
        here.publish(ref)
        assert there.has(ref)
        there.fetch(ref)
        assert there.local.read_artifact(ref) == b"all is well"


def test_threads_publish_at_once(place):
    """Threads that publish artifacts with common objects all succeed, and every object exists."""
    with place.open("a") as here, place.open("b") as there:
        common = [secrets.token_bytes(5000) for _ in range(4)]

        def publish(number: int) -> ArtifactRef:
            blobs = tuple(here.local.put_bytes(content) for content in [*common, bytes([number]) * 100])
            ref = here.local.put_manifest(ArtifactManifest("weights", blobs, number))
            here.publish(ref)
            return ref

        with ThreadPoolExecutor(8) as pool:
            refs = list(pool.map(publish, range(16)))
        for ref in refs:
            there.fetch(ref)
        assert len(list(there.objects())) == 4 + 16 + 16


_PUBLISHER = """
import sys
from pathlib import Path
from pteforge.artifacts.ref import ArtifactManifest
from pteforge.artifacts.store import open_store
with open_store(sys.argv[1], cache=Path(sys.argv[2])) as store:
    print("ready", flush=True)
    sys.stdin.readline()
    blobs = tuple(store.local.put_bytes(bytes([n]) * 30_000) for n in range(20))
    store.publish(store.local.put_manifest(ArtifactManifest("weights", blobs, None)))
    print("published", flush=True)
"""


@pytest.mark.slow
def test_processes_publish_at_once(shared_place, start):
    """Processes that publish the same artifact at the same time all succeed, and leave one valid copy."""
    processes = [start(_PUBLISHER, shared_place.url, str(shared_place.folder / "shared")) for _ in range(3)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        assert process.stdout.readline() == "published\n"
        assert process.wait() == 0
    with shared_place.open("fresh") as store:
        for stored in store.objects():
            assert store.check(BlobRef(stored.digest, stored.size))
        assert len(list(store.objects())) == 21


def test_killed_publisher_leaves_the_store_valid(shared_place, start):
    """After kill -9 during publishing, all existing objects are valid, and the next run completes the artifact."""
    process = start(_PUBLISHER, shared_place.url, str(shared_place.folder / "victim"))
    assert process.stdout.readline() == "ready\n"
    with shared_place.open("witness") as store:
        process.stdin.write("\n")
        process.stdin.flush()
        while not list(store.objects()):
            assert process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
        for stored in store.objects():
            assert store.check(BlobRef(stored.digest, stored.size))
        blobs = tuple(store.local.put_bytes(bytes([n]) * 30_000) for n in range(20))
        ref = store.local.put_manifest(ArtifactManifest("weights", blobs, None))
        store.publish(ref)
    with shared_place.open("fresh") as store:
        store.fetch(ref)
        assert store.has(ref)
