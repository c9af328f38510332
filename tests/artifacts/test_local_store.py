"""Local stores: which folders are accepted, files and their marks, damage, and races between threads."""

import contextlib
import fcntl
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pteforge.artifacts import files
from pteforge.artifacts.digest import Digest, digest_bytes
from pteforge.artifacts.files import LocalFiles, abandoned, remove, remove_abandoned_files, staging_file, staging_folder
from pteforge.artifacts.local_store import VERIFIED_MTIME_NS, LocalStore
from pteforge.artifacts.ref import ArtifactManifest, ArtifactRef, BlobRef
from pteforge.artifacts.store import Store
from pteforge.errors import InputError, ObjectDamaged, ObjectMissing, StoreError, StoreUnusable


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore.open(tmp_path / "store")


def _file(store: LocalStore, blob: BlobRef) -> Path:
    return store.root / "objects" / blob.digest[:2] / blob.digest


def _mark(path: Path) -> tuple[int, int]:
    """Time and mode, by which a verified file is known."""
    status = path.stat()
    return status.st_mtime_ns, status.st_mode & 0o777


@pytest.mark.parametrize(
    ("make", "content"),
    [
        (bytes, b"weights"),
        (bytearray, b"weights"),
        (memoryview, b"weights"),
        (bytes, b""),
        (lambda content: memoryview(content).cast("d"), bytes(16)),  # the size is in bytes, not in items
    ],
)
def test_bytes_come_back(store, make, content):
    """Any bytes-like object is published, at the path that its digest determines."""
    blob = store.put_bytes(make(content))
    assert blob == BlobRef(digest_bytes(content), len(content))
    assert store.read(blob) == content
    assert store.path(blob) == _file(store, blob)


def test_marks_say_what_is_there(store):
    """Whether an object is there is known from its mark, without reading it: this makes a rerun fast."""
    blob = store.put_bytes(b"weights")
    path = _file(store, blob)
    assert _mark(path) == (VERIFIED_MTIME_NS, 0o444)
    for use in (store.contains, store.read, store.path):
        path.chmod(0o644)
        os.utime(path)
        assert use(blob)
        assert _mark(path) == (VERIFIED_MTIME_NS, 0o444)
    _rot(path)
    assert store.contains(blob)


def _rot(path: Path) -> None:
    """Changes one bit and neither size nor time nor mode, as a disk does."""
    content = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    path.chmod(0o444)
    os.utime(path, ns=(VERIFIED_MTIME_NS, VERIFIED_MTIME_NS))


@pytest.mark.parametrize("use", [LocalStore.read, LocalStore.path], ids=["read", "path"])
def test_what_is_read_is_digested(store, use):
    """Rot, which no mark shows, is found by whoever reads the object, each time, and noted for the ledger."""
    blob = store.put_bytes(b"weights")
    use(store, blob)
    _rot(_file(store, blob))
    with pytest.raises(ObjectDamaged):
        use(store, blob)
    assert not store.contains(blob)
    assert store.damaged() == [blob.digest]
    store.settle(blob.digest)
    assert store.damaged() == []
    assert use(store, store.put_bytes(b"weights"))


def test_a_stage_digests_an_object_once(store):
    """The store of one stage's body digests an object the first time only, unless its file was replaced meanwhile."""
    blob, other = store.put_bytes(b"weights"), BlobRef(digest_bytes(b"biases"), 6)
    body = LocalStore(store.root, once=True)
    body.path(blob)
    body.put_bytes(b"biases")
    for seen in (blob, other):
        _rot(_file(store, seen))
        assert body.path(seen) == _file(store, seen)
        with pytest.raises(ObjectDamaged):
            LocalStore(store.root, once=True).path(seen)
    replaced = _file(store, store.put_bytes(b"weights"))
    _rot(replaced)
    with pytest.raises(ObjectDamaged):
        body.path(blob)


def test_damage_is_quarantined_and_reported(store, caplog):
    """Damaged bytes are kept for inspection, under a new name each time."""
    for number, damaged in enumerate((b"damaged", b"again")):
        blob = store.put_bytes(b"weights")
        path = _file(store, blob)
        path.chmod(0o644)
        path.write_bytes(damaged)
        with pytest.raises(ObjectDamaged) as caught:
            store.read(blob)
        quarantined = Path(caught.value.quarantine)
        assert (caught.value.digest, quarantined) == (blob.digest, store.root / f"quarantine/{blob.digest}.{number}")
        assert quarantined.read_bytes() == damaged
        assert blob.digest in caplog.text
        with pytest.raises(ObjectMissing):
            store.path(blob)
    assert store.read(store.put_bytes(b"weights")) == b"weights"


def test_ref_of_the_wrong_size_is_refused(store):
    """A ref with a wrong size names nothing; the object is not quarantined."""
    blob = store.put_bytes(b"weights")
    with pytest.raises(ObjectMissing):
        store.path(BlobRef(blob.digest, 8))
    assert store.read(blob) == b"weights"
    assert not list((store.root / "quarantine").glob("*"))


@pytest.mark.parametrize("present", [False, True])
def test_scratch(store, present):
    """A file in a scratch folder becomes an object without being copied; an object that exists already stays."""
    if present:
        store.put_bytes(b"weights")
    with pytest.raises(ZeroDivisionError), store.scratch() as folder:  # noqa: PT012 - the block is what is tested
        assert folder.stat().st_mode & 0o777 == 0o700
        path = folder / "weights.bin"
        path.write_bytes(b"weights")
        inode = path.stat().st_ino
        blob = store.put_scratch(path)
        (folder / "sub").mkdir()
        (folder / "sub" / "file").write_bytes(b"x")
        raise ZeroDivisionError
    assert not folder.exists()
    assert blob == BlobRef(digest_bytes(b"weights"), 7)
    assert store.read(blob) == b"weights"
    assert (_file(store, blob).stat().st_ino == inode) is not present
    assert _mark(_file(store, blob)) == (VERIFIED_MTIME_NS, 0o444)


def test_artifacts_are_not_mixed_up(store):
    """A composite artifact has no content, a simple one has no manifest, and kinds must match."""
    missing = BlobRef(digest_bytes(b"never published"), 15)
    with pytest.raises(ObjectMissing, match=missing.digest):
        store.put_manifest(ArtifactManifest("weights", (missing,), None))
    assert not list(store)
    manifest = ArtifactManifest("weights", (), None)
    composite, simple = store.put_manifest(manifest), store.put_artifact("report", b"x")
    assert composite.identity == digest_bytes(manifest.encode())
    assert store.put_manifest(manifest, Digest("a" * 64)).identity == "a" * 64
    assert simple.identity == digest_bytes(b"x")
    with pytest.raises(StoreError, match="several objects"):
        store.read_artifact(composite)
    with pytest.raises(StoreError, match="not the manifest"):
        store.manifest(simple)
    lie = ArtifactRef("program/aten", composite.root, composite.identity, composite=True)
    with pytest.raises(StoreError, match="another artifact"):
        store.objects_of(lie)
    assert not Store(store.root).has(lie)


def test_unexpected_files_are_ignored(store):
    """Files that are not objects are not listed."""
    blob = store.put_bytes(b"weights")
    (store.root / "objects" / "README").write_text("hello")
    (_file(store, blob).parent / "README").write_text("hello")
    assert [stored.digest for stored in store] == [blob.digest]


def test_full_disk_is_the_users_to_solve(store, file_limit):
    """A full disk is reported, and no partial file becomes visible."""
    files = LocalFiles(store.root)
    for write in (store.put_bytes, lambda content: files.write("ledger/x", content)):
        with file_limit(10_000), pytest.raises(StoreUnusable, match="free some space"):
            write(bytes(1 << 20))
    assert not list(store)
    assert files.read("ledger/x") is None
    assert not list((store.root / "tmp").iterdir())


def test_new_store_is_private(tmp_path):
    """A new store is accessible to its owner only, and opens again, whatever the umask."""
    umask = os.umask(0o002)
    try:
        store = LocalStore.open(tmp_path / "deep" / "store")
        store.put_bytes(b"weights")
        LocalStore.open(store.root)
    finally:
        os.umask(umask)
    assert store.root.stat().st_mode & 0o077 == 0
    assert (store.root / "objects").stat().st_mode & 0o077 == 0
    assert (store.root / "version").read_bytes() == b"pteforge store 1\n"


@pytest.mark.parametrize("folder", [".", "objects", "ledger"])
@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_store_that_others_can_write_is_refused(tmp_path, folder, mode):
    """Anyone who can write a pickle into the store can run code as us."""
    root = tmp_path / "store"
    LocalStore.open(root)
    (root / folder).mkdir(exist_ok=True)
    (root / folder).chmod(mode)
    with pytest.raises(StoreUnusable, match="chmod -R go-w") as caught:
        LocalStore.open(root)
    assert isinstance(caught.value, InputError)
    (root / folder).chmod(0o755)
    LocalStore.open(root)


def test_store_of_somebody_else_is_refused(tmp_path):
    """A folder that belongs to another user is not used."""
    root = tmp_path / "store"
    root.mkdir(mode=0o755)
    if os.geteuid() == 0:
        os.chown(root, 12345, -1)
    else:
        root = Path("/")
    with pytest.raises(StoreUnusable, match="belongs to user"):
        LocalStore.open(root)


def test_records_of_somebody_else_are_refused(tmp_path, monkeypatch):
    """A record in a store of ours that belongs to another user is not used, whose folder it may be in."""
    store = Store(tmp_path / "store")
    store.ledger.watch("nets:linear", ["helpers"])
    assert store.ledger.watched("nets:linear") == ("helpers",)
    ours = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: ours + 1)
    with pytest.raises(StoreUnusable, match=r"ledger/watch/\w+ .* belongs to .*move ledger/watch"):
        store.ledger.watched("nets:linear")


def test_folder_with_other_things_is_refused(tmp_path):
    """A folder with other files does not become a store; the folder that every new ext4 volume has does not matter."""
    tmp_path.chmod(0o755)
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(StoreUnusable, match=r"thesis\.tex"):
        LocalStore.open(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lost+found", "thesis.tex"]
    (tmp_path / "thesis.tex").unlink()
    LocalStore.open(tmp_path)


@pytest.mark.parametrize("root", ["file", "file/store", "/proc/pteforge"])
def test_impossible_folders(tmp_path, root):
    """If the folder cannot be created, the message says how to choose another one."""
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StoreUnusable, match=r"cannot be opened.*--store"):
        LocalStore.open(tmp_path / root)


def _alongside(background: Callable[[], None], *work: Callable[[], None]) -> None:
    """Repeats `background` in one thread until all of `work` have ended in theirs."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.is_set():
            background()

    with ThreadPoolExecutor(1 + len(work)) as pool:
        repeating = pool.submit(repeat)
        try:
            for future in [pool.submit(function) for function in work]:
                future.result()
        finally:
            ended.set()
        repeating.result()


def test_new_entries_are_never_taken_for_abandoned(tmp_path: Path):
    """Sweeping removes no staging entry of a live process, not even in the moment of its creation."""
    folder = tmp_path / "tmp"

    def sweep() -> None:
        for path in abandoned(folder):
            remove(path)

    def make_files() -> None:
        for number in range(300):
            with staging_file(folder) as (path, file):
                file.write(b"x")
                path.rename(tmp_path / f"kept-{number}")

    def make_folders() -> None:
        for _ in range(300):
            with staging_folder(folder) as path:
                (path / "file").write_bytes(b"x")
                assert path.is_dir()

    _alongside(sweep, make_files, make_folders)
    assert len(list(tmp_path.glob("kept-*"))) == 300
    assert list(folder.iterdir()) == []


def test_damage_is_never_read_while_it_is_repaired(store, tmp_path):
    """While an object is repeatedly damaged, readers and publishers get its bytes or an error, nothing else."""
    content = b"weights" * 100
    blob = BlobRef(digest_bytes(content), len(content))
    path = _file(store, blob)

    def damage() -> None:
        damaged = tmp_path / "damaged"
        damaged.write_bytes(os.urandom(len(content)))
        if path.exists():
            damaged.replace(path)

    def read() -> None:
        for _ in range(500):
            with contextlib.suppress(ObjectDamaged, ObjectMissing):
                assert store.read(blob) == content

    def publish() -> None:
        for _ in range(500):
            assert store.put_bytes(content) == blob

    _alongside(damage, read, publish)
    assert store.put_bytes(content) == blob
    assert store.read(blob) == content


def test_waiting_for_the_lock_is_told(store, monkeypatch, caplog):
    """Whoever waits for a process that holds the store's lock, and may be stopped, says so once."""
    monkeypatch.setattr(files, "QUIET_WAIT", 0.1)
    (store.root / "lock").touch()
    with (store.root / "lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        timer = threading.Timer(0.5, fcntl.flock, (held, fcntl.LOCK_UN))
        timer.start()
        store.put_bytes(b"content")
        timer.join()
    (said,) = [record.getMessage() for record in caplog.records if "waiting" in record.getMessage()]
    assert said.startswith(f"waiting for another process that publishes or deletes in the store {store.root}")


def test_a_folder_in_the_place_of_the_lock(store):
    """The store cannot be used, which an error says."""
    (store.root / "lock").unlink(missing_ok=True)
    (store.root / "lock").mkdir()
    with pytest.raises(StoreUnusable, match="lock"):
        store.put_bytes(b"one")


def test_abandoned_files_are_removed(tmp_path):
    """What a dead process was writing goes; what another one is writing, and what only looks like it, stays."""
    (tmp_path / f"{'0a' * 16}.part").write_bytes(b"half a file")
    (tmp_path / "model.part").write_bytes(b"a user's")
    with staging_file(tmp_path) as (path, _file):
        remove_abandoned_files(tmp_path)
        assert {each.name for each in tmp_path.iterdir()} == {path.name, "model.part"}
    remove_abandoned_files(tmp_path / "missing")
