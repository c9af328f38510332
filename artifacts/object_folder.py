"""Objects as files named by their digest: publishing, verifying, quarantining and deleting them."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import logging
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ..errors import ObjectDamaged, ObjectMissing, StoreUnusable
from .digest import Digest, is_digest
from .ref import BlobRef

_log = logging.getLogger(__name__)

VERIFIED_MTIME_NS = 1_000_000_000 * 10**9
"""Modification time (2001-09-09T01:46:40Z) of objects whose bytes were verified: any write changes it."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object in a listing, not read; `changed` is when it was last published, in seconds on the store's clock."""

    digest: Digest
    size: int
    changed: float


class ObjectFolder:
    """Files ``<root>/objects/<first two digits>/<digest>``; safe under concurrent threads and processes."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def holds(self, blob: BlobRef) -> bool:
        """Whether the object is there and good."""
        try:
            # No `Path`: a rerun with nothing to do asks for every object of a zoo.
            status = os.lstat(f"{self._root}/objects/{blob.digest[:2]}/{blob.digest}")
        except FileNotFoundError:
            return False
        if not _is_marked(status, blob.size):
            with contextlib.suppress(ObjectMissing, ObjectDamaged):
                self.verified(blob)
                return True
            return False
        return True

    def verified(self, blob: BlobRef) -> Path:
        """A file whose bytes are the blob's; raises ObjectMissing or ObjectDamaged."""
        path = self._path(blob.digest)
        try:
            status = os.lstat(path)
        except FileNotFoundError:
            raise ObjectMissing(blob.digest, str(self._root)) from None
        if not _is_marked(status, blob.size):
            self._verify(path, blob)
        return path

    def open(self, blob: BlobRef) -> BinaryIO:
        """The verified file, open, even if it is replaced later; raises ObjectMissing or ObjectDamaged."""
        while True:
            path = self.verified(blob)
            try:
                file = path.open("rb")
            except FileNotFoundError:
                raise ObjectMissing(blob.digest, str(self._root)) from None
            if _is_marked(os.fstat(file.fileno()), blob.size):
                return file
            file.close()

    def refresh(self, blob: BlobRef) -> bool:
        """Whether the object exists and is good; if so it counts as published now, which renews its grace period."""
        try:
            path = self.verified(blob)
        except (ObjectMissing, ObjectDamaged):
            return False
        with self._lock(fcntl.LOCK_SH), contextlib.suppress(FileNotFoundError):
            os.utime(path, ns=(VERIFIED_MTIME_NS, VERIFIED_MTIME_NS))
            return True
        return False

    def install(self, part: Path, descriptor: int, blob: BlobRef) -> None:
        """Renames a complete file (open as `descriptor`) into place.

        It is not synced to the disk, which would take longer than writing it. After a power cut, file systems that
        write a file's size after its data (ext4 with ordered data, XFS, Btrfs) show a lost file as too short.
        """
        _mark(descriptor)
        path = self._path(blob.digest)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._lock(fcntl.LOCK_SH):
            part.replace(path)

    def discard(self, digest: Digest, unless_since: float) -> bool:
        path = self._path(digest)
        with self._lock(fcntl.LOCK_EX), contextlib.suppress(FileNotFoundError):
            if path.lstat().st_ctime < unless_since:
                path.unlink()
                return True
        return False

    def distrust(self, digest: Digest) -> None:
        """Makes the next use of an object verify it again."""
        with contextlib.suppress(FileNotFoundError):
            os.utime(self._path(digest))

    def quarantined(self, before: float) -> list[Path]:
        entries = _entries(self._root / "quarantine")
        return sorted(Path(entry.path) for entry in entries if entry.stat(follow_symlinks=False).st_ctime < before)

    def __iter__(self) -> Iterator[StoredObject]:
        for shard in _entries(self._root / "objects"):
            for entry in _entries(Path(shard.path)):
                with contextlib.suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    if is_digest(entry.name):
                        yield StoredObject(Digest(entry.name), status.st_size, status.st_ctime)

    def _path(self, digest: Digest) -> Path:
        return Path(f"{self._root}/objects/{digest[:2]}/{digest}")  # parsed once, not at each `/`

    @contextlib.contextmanager
    def _lock(self, operation: int) -> Iterator[None]:
        """Shared by publishers, exclusive for deletion: no object is deleted while it is being published again."""
        descriptor = os.open(self._root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, operation)
            yield
        finally:
            os.close(descriptor)

    def _verify(self, path: Path, blob: BlobRef) -> None:
        try:
            with path.open("rb") as file:
                found = os.fstat(file.fileno())
                if hashlib.file_digest(file, "sha256").hexdigest() == blob.digest:
                    _mark(file.fileno())
                    if found.st_size == blob.size:
                        return
                    raise ObjectMissing(blob.digest, str(self._root))  # the object is good, the ref is wrong
        except FileNotFoundError:
            raise ObjectMissing(blob.digest, str(self._root)) from None
        except PermissionError as error:
            raise StoreUnusable(
                f"the store {self._root} cannot be read: {error}; run: chmod -R u+rwX {self._root}"
            ) from error
        except OSError as error:  # not a file, or a disk error
            _log.warning("object %s in %s cannot be read: %s", blob.digest, self._root, error)
            found = path.lstat()
        self._quarantine(path, found.st_ino, blob)

    def _quarantine(self, path: Path, inode: int, blob: BlobRef) -> None:
        """Quarantines a damaged file and raises ObjectDamaged, unless a good file has replaced it meanwhile."""
        folder = self._root / "quarantine"
        folder.mkdir(mode=0o700, exist_ok=True)
        with self._lock(fcntl.LOCK_EX):
            target = next(
                candidate
                for number in itertools.count()
                if not os.path.lexists(candidate := folder / f"{blob.digest}.{number}")
            )
            try:
                replaced = path.lstat().st_ino != inode
                if not replaced:
                    path.rename(target)
            except FileNotFoundError:
                raise ObjectMissing(blob.digest, str(self._root)) from None
        if replaced:
            self.verified(blob)
            return
        _log.warning("object %s in %s is damaged; moved to %s", blob.digest, self._root, target)
        raise ObjectDamaged(blob.digest, str(self._root), str(target))


def _is_marked(status: os.stat_result, size: int) -> bool:
    return (
        status.st_mtime_ns == VERIFIED_MTIME_NS
        and status.st_size == size
        and stat.S_ISREG(status.st_mode)
        and not status.st_mode & 0o222
    )


def _mark(descriptor: int) -> None:
    os.fchmod(descriptor, 0o444)
    os.utime(descriptor, ns=(VERIFIED_MTIME_NS, VERIFIED_MTIME_NS))


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []
