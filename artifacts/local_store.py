"""The content-addressed store on a local disk. Workers use it directly, and remote stores are read through it.

Objects are files named by their digest: they are published, verified, quarantined and deleted here.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import json
import logging
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import ObjectDamaged, ObjectMissing, StoreError, StoreUnusable
from . import files
from .digest import Digest, canonical_json, digest_bytes, digest_chunks, digest_file, is_digest
from .known_files import Reference
from .ref import ArtifactManifest, ArtifactRef, BlobRef

_log = logging.getLogger(__name__)

_REFERENCE = ".ref"  # ending of a file that says where an object's bytes are

VERIFIED_MTIME_NS = 1_000_000_000 * 10**9
"""Modification time (2001-09-09T01:46:40Z) of objects whose bytes were verified: any write changes it."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object in a listing, not read; `changed` is when it was last published, in seconds on the store's clock."""

    digest: Digest
    size: int
    changed: float


class ObjectFolder:
    """Files ``<root>/objects/<first two digits>/<digest>``; safe under concurrent threads and processes.

    Where only presence matters, a file's mark is trusted: it is read-only, of the right size, and has the modification
    time `VERIFIED_MTIME_NS`. `path` and `read` digest the bytes, since rotten ones keep the mark. They use SHA-256: a
    faster checksum would be missing from existing stores (`docs/how-to/operations.md` says what SHA-256 costs).

    A damaged file moves to ``<root>/quarantine``, after ``<root>/damaged/<digest>`` has noted it: what was made from it
    is not to be trusted either (`Store.forget_damaged`), even if this process ends here.

    In place of an object there can be ``<digest>.ref``, which names a file outside of the store that has its bytes. It
    is valid until that file is written. `path` and `read` copy the bytes into the store.
    """

    def __init__(self, root: Path, *, once: bool = False) -> None:
        """Opens a store; with `once`, files are digested when they are installed or first used, and not again."""
        self.root = root
        self._digested: dict[Digest, tuple[int, ...]] | None = {} if once else None

    def contains(self, blob: BlobRef) -> bool:
        """Whether the object is there and good, as far as its mark tells."""
        try:
            self.require(blob)
        except (ObjectMissing, ObjectDamaged):
            return False
        return True

    def require(self, blob: BlobRef) -> None:
        """Raises ObjectMissing or ObjectDamaged unless it `contains` the object."""
        try:
            # No `Path`: a rerun with nothing to do asks for every object of a zoo.
            status = os.lstat(f"{self.root}/objects/{blob.digest[:2]}/{blob.digest}")
        except (FileNotFoundError, NotADirectoryError):
            if self.reference(blob):
                return
            raise ObjectMissing(blob.digest, str(self.root)) from None
        except OSError as error:
            raise files.unreadable(self.root, error) from error
        if not _is_marked(status, blob.size):
            self.path(blob)

    def reference(self, blob: BlobRef) -> Reference | None:
        """The reference to an object outside of the store; None if its bytes are in the store, or gone."""
        reference = None if self._path(blob.digest).exists() else self._referred(blob.digest)
        return reference if reference and reference.size == blob.size else None

    def _referred(self, digest: Digest) -> Reference | None:
        try:
            written = self._path(digest).with_suffix(_REFERENCE).read_bytes()
            reference = Reference.decode(json.loads(written))
        except (OSError, ValueError):
            return None
        return reference if reference and reference.is_current else None

    @contextlib.contextmanager
    def file(self, blob: BlobRef) -> Iterator[Path]:
        """A file with the object's bytes, for the time of a context; see `path`."""
        reference = self.reference(blob)
        if reference is None:
            yield self.path(blob)
            return
        with files.write_errors(self.root), files.staging_file(self.root / "tmp") as (part, file):
            if not _copied(reference, file, blob):
                raise ObjectMissing(blob.digest, str(self.root))
            yield part

    def check(self, blob: BlobRef) -> bool:
        """Whether an object is good, whose bytes are digested wherever they are; `blob` is as listed."""
        with contextlib.suppress(ObjectMissing, ObjectDamaged, OSError):
            if self._path(blob.digest).exists() or not (reference := self._referred(blob.digest)):
                return bool(self.path(blob))
            return digest_chunks(reference.chunks()) == blob.digest
        return False

    def path(self, blob: BlobRef) -> Path:
        """A file to map or to read later, whose bytes were just digested; raises ObjectMissing or ObjectDamaged."""
        path = self._path(blob.digest)
        with self._open(path, blob) as file, files.read_errors(self.root):
            status = os.fstat(file.fileno())
            if self._digested is not None and self._digested.get(blob.digest) == _file_state(status, blob.size):
                return path
            try:
                good = hashlib.file_digest(file, "sha256").hexdigest() == blob.digest
            except OSError as error:  # a disk error
                _log.warning("object %s in %s cannot be read: %s", blob.digest, self.root, error)
                good = False
            if good and not _is_marked(status, status.st_size):
                _mark(file.fileno())
        if not good:
            self._quarantine(path, status.st_ino, blob)
        elif status.st_size != blob.size:
            raise ObjectMissing(blob.digest, str(self.root))  # the object is good, the ref is wrong
        self._note_digested(path, blob)
        return path

    def read(self, blob: BlobRef) -> bytes:
        """The blob's bytes, digested; raises ObjectMissing or ObjectDamaged."""
        while True:
            path = self._path(blob.digest)
            with self._open(path, blob) as file, files.read_errors(self.root):
                content = b""
                with contextlib.suppress(OSError):  # `path` reads it again, and says so
                    content = file.read(min(blob.size, os.fstat(file.fileno()).st_size) + 1)
                if len(content) == blob.size and digest_bytes(content) == blob.digest:
                    if not _is_marked(os.fstat(file.fileno()), blob.size):
                        _mark(file.fileno())
                    return content
            self.path(blob)  # raises, unless a good file has replaced it

    def refresh(self, blob: BlobRef) -> bool:
        """Whether it `contains` the object; if so, renews its grace period, unless the store is read-only."""
        if not self.contains(blob):
            return False
        if not os.access(self.root, os.W_OK):
            return True
        path = self._path(blob.digest)
        with files.write_errors(self.root), self._lock(fcntl.LOCK_SH):
            for kept in (path, path.with_suffix(_REFERENCE)):
                with contextlib.suppress(FileNotFoundError):
                    os.utime(kept, ns=(VERIFIED_MTIME_NS, VERIFIED_MTIME_NS))
                    return True
        return False

    def install(self, part: Path, descriptor: int, blob: BlobRef) -> None:
        """Renames a complete file (open as `descriptor`) into place.

        It is not synced to the disk, which would take longer than writing it. After a power cut, file systems that
        write a file's size after its data (ext4 with ordered data, XFS, Btrfs) show a lost file as too short.
        """
        _mark(descriptor)
        path = self._path(blob.digest)
        with contextlib.suppress(FileExistsError):
            path.parent.mkdir(mode=0o700, parents=True)
        with self._lock(fcntl.LOCK_SH):
            part.replace(path)
        self._note_digested(path, blob)

    def discard(self, digest: Digest, unless_since: float) -> bool:
        path = self._path(digest)
        with files.write_errors(self.root), self._lock(fcntl.LOCK_EX):
            kept = [file for file in (path, path.with_suffix(_REFERENCE)) if os.path.lexists(file)]
            if kept and all(file.lstat().st_ctime < unless_since for file in kept):
                for file in kept:
                    files.remove(file)
                return True
        return False

    def distrust(self, digest: Digest) -> None:
        """Makes the next use of an object verify it again."""
        with files.write_errors(self.root), contextlib.suppress(FileNotFoundError):
            os.utime(self._path(digest))

    def damaged(self) -> list[Digest]:
        """Objects that were found damaged, by any process, and are not `settled` yet."""
        try:
            names = os.listdir(f"{self.root}/damaged")  # noqa: PTH208 - asked at each look into the ledger: no `Path`
        except FileNotFoundError:
            return []
        except OSError as error:
            raise files.unreadable(self.root, error) from error
        return [Digest(name) for name in names if is_digest(name)]

    def settle(self, digest: Digest) -> None:
        """Forgets that an object was found damaged: nothing rests on it any more."""
        with files.write_errors(self.root):
            files.remove(self.root / "damaged" / digest)

    def _note_digested(self, path: Path, blob: BlobRef) -> None:
        if self._digested is not None:
            with contextlib.suppress(OSError):  # then it is digested again
                self._digested[blob.digest] = _file_state(path.lstat(), blob.size)

    def _left(self, folder: str, before: float) -> list[Path]:
        entries = self._listed(self.root / folder)
        looked_at = ((Path(entry.path), self._looked_at(entry)) for entry in entries)
        return sorted(path for path, status in looked_at if status and status.st_ctime < before)

    def __iter__(self) -> Iterator[StoredObject]:
        for shard in self._listed(self.root / "objects"):
            entries = {entry.name: entry for entry in self._listed(Path(shard.path))}
            for name, entry in entries.items():
                digest = name.removesuffix(_REFERENCE)
                first = name == digest or digest not in entries
                if is_digest(digest) and first and (status := self._looked_at(entry)):
                    yield StoredObject(Digest(digest), status.st_size, status.st_ctime)

    def _listed(self, folder: Path) -> list[os.DirEntry[str]]:
        with files.read_errors(self.root):
            try:
                with os.scandir(folder) as entries:
                    return list(entries)
            except (FileNotFoundError, NotADirectoryError):
                return []

    def _looked_at(self, entry: os.DirEntry[str]) -> os.stat_result | None:
        with files.read_errors(self.root), contextlib.suppress(FileNotFoundError):
            return entry.stat(follow_symlinks=False)
        return None

    def _path(self, digest: Digest) -> Path:
        return Path(f"{self.root}/objects/{digest[:2]}/{digest}")  # parsed once, not at each `/`

    @contextlib.contextmanager
    def _lock(self, operation: int) -> Iterator[None]:
        """Shared by publishers, exclusive for deletion: no object is deleted while it is being published again."""
        with files.write_errors(self.root):
            descriptor = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            with files.write_errors(self.root):
                files.wait_for_lock(descriptor, operation, f"publishes or deletes in the store {self.root}")
            yield
        finally:
            os.close(descriptor)

    def _open(self, path: Path, blob: BlobRef) -> BufferedReader:
        try:
            with contextlib.suppress(FileNotFoundError):
                return path.open("rb")
            if reference := self.reference(blob):
                self._copy_in(reference, blob)
            return path.open("rb")
        except (FileNotFoundError, NotADirectoryError):
            raise ObjectMissing(blob.digest, str(self.root)) from None
        except OSError as error:
            raise files.unreadable(self.root, error) from error

    def _copy_in(self, reference: Reference, blob: BlobRef) -> None:
        """Makes a reference's bytes a file of the store, unless they are not the object's any more."""
        with files.write_errors(self.root), files.staging_file(self.root / "tmp") as (part, file):
            if _copied(reference, file, blob):
                self.install(part, file.fileno(), blob)
        self._path(blob.digest).with_suffix(_REFERENCE).unlink(missing_ok=True)

    def _quarantine(self, path: Path, inode: int, blob: BlobRef) -> None:
        """Moves a damaged file away, unless read-only, and raises ObjectDamaged; not if a good file has replaced it."""
        if not os.access(self.root, os.W_OK):
            _log.warning("object %s in %s is damaged; it stays, since the store is read-only", blob.digest, self.root)
            raise ObjectDamaged(blob.digest, str(self.root), str(path))
        with files.write_errors(self.root), self._lock(fcntl.LOCK_EX):
            try:
                replaced = path.lstat().st_ino != inode
                if not replaced:
                    (self.root / "damaged").mkdir(mode=0o700, exist_ok=True)
                    (self.root / "damaged" / blob.digest).touch(mode=0o600)
                    target = files.move_aside(path, self.root, blob.digest)
            except FileNotFoundError:
                raise ObjectMissing(blob.digest, str(self.root)) from None
        if replaced:
            self.path(blob)
            return
        _log.warning("object %s in %s is damaged; moved to %s", blob.digest, self.root, target)
        raise ObjectDamaged(blob.digest, str(self.root), str(target))


def _copied(reference: Reference, file: BinaryIO, blob: BlobRef) -> bool:
    """Writes a reference's bytes to a file; returns whether they are the object's."""

    def written() -> Iterator[bytes]:
        for chunk in reference.chunks():
            file.write(chunk)
            yield chunk

    digest = digest_chunks(written())
    file.flush()
    return digest == blob.digest


def _file_state(status: os.stat_result, size: int) -> tuple[int, ...]:
    """Identifies a digested file: another file, or the same after a write, has another state."""
    return status.st_ino, status.st_mtime_ns, status.st_size, size


def _is_marked(status: os.stat_result, size: int) -> bool:
    return status.st_mtime_ns == VERIFIED_MTIME_NS and status.st_size == size and not status.st_mode & 0o222


def _mark(descriptor: int) -> None:
    with contextlib.suppress(OSError):  # of a read-only store: the object will be digested again
        os.fchmod(descriptor, 0o444)
        os.utime(descriptor, ns=(VERIFIED_MTIME_NS, VERIFIED_MTIME_NS))


LAYOUT = b"pteforge store 1\n"  # content of the marker file `version`

_FOLDERS = ("objects", "ledger", "leases", "runs", "tmp", "unfinished", "quarantine", "damaged")


class LocalStore(ObjectFolder):
    """Objects and artifacts on a local disk; safe under concurrent threads and processes."""

    def __init__(self, root: Path, *, once: bool = False) -> None:
        """Uses a root that `open` has checked. With `once`, for the body of one stage, `path` digests objects once."""
        super().__init__(root, once=once)
        # Each is needed several times in a row: by whoever looks for an artifact, fetches it, and reads it.
        self._manifests = lru_cache(maxsize=512)(lambda root: ArtifactManifest.decode(self.read(root)))

    @classmethod
    def open(cls, root: Path) -> LocalStore:
        """Creates or checks the store at `root`, which may be read-only; raises StoreUnusable if it is not trusted."""
        _prepare_root(root)
        return cls(root)

    def put_bytes(self, content: bytes | bytearray | memoryview) -> BlobRef:
        """Publishes bytes; writes nothing if they are already in the store."""
        blob = BlobRef(digest_bytes(content), memoryview(content).nbytes)
        if not self.refresh(blob):
            with files.write_errors(self.root), files.staging_file(self.root / "tmp") as (path, file):
                file.write(content)
                file.flush()
                self.install(path, file.fileno(), blob)
        return blob

    def put_scratch(self, path: Path) -> BlobRef:
        """Publishes a file of a `scratch` folder by renaming it, without copying its bytes."""
        with files.write_errors(self.root), path.open("rb") as file:
            blob = BlobRef(digest_file(path), os.fstat(file.fileno()).st_size)
            if not self.refresh(blob):
                self.install(path, file.fileno(), blob)
        return blob

    def put_reference(self, reference: Reference) -> BlobRef:
        """Publishes bytes that stay where they are; reads them once, and raises OSError if they cannot be read."""
        blob = BlobRef(digest_chunks(reference.chunks()), reference.size)
        if not self.refresh(blob):
            path = self._path(blob.digest).with_suffix(_REFERENCE)
            with files.write_errors(self.root), self._lock(fcntl.LOCK_SH):
                files.replace_file(path, reference.encode(), self.root / "tmp")
        return blob

    def put_artifact(self, kind: str, content: bytes) -> ArtifactRef:
        root = self.put_bytes(content)
        return ArtifactRef(kind, root, root.digest)

    def put_json(self, kind: str, value: Any) -> ArtifactRef:
        return self.put_artifact(kind, canonical_json(value))

    def put_manifest(self, manifest: ArtifactManifest, identity: Digest | None = None) -> ArtifactRef:
        """Publishes an artifact of objects in the store, by canonical or manifest digest; ObjectMissing without one."""
        for blob in manifest.blobs:
            self.require(blob)
        root = self.put_bytes(manifest.encode())
        return ArtifactRef(manifest.kind, root, identity or root.digest, composite=True)

    def read_artifact(self, ref: ArtifactRef) -> bytes:
        """Content of an artifact that is one object; raises ObjectMissing, ObjectDamaged, or StoreError."""
        if ref.composite:
            raise StoreError(f"the {ref.kind} artifact {ref.root.digest} is made of several objects; read its manifest")
        return self.read(ref.root)

    def read_json(self, ref: ArtifactRef) -> Any:
        return json.loads(self.read_artifact(ref))

    def manifest(self, ref: ArtifactRef) -> ArtifactManifest:
        """Manifest of a composite artifact; raises ObjectMissing, ObjectDamaged, or StoreError if it has none."""
        try:
            self.require(ref.root)
            manifest = self._manifests(ref.root)
        except ValueError as error:
            raise StoreError(f"object {ref.root.digest} in {self.root} is not the manifest of a {ref.kind}") from error
        if not ref.composite or manifest.kind != ref.kind:
            raise StoreError(f"object {ref.root.digest} in {self.root} is another artifact's manifest: {manifest.kind}")
        return manifest

    def objects_of(self, ref: ArtifactRef) -> tuple[BlobRef, ...]:
        return (ref.root, *self.manifest(ref).blobs) if ref.composite else (ref.root,)

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """A private folder on the store's file system, removed at the end (by gc if this process is killed)."""
        with contextlib.ExitStack() as stack:
            with files.write_errors(self.root):
                path = stack.enter_context(files.staging_folder(self.root / "tmp"))
            yield path

    def unfinished(self, name: Digest) -> Path:
        """Folder, to be created, where a stage keeps partial results until it is done; gc removes unused ones."""
        return self.root / "unfinished" / name

    def sweep_leftovers(self, since: float, *, dry_run: bool) -> int:
        count = 0
        # a lease is locked as a staging file is
        dead = (files.abandoned(self.root / name) for name in ("tmp", "leases"))
        for path in itertools.chain(*dead, *(self._left(folder, since) for folder in ("unfinished", "quarantine"))):
            count += 1
            if not dry_run:
                with files.write_errors(self.root):
                    files.remove(path)
        return count


def _prepare_root(root: Path) -> None:
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in (root, *(root / name for name in _FOLDERS)):
            _check_trust(folder)
        if os.access(root, os.W_OK | os.X_OK) or not (root / "version").exists():
            _check_layout(root)
            for name in _FOLDERS:
                (root / name).mkdir(mode=0o700, exist_ok=True)  # one by one: a parent would get the umask's mode
        else:
            _check_version(root)
    except OSError as error:
        raise StoreUnusable(
            f"the store {root} cannot be opened: {error.strerror or error}; "
            "choose a folder that can be created and written, with --store or PTEFORGE_CACHE"
        ) from error


def _check_trust(folder: Path) -> None:
    try:
        status = folder.stat()
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(20, os.strerror(20), str(folder))
    if status.st_uid != os.geteuid():
        raise StoreUnusable(
            f"the store folder {folder} belongs to user {status.st_uid}, not to you ({os.geteuid()}): stored programs "
            "are pickles and only read from a store of your own; choose another folder with --store or PTEFORGE_CACHE"
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise StoreUnusable(
            f"the store folder {folder} can be written by other users: stored programs are pickles and must be yours; "
            f"run: chmod -R go-w {folder}"
        )


def _check_layout(root: Path) -> None:
    marker = root / "version"
    if not os.path.lexists(marker):
        expected = {*_FOLDERS, "version", "lock", "lost+found"}
        unexpected = sorted({entry.name for entry in root.iterdir()} - expected)
        if unexpected:
            raise StoreUnusable(
                f"{root} is neither empty nor a pteforge store (it holds {unexpected[0]}); give an empty folder"
            )
        files.create_file(marker, LAYOUT, root / "tmp")
    _check_version(root)


def _check_version(root: Path) -> None:
    with (root / "version").open("rb") as file:
        content = file.read(len(LAYOUT) + 40)
    if content != LAYOUT:
        raise StoreUnusable(
            f"the store {root} has another layout ({content[:40]!r}, this pteforge reads {LAYOUT!r}); "
            "use another folder, or delete it: everything in it can be computed again"
        )
