"""Objects as files named by their digest: publishing, verifying, quarantining and deleting them."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

from ..errors import ObjectDamaged, ObjectMissing
from .digest import Digest, digest_bytes, is_digest
from .files import move_aside, open_file, read_errors, remove, unreadable, wait_for_lock, write_errors
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
    """Files ``<root>/objects/<first two digits>/<digest>``; safe under concurrent threads and processes.

    Where only presence matters, a file's mark is trusted. Whoever uses the bytes digests them: rot keeps the mark.

    A damaged file moves to ``<root>/quarantine``, after ``<root>/damaged/<digest>`` has noted it: what was made from it
    is not to be trusted either (`Store.forget_damaged`), even if this process ends here.
    """

    def __init__(self, root: Path, *, once: bool = False) -> None:
        """With `once`, each file is digested by its first use only; what was installed here was digested by that."""
        self._root = root
        self._digested: dict[Digest, tuple[int, ...]] | None = {} if once else None

    def holds(self, blob: BlobRef) -> bool:
        """Whether the object is there and good, as far as its mark tells."""
        try:
            self.require(blob)
        except (ObjectMissing, ObjectDamaged):
            return False
        return True

    def require(self, blob: BlobRef) -> None:
        """Raises ObjectMissing or ObjectDamaged unless `holds`."""
        try:
            # No `Path`: a rerun with nothing to do asks for every object of a zoo.
            status = os.lstat(f"{self._root}/objects/{blob.digest[:2]}/{blob.digest}")
        except (FileNotFoundError, NotADirectoryError):
            raise ObjectMissing(blob.digest, str(self._root)) from None
        except OSError as error:
            raise unreadable(self._root, error) from error
        if not _is_marked(status, blob.size):
            self.digested(blob)

    def digested(self, blob: BlobRef) -> Path:
        """A file whose bytes are the blob's: all of them are read. Raises ObjectMissing or ObjectDamaged."""
        path = self._path(blob.digest)
        with self._open(path, blob) as file, read_errors(self._root):
            found = os.fstat(file.fileno())
            if self._digested is not None and self._digested.get(blob.digest) == _file_state(found, blob.size):
                return path
            try:
                good = hashlib.file_digest(file, "sha256").hexdigest() == blob.digest
            except OSError as error:  # a disk error
                _log.warning("object %s in %s cannot be read: %s", blob.digest, self._root, error)
                good = False
            if good and not _is_marked(found, found.st_size):
                _mark(file.fileno())
        if not good:
            self._quarantine(path, found.st_ino, blob)
        elif found.st_size != blob.size:
            raise ObjectMissing(blob.digest, str(self._root))  # the object is good, the ref is wrong
        self._note_digested(path, blob)
        return path

    def read(self, blob: BlobRef) -> bytes:
        """The blob's bytes, digested; raises ObjectMissing or ObjectDamaged."""
        while True:
            path = self._path(blob.digest)
            with self._open(path, blob) as file, read_errors(self._root):
                content = b""
                with contextlib.suppress(OSError):  # `digested` reads it again, and says so
                    content = file.read(min(blob.size, os.fstat(file.fileno()).st_size) + 1)
                if len(content) == blob.size and digest_bytes(content) == blob.digest:
                    if not _is_marked(os.fstat(file.fileno()), blob.size):
                        _mark(file.fileno())
                    return content
            self.digested(blob)  # raises, unless a good file has replaced it

    def refresh(self, blob: BlobRef) -> bool:
        """Whether `holds`; if so the object counts as published now, which renews its grace period.

        In a store that cannot be written, nobody deletes it either.
        """
        if not self.holds(blob):
            return False
        if not os.access(self._root, os.W_OK):
            return True
        with write_errors(self._root), self._lock(fcntl.LOCK_SH), contextlib.suppress(FileNotFoundError):
            os.utime(self._path(blob.digest), ns=(VERIFIED_MTIME_NS, VERIFIED_MTIME_NS))
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
        with write_errors(self._root), self._lock(fcntl.LOCK_EX), contextlib.suppress(FileNotFoundError):
            if path.lstat().st_ctime < unless_since:
                remove(path)
                return True
        return False

    def distrust(self, digest: Digest) -> None:
        """Makes the next use of an object verify it again."""
        with write_errors(self._root), contextlib.suppress(FileNotFoundError):
            os.utime(self._path(digest))

    def damaged(self) -> list[Digest]:
        """Objects that were found damaged, by any process, and are not `settled` yet."""
        try:
            names = os.listdir(f"{self._root}/damaged")  # noqa: PTH208 - asked at each look into the ledger: no `Path`
        except FileNotFoundError:
            return []
        except OSError as error:
            raise unreadable(self._root, error) from error
        return [Digest(name) for name in names if is_digest(name)]

    def settle(self, digest: Digest) -> None:
        """Forgets that an object was found damaged: nothing rests on it any more."""
        with write_errors(self._root):
            remove(self._root / "damaged" / digest)

    def _note_digested(self, path: Path, blob: BlobRef) -> None:
        if self._digested is not None:
            with contextlib.suppress(OSError):  # then it is digested again
                self._digested[blob.digest] = _file_state(path.lstat(), blob.size)

    def _note_damage(self, digest: Digest) -> None:
        folder = self._root / "damaged"
        folder.mkdir(mode=0o700, exist_ok=True)
        (folder / digest).touch(mode=0o600)

    def quarantined(self, before: float) -> list[Path]:
        entries = self._listed(self._root / "quarantine")
        looked_at = ((Path(entry.path), self._looked_at(entry)) for entry in entries)
        return sorted(path for path, status in looked_at if status and status.st_ctime < before)

    def __iter__(self) -> Iterator[StoredObject]:
        for shard in self._listed(self._root / "objects"):
            for entry in self._listed(Path(shard.path)):
                if is_digest(entry.name) and (status := self._looked_at(entry)):
                    yield StoredObject(Digest(entry.name), status.st_size, status.st_ctime)

    def _listed(self, folder: Path) -> list[os.DirEntry[str]]:
        with read_errors(self._root):
            return _entries(folder)

    def _looked_at(self, entry: os.DirEntry[str]) -> os.stat_result | None:
        with read_errors(self._root), contextlib.suppress(FileNotFoundError):
            return entry.stat(follow_symlinks=False)
        return None

    def _path(self, digest: Digest) -> Path:
        return Path(f"{self._root}/objects/{digest[:2]}/{digest}")  # parsed once, not at each `/`

    @contextlib.contextmanager
    def _lock(self, operation: int) -> Iterator[None]:
        """Shared by publishers, exclusive for deletion: no object is deleted while it is being published again."""
        with write_errors(self._root):
            descriptor = os.open(self._root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            with write_errors(self._root):
                wait_for_lock(descriptor, operation, f"publishes or deletes in the store {self._root}")
            yield
        finally:
            os.close(descriptor)

    def _open(self, path: Path, blob: BlobRef) -> BufferedReader:
        try:
            return open_file(path)
        except (FileNotFoundError, NotADirectoryError):
            raise ObjectMissing(blob.digest, str(self._root)) from None
        except OSError as error:
            raise unreadable(self._root, error) from error

    def _quarantine(self, path: Path, inode: int, blob: BlobRef) -> None:
        """Quarantines what is damaged and raises ObjectDamaged, unless a good file has replaced it meanwhile.

        In a store that cannot be written it stays where it is.
        """
        if not os.access(self._root, os.W_OK):
            _log.warning("object %s in %s is damaged; it stays, since the store is read-only", blob.digest, self._root)
            raise ObjectDamaged(blob.digest, str(self._root), str(path))
        with write_errors(self._root), self._lock(fcntl.LOCK_EX):
            try:
                replaced = path.lstat().st_ino != inode
                if not replaced:
                    self._note_damage(blob.digest)
                    target = move_aside(path, self._root, blob.digest)
            except FileNotFoundError:
                raise ObjectMissing(blob.digest, str(self._root)) from None
        if replaced:
            self.digested(blob)
            return
        _log.warning("object %s in %s is damaged; moved to %s", blob.digest, self._root, target)
        raise ObjectDamaged(blob.digest, str(self._root), str(target))


def _file_state(status: os.stat_result, size: int) -> tuple[int, ...]:
    """What tells a file that was digested from another one, or from one that was written since."""
    return status.st_ino, status.st_mtime_ns, status.st_size, size


def _is_marked(status: os.stat_result, size: int) -> bool:
    return status.st_mtime_ns == VERIFIED_MTIME_NS and status.st_size == size and not status.st_mode & 0o222


def _mark(descriptor: int) -> None:
    with contextlib.suppress(OSError):  # of a read-only store: the object will be digested again
        os.fchmod(descriptor, 0o444)
        os.utime(descriptor, ns=(VERIFIED_MTIME_NS, VERIFIED_MTIME_NS))


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []
