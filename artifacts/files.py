"""Small files that are read and replaced as a whole, and the staging files that make writes atomic."""

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
from abc import ABC, abstractmethod
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from ..errors import StoreUnusable

_log = logging.getLogger(__name__)


RECORD_LIMIT = 64 * 2**20
"""Bytes that a record has at most. Others may have written the file: no more of it is read."""


class NamedFiles(ABC):
    """Files under names like ``ledger/ab/abcd``, on a disk or behind a URL.

    Writes are atomic: readers never see a part of a file. Every method raises StoreUnusable if the files cannot be
    reached.
    """

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
            with open_file(f"{self._root}/{name}") as file:  # a rerun reads thousands: no `Path`
                size = os.fstat(file.fileno()).st_size
                return at_most(file.read(min(size, limit) + 1), limit)  # which reserves as much memory at once
        except (FileNotFoundError, NotADirectoryError):
            return None
        except NotAFileError as error:
            self._move_aside(name, error)
            return None
        except OSError as error:
            raise StoreUnusable(f"the store {self._root} cannot be read: {error}") from error

    def write(self, name: str, content: bytes) -> None:
        with write_errors(self._root):
            try:
                replace_file(self._root / name, content, self._root / "tmp")
            except IsADirectoryError as error:
                self._move_aside(name, error)
                replace_file(self._root / name, content, self._root / "tmp")

    def delete(self, name: str) -> None:
        with write_errors(self._root):
            try:
                (self._root / name).unlink(missing_ok=True)
            except IsADirectoryError as error:
                self._move_aside(name, error)

    def names(self, folder: str) -> list[str]:
        """Of all that is no folder: `read` moves aside what is no file, either."""
        top = self._root / folder
        found = (path for path in top.rglob("*") if path.is_symlink() or not path.is_dir())
        return sorted(str(path.relative_to(self._root)) for path in found)

    def _move_aside(self, name: str, error: OSError) -> None:
        with write_errors(self._root), contextlib.suppress(FileNotFoundError):
            target = move_aside(self._root / name, self._root, name.replace("/", "-"))
            _log.warning("%s in the store %s is not a file (%s); moved to %s", name, self._root, error.strerror, target)


def at_most(content: bytes, limit: int) -> bytes:
    """Content of at most so many bytes; nothing of what is longer, which is not what was written."""
    return content if len(content) <= limit else b""


class NotAFileError(OSError):
    """There is a link, a folder, a pipe, a socket or a device where a file should be."""


def open_file(path: str | Path) -> BufferedReader:
    """Opens a file to read; never follows a link, waits for a pipe or touches a device. Raises NotAFileError."""
    if not stat.S_ISREG(os.lstat(path).st_mode):
        raise NotAFileError(errno.EINVAL, "a link, folder, pipe or device", str(path))
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # it has just been replaced
            raise NotAFileError(error.errno, error.strerror, str(path)) from error
        raise
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    raise NotAFileError(errno.EINVAL, "a folder, pipe or device", str(path))


def move_aside(path: Path, root: Path, name: str) -> Path:
    """Renames whatever is at a path to ``<root>/quarantine/<name>.<number>``, and returns that."""
    folder = root / "quarantine"
    folder.mkdir(mode=0o700, exist_ok=True)
    numbered = (folder / f"{name}.{number}" for number in itertools.count())
    target = next(candidate for candidate in numbered if not os.path.lexists(candidate))
    path.rename(target)
    return target


@contextlib.contextmanager
def write_errors(root: Path) -> Iterator[None]:
    """Converts the operating system's errors while writing to the store at `root` to StoreUnusable."""
    try:
        yield
    except OSError as error:
        raise StoreUnusable(
            f"the store {root} cannot be written: {error}; free some space (pteforge store gc) or use another folder"
        ) from error


def replace_file(path: Path, content: bytes, staging: Path) -> None:
    with _staged(content, staging) as part:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        part.replace(path)


def create_file(path: Path, content: bytes, staging: Path) -> bool:
    with _staged(content, staging) as part:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            os.link(part, path)
        except FileExistsError:
            return False
        return True


@contextlib.contextmanager
def _staged(content: bytes, folder: Path) -> Iterator[Path]:
    with staging_file(folder) as (path, file):
        file.write(content)
        file.flush()
        yield path


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
                path.unlink(missing_ok=True)


@contextlib.contextmanager
def staging_folder(folder: Path) -> Iterator[Path]:
    """A new private folder in `folder`, removed with all its content at the end."""
    while True:
        path = folder / f"{secrets.token_hex(16)}.scratch"
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
            remove(path)
            os.close(descriptor)


def _lock(descriptor: int) -> bool:
    """Locks a new staging entry; returns False if it was removed as abandoned before it was locked."""
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return os.fstat(descriptor).st_nlink > 0


def abandoned(folder: Path) -> Iterator[Path]:
    """Staging entries in `folder` whose processes are dead; each is locked until the next one is requested."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        with contextlib.suppress(OSError):  # already removed, or not ours
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield path
            except BlockingIOError:
                pass
            finally:
                os.close(descriptor)


def remove(path: Path) -> None:
    """Deletes a file, or a folder with all its content, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
