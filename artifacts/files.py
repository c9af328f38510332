"""Files: opening those that others put there, replacing small ones as a whole, and staging that makes writes atomic."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import logging
import os
import secrets
import shutil
import stat
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from ..errors import StoreUnusable, unusable

_log = logging.getLogger(__name__)

RECORD_LIMIT = 64 * 2**20
"""Bytes that a record has at most. Others may have written the file: no more of it is read."""

SIDECAR_LIMIT = 64 * 2**20  # bytes that a JSON file next to a result has at most
QUIET_WAIT = 10.0  # seconds of waiting for another process before a warning

_CHUNK = 1 << 16
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
_STAGING_FILE = f"{'[0-9a-f]' * 32}.part"


class NotAFileError(OSError):
    """There is a pipe, a socket or a device where a file should be."""


def open_input(path: str | Path) -> BufferedReader:
    """Opens a file that a user names, or the one that a link leads to. Raises NotAFileError or another OSError."""
    mode = os.stat(path).st_mode  # noqa: PTH116 - a path or its text
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):  # opening a pipe would wait for its other end
        raise NotAFileError(errno.EINVAL, "it is a pipe or device", str(path))
    return open(path, "rb")  # noqa: PTH123 - as above


def read_sidecar(path: Path) -> bytes:
    """A JSON file that `pteforge export` writes next to a result. Raises NotAFileError or another OSError."""
    with open_input(path) as file:
        content = file.read(SIDECAR_LIMIT + 1)
    if len(content) > SIDECAR_LIMIT:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return content


class NamedFiles(ABC):
    """Files named like ``ledger/ab/abcd``, on a disk or at a URL; writes are atomic. StoreUnusable if out of reach."""

    @abstractmethod
    def read(self, name: str, limit: int = RECORD_LIMIT) -> bytes | None:
        """Returns a file's content, or None if it does not exist; nothing of a file of more than `limit` bytes."""

    @abstractmethod
    def write(self, name: str, content: bytes) -> None:
        """Creates or replaces a file."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Removes a file, if it exists."""

    @abstractmethod
    def names(self, folder: str) -> list[str]:
        """Sorted names of all files below a folder."""


class LocalFiles(NamedFiles):
    """Files in a local store's folder."""

    def __init__(self, root: Path) -> None:
        """Keeps files below `root`, and staging files in ``<root>/tmp``."""
        self._root = root

    def read(self, name: str, limit: int = RECORD_LIMIT) -> bytes | None:
        try:
            with open(f"{self._root}/{name}", "rb") as file:  # noqa: PTH123 - a rerun reads thousands: no `Path`
                status = os.fstat(file.fileno())
                if status.st_uid != os.geteuid():  # of a folder that another user has made
                    raise StoreUnusable(
                        f"the record {name} in the store {self._root} belongs to user {status.st_uid}, not to you "
                        f"({os.geteuid()}): records lead to pickles and must be yours; move {Path(name).parent} away"
                    )
                return at_most(file.read(min(status.st_size, limit) + 1), limit)  # reserves as much memory at once
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise unreadable(self._root, error) from error

    def write(self, name: str, content: bytes) -> None:
        with write_errors(self._root):
            replace_file(self._root / name, content, self._root / "tmp")

    def delete(self, name: str) -> None:
        with write_errors(self._root):
            (self._root / name).unlink(missing_ok=True)

    def names(self, folder: str) -> list[str]:
        """A folder that cannot be listed is an error: `gc` would take its records for dropped."""
        names = []
        with read_errors(self._root):
            for path, _, files in os.walk(self._root / folder, onerror=_raise_unless_missing):
                names += [os.path.relpath(f"{path}/{name}", self._root) for name in files]
        return sorted(names)


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def at_most(content: bytes, limit: int) -> bytes:
    """Content of at most so many bytes; nothing of what is longer, which is not what was written."""
    return content if len(content) <= limit else b""


def move_aside(path: Path, root: Path, name: str) -> Path:
    """Renames whatever is at a path to ``<root>/quarantine/<name>.<number>``, and returns that."""
    folder = root / "quarantine"
    folder.mkdir(mode=0o700, exist_ok=True)
    numbered = (folder / f"{name}.{number}" for number in itertools.count())
    target = next(candidate for candidate in numbered if not os.path.lexists(candidate))
    path.rename(target)
    return target


def unreadable(root: Path, error: OSError) -> StoreUnusable:
    """What to raise for an error of the operating system while reading from the store at `root`."""
    return StoreUnusable(f"the store {root} cannot be read: {error}; run: chmod -R u+rwX {root}")


@contextlib.contextmanager
def read_errors(root: Path) -> Iterator[None]:
    """Converts the operating system's errors while reading from the store at `root` to StoreUnusable."""
    try:
        yield
    except OSError as error:
        raise unreadable(root, error) from error


@contextlib.contextmanager
def write_errors(root: Path) -> Iterator[None]:
    """Converts the operating system's errors while writing to the store at `root` to StoreUnusable."""
    try:
        yield
    except OSError as error:
        what_to_do = "free some space (pteforge store gc)"
        if error.errno in _FORBIDDEN:
            what_to_do = f"make it writable (chmod -R u+rwX {root})"
        raise unusable(error)(
            f"the store {root} cannot be written: {error}; {what_to_do}, or use another folder with --store"
        ) from error


def wait_for_lock(descriptor: int, operation: int, what: str) -> None:
    """Locks a file; logs a warning if another process that does `what` has it locked for long."""
    try:
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        message = "waiting for another process that %s; it may be stopped"
        timer = threading.Timer(QUIET_WAIT, _log.warning, (message, what))
        timer.daemon = True
        timer.start()
        try:
            fcntl.flock(descriptor, operation)
        finally:
            timer.cancel()


def replace_file(path: Path, content: bytes, staging: Path) -> None:
    with new_file(path, staging) as file:
        file.write(content)


def create_file(path: Path, content: bytes, staging: Path) -> bool:
    with staging_file(staging) as (part, file):
        file.write(content)
        file.flush()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            os.link(part, path)
        except FileExistsError:
            return False
        return True


@contextlib.contextmanager
def staging_file(folder: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """A new private file in `folder`, open for writing; removed at the end unless it was renamed."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    while True:
        path = folder / f"{secrets.token_hex(16)}.part"
        with path.open("xb") as file:
            try:
                if not _lock(file.fileno()):
                    continue
                yield path, file
                return
            finally:
                with contextlib.suppress(OSError):
                    path.unlink()


@contextlib.contextmanager
def reserved_space(folder: Path, size: int) -> Iterator[None]:
    """Occupies `size` bytes of the disk of a folder, or what is left of it, until the context ends."""
    with staging_file(folder) as (_, file):
        with contextlib.suppress(OSError):
            for written in range(0, size, _CHUNK):
                os.write(file.fileno(), bytes(min(_CHUNK, size - written)))
        yield


@contextlib.contextmanager
def new_file(path: Path, staging: Path | None = None) -> Iterator[BinaryIO]:
    """A file that takes the place of `path` once the block ends well; creates the folder if needed."""
    with staging_file(staging or path.parent) as (part, file):
        yield file
        file.flush()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        part.replace(path)


@contextlib.contextmanager
def staging_folder(folder: Path, suffix: str = ".scratch") -> Iterator[Path]:
    """A new private folder in `folder`, removed with all its content at the end."""
    while True:
        path = folder / f"{secrets.token_hex(16)}{suffix}"
        path.mkdir(mode=0o700, parents=True)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:  # removed as abandoned before we could lock it
            continue
        try:
            if not _lock(descriptor):
                continue
            yield path
            return
        finally:
            with contextlib.suppress(OSError):
                remove(path)
            os.close(descriptor)


def _lock(descriptor: int) -> bool:
    """Locks a new staging entry; returns False if it was removed as abandoned before it was locked."""
    wait_for_lock(descriptor, fcntl.LOCK_EX, "looks at a new staging file")
    return os.fstat(descriptor).st_nlink > 0


def abandoned(folder: Path, pattern: str = "*") -> Iterator[Path]:
    """Staging entries in `folder` whose processes are dead; each is locked until the next one is requested."""
    for path in sorted(folder.glob(pattern)):
        with contextlib.suppress(OSError):  # already removed, or not ours
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield path
            except BlockingIOError:
                pass
            finally:
                os.close(descriptor)


def remove_abandoned_files(folder: Path) -> None:
    """Removes staging files of dead processes from a folder that has other files, too; what cannot be, stays."""
    with contextlib.suppress(OSError):  # no such folder, or not to be listed
        for path in abandoned(folder, _STAGING_FILE):
            with contextlib.suppress(OSError):
                path.unlink()


def remove(path: Path) -> None:
    """Deletes a file, or a folder with all its content, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
