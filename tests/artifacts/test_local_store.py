"""What only a local store does: files, marks, moves, trust."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pteforge.artifacts.digest import Digest, digest_bytes
from pteforge.artifacts.local_store import LocalStore
from pteforge.artifacts.manifest import Manifest
from pteforge.artifacts.object_folder import VERIFIED_MTIME_NS
from pteforge.artifacts.ref import ArtifactRef, BlobRef
from pteforge.errors import ObjectDamaged, ObjectMissing, StoreError


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    """A new store."""
    return LocalStore.open(tmp_path / "store")


def _file(store: LocalStore, blob: BlobRef) -> Path:
    return store.root / "objects" / blob.digest[:2] / blob.digest


@pytest.mark.parametrize("make", [bytes, bytearray, memoryview])
def test_bytes_come_back(store, make):
    """Any bytes-like object is published as its content, at the path its digest gives."""
    blob = store.put_bytes(make(b"weights"))
    assert blob == BlobRef(digest_bytes(b"weights"), 7)
    assert store.read(blob) == b"weights"
    assert store.path(blob) == _file(store, blob)


def test_memoryview_of_numbers_counts_bytes(store):
    """The size of a blob is in bytes, whatever the view's items are."""
    blob = store.put_bytes(memoryview(bytes(16)).cast("d"))
    assert blob.size == 16
    assert store.read(blob) == bytes(16)


def test_empty_object(store):
    """Nothing is something that can be stored."""
    assert store.read(store.put_bytes(b"")) == b""


def test_published_files_are_marked(store):
    """A published file cannot be written by accident, and its time says that it was verified."""
    status = store.path(store.put_bytes(b"weights")).stat()
    assert status.st_mode & 0o777 == 0o444
    assert status.st_mtime_ns == VERIFIED_MTIME_NS


def test_verified_files_are_not_read_again(store):
    """The mark is taken at its word: this is what makes a rerun fast (and why `store verify` exists)."""
    blob = store.put_bytes(b"weights")
    path = _file(store, blob)
    path.chmod(0o644)
    path.write_bytes(b"WEIGHTS")
    path.chmod(0o444)
    os.utime(path, ns=(VERIFIED_MTIME_NS, VERIFIED_MTIME_NS))
    assert store.contains(blob)
    store.objects.distrust(blob.digest)
    assert not store.contains(blob)


def test_good_file_without_its_mark_is_marked_again(store):
    """A copy that lost its time or mode (by a backup, say) is hashed once, and then used."""
    blob = store.put_bytes(b"weights")
    path = _file(store, blob)
    path.chmod(0o644)
    os.utime(path)
    assert store.read(blob) == b"weights"
    assert path.stat().st_mtime_ns == VERIFIED_MTIME_NS
    assert path.stat().st_mode & 0o777 == 0o444


def test_damage_is_moved_aside_and_reported(store, caplog):
    """Damaged bytes are kept for whoever wants to know, under one name for each time."""
    for number in range(2):
        blob = store.put_bytes(b"weights")
        path = _file(store, blob)
        path.chmod(0o644)
        path.write_bytes(b"damaged")
        with pytest.raises(ObjectDamaged) as caught:
            store.read(blob)
        assert caught.value.digest == blob.digest
        assert Path(caught.value.quarantine) == store.root / "quarantine" / f"{blob.digest}.{number}"
        assert Path(caught.value.quarantine).read_bytes() == b"damaged"
        assert blob.digest in caplog.text
        with pytest.raises(ObjectMissing):
            store.path(blob)


def test_folder_in_place_of_an_object_is_moved_aside(store):
    """Whatever is found under an object's name is no object unless its bytes are."""
    blob = BlobRef(digest_bytes(b"weights"), 7)
    _file(store, blob).mkdir(parents=True)
    with pytest.raises(ObjectDamaged):
        store.path(blob)
    assert store.put_bytes(b"weights") == blob
    assert store.read(blob) == b"weights"


def test_ref_of_the_wrong_size_is_refused(store):
    """A ref whose size is not the object's names nothing; the object is not blamed."""
    blob = store.put_bytes(b"weights")
    with pytest.raises(ObjectMissing):
        store.path(BlobRef(blob.digest, 8))
    assert store.read(blob) == b"weights"
    assert not list((store.root / "quarantine").glob("*"))


def test_file_is_copied(store, tmp_path):
    """Publishing a file leaves it where it is."""
    path = tmp_path / "weights.bin"
    path.write_bytes(b"weights" * 1000)
    blob = store.put_file(path)
    assert store.read(blob) == path.read_bytes()
    path.write_bytes(b"changed")
    assert store.read(blob) == b"weights" * 1000


def test_file_is_moved(store):
    """A file on the store's file system is given away without copying its bytes."""
    with store.scratch() as folder:
        path = folder / "weights.bin"
        path.write_bytes(b"weights")
        inode = path.stat().st_ino
        blob = store.put_file(path, move=True)
        assert not path.exists()
    assert _file(store, blob).stat().st_ino == inode
    assert _file(store, blob).stat().st_mtime_ns == VERIFIED_MTIME_NS


def test_moving_a_file_that_is_there_already(store):
    """The file goes and the object stays, whichever came first."""
    blob = store.put_bytes(b"weights")
    inode = _file(store, blob).stat().st_ino
    with store.scratch() as folder:
        path = folder / "weights.bin"
        path.write_bytes(b"weights")
        assert store.put_file(path, move=True) == blob
        assert not path.exists()
    assert _file(store, blob).stat().st_ino == inode


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_moving_a_link_copies(store, tmp_path, link):
    """A file that has another name could be written by that name: its bytes are copied."""
    path = tmp_path / "weights.bin"
    path.write_bytes(b"weights")
    link(path, tmp_path / "link.bin")
    blob = store.put_file(tmp_path / "link.bin", move=True)
    assert not os.path.lexists(tmp_path / "link.bin")
    path.write_bytes(b"changed")
    assert store.read(blob) == b"weights"


def test_moving_from_another_file_system_copies(store, tmp_path_factory):
    """Where a file cannot be renamed into the store it is copied, and then removed."""
    shm = Path("/dev/shm")  # noqa: S108 - another file system, where there is one
    folder = shm if shm.is_dir() else tmp_path_factory.mktemp("same")
    path = folder / f"pteforge-test-{os.getpid()}"
    path.write_bytes(b"weights")
    blob = store.put_file(path, move=True)
    assert not path.exists()
    assert store.read(blob) == b"weights"


def test_writer_publishes_at_its_end(store):
    """An object is written in pieces, and is there when the block ends."""
    with store.writer() as writer:
        for piece in (b"wei", bytearray(b"gh"), memoryview(b"ts")):
            assert writer.write(piece) == len(piece)
        assert not list(store.objects)
    assert writer.ref == BlobRef(digest_bytes(b"weights"), 7)
    assert store.read(writer.ref) == b"weights"


def test_writer_that_fails_publishes_nothing(store):
    """An exception in the block leaves no object and no unfinished file."""
    with pytest.raises(ZeroDivisionError), store.writer() as writer:  # noqa: PT012 - the block is what is tested
        writer.write(b"half")
        raise ZeroDivisionError
    assert not list(store.objects)
    assert not list((store.root / "tmp").iterdir())


def test_scratch_folder_goes_at_the_end(store):
    """A scratch folder is private, and goes with all it holds, also where the block raises."""
    with pytest.raises(ZeroDivisionError), store.scratch() as folder:  # noqa: PT012 - the block is what is tested
        (folder / "sub").mkdir()
        (folder / "sub" / "file").write_bytes(b"x")
        assert folder.stat().st_mode & 0o777 == 0o700
        raise ZeroDivisionError
    assert not folder.exists()


def test_manifest_needs_its_objects(store):
    """A composite artifact is not published before all it needs is there."""
    missing = BlobRef(digest_bytes(b"never published"), 15)
    with pytest.raises(ObjectMissing, match=missing.digest):
        store.put_manifest(Manifest("weights", (missing,), None))
    assert not list(store.objects)


def test_identity_is_what_the_codec_says(store):
    """Kinds with a canonical digest have it as identity, others the root's."""
    manifest = Manifest("program/aten", (), None)
    assert store.put_manifest(manifest).identity == digest_bytes(manifest.encode())
    assert store.put_manifest(manifest, Digest("a" * 64)).identity == "a" * 64
    assert store.put_artifact("report", b"x").identity == digest_bytes(b"x")


def test_artifacts_are_not_mixed_up(store):
    """A composite artifact has no content of its own, a simple one no manifest, and kinds must agree."""
    composite = store.put_manifest(Manifest("weights", (), None))
    simple = store.put_artifact("report", b"x")
    with pytest.raises(StoreError, match="several objects"):
        store.read_artifact(composite)
    with pytest.raises(StoreError, match="not the manifest"):
        store.manifest(simple)
    lie = ArtifactRef("program/aten", composite.root, composite.identity, composite=True)
    with pytest.raises(StoreError, match="another artifact"):
        store.objects_of(lie)
    assert not store.has(lie)


def test_strangers_among_the_objects_are_ignored(store):
    """Files that are no objects are not listed."""
    blob = store.put_bytes(b"weights")
    (store.root / "objects" / "README").write_text("hello")
    (_file(store, blob).parent / "README").write_text("hello")
    assert [stored.digest for stored in store.objects] == [blob.digest]


def test_full_disk_is_the_users_to_solve(tmp_path):
    """A disk that takes no more is reported as such; nothing half-written becomes visible."""
    program = """
import sys
from pathlib import Path
from pteforge.artifacts.files import LocalFiles
from pteforge.artifacts.local_store import LocalStore
from pteforge.errors import StoreUnusable
store = LocalStore.open(Path("store"))
for write in (
    lambda: store.put_bytes(bytes(1 << 20)),
    lambda: store.put_file(Path(sys.executable).resolve()),
    lambda: LocalFiles(store.root).write("ledger/x", bytes(1 << 20)),
):
    try:
        write()
    except StoreUnusable as error:
        print(error)
assert not list(store.objects)
assert LocalFiles(store.root).read("ledger/x") is None
assert not list(Path("store/tmp").iterdir())
"""

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # the kernel then gives an error, as a full disk does
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))

    output = subprocess.run(
        [sys.executable, "-B", "-c", program],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        preexec_fn=limit,
    ).stdout
    assert output.count("cannot be written") == 3
