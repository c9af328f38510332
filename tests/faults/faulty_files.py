"""Faults of a disk: the calls of the operating system that Python code makes on files of some folders."""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import errno
import fcntl
import io
import os
import random
import subprocess
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

_Result = TypeVar("_Result")

_GROW = frozenset({"create", "write", "mkdir", "link", "rename", "replace"})
_CHANGE = _GROW | {"unlink", "rmdir", "utime", "chmod", "fchmod"}
_READ = frozenset({"open", "read", "listdir", "scandir"})
_LOOK = frozenset({"stat", "lstat", "fstat", "flock", "sync"})

_ERRORS: dict[str, tuple[int, Collection[str]]] = {
    "no space (ENOSPC)": (errno.ENOSPC, _GROW),
    "input/output errors (EIO)": (errno.EIO, _CHANGE | _READ | _LOOK),
    "read-only (EROFS)": (errno.EROFS, _CHANGE),
    "no permission (EACCES)": (errno.EACCES, _CHANGE | _READ),
}
SHORT = "short reads and writes"
FAULTS = (*_ERRORS, SHORT)

_real_open, _real_fstat, _readlink = io.open, os.fstat, os.readlink


@dataclass
class Disk:
    """What happens to calls on files below some folders.

    Attributes:
        fault: one of `FAULTS`.
        rate: share of the calls that fail.
    """

    fault: str
    folders: tuple[str, ...]
    rate: float
    rng: random.Random
    met: int = 0  # calls that failed

    def strikes(self, call: str, path: Any) -> bool:
        """Whether this call is to fail."""
        affected = _ERRORS[self.fault][1] if self.fault in _ERRORS else {"read", "write"}
        if call not in affected or self.rng.random() >= self.rate or not self._has(path):
            return False
        self.met += 1
        return True

    def check(self, call: str, path: Any) -> None:
        """Raises what the operating system would, if the call is to fail."""
        if self.fault in _ERRORS and self.strikes(call, path):
            number = _ERRORS[self.fault][0]
            raise OSError(number, os.strerror(number), path if isinstance(path, str) else None)

    def _has(self, path: Any) -> bool:
        with contextlib.suppress(OSError, TypeError):
            name = _readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else os.fspath(path)
            return isinstance(name, str) and name.startswith(self.folders)
        return False


class _FaultyFile(io.FileIO):
    """A file whose reads and writes may fail, or do less than they were asked to."""

    def __init__(self, disk: Disk, file: Any, mode: str, **options: Any) -> None:
        super().__init__(file, mode, **options)
        self._disk = disk

    def write(self, content: Any) -> int:
        self._disk.check("write", self.fileno())
        view = memoryview(content).cast("B")
        return super().write(view[: self._length("write", len(view))])

    def readinto(self, buffer: Any) -> int:
        self._disk.check("read", self.fileno())
        view = memoryview(buffer).cast("B")
        return super().readinto(view[: self._length("read", len(view))]) or 0

    def readall(self) -> bytes:
        return b"".join(iter(lambda: self.read(1 << 16), b""))

    def read(self, size: int = -1) -> bytes:
        if size < 0:
            return self.readall()
        self._disk.check("read", self.fileno())
        return super().read(self._length("read", size)) or b""

    def _length(self, call: str, size: int) -> int:
        short = size > 1 and self._disk.fault == SHORT and self._disk.strikes(call, self.fileno())
        return self._disk.rng.randrange(1, size) if short else size


@contextlib.contextmanager
def failing(disk: Disk) -> Iterator[None]:
    """Makes calls of the operating system fail, in all threads of this process."""
    with contextlib.ExitStack() as stack:
        for name in ("mkdir", "link", "rename", "replace", "unlink", "rmdir", "utime", "chmod", "fchmod"):
            stack.enter_context(_checked(disk, os, name, name))
        for name in ("listdir", "scandir", "stat", "lstat", "fstat"):
            stack.enter_context(_checked(disk, os, name, name))
        stack.enter_context(_checked(disk, os, "pwrite", "write"))
        stack.enter_context(_checked(disk, os, "fsync", "sync"))
        stack.enter_context(_checked(disk, fcntl, "flock", "flock"))
        stack.enter_context(mock.patch.object(os, "open", _open_checked(disk, os.open)))
        if disk.fault == "read-only (EROFS)":
            stack.enter_context(mock.patch.object(os, "access", _access(disk, os.access)))
        for module in (io, builtins):
            stack.enter_context(mock.patch.object(module, "open", _faulty_open(disk)))
        yield


def _checked(disk: Disk, module: Any, name: str, call: str) -> AbstractContextManager[Any]:
    real = getattr(module, name)

    def function(path: Any = ".", *args: Any, **options: Any) -> Any:
        disk.check(call, path)
        return real(path, *args, **options)

    return mock.patch.object(module, name, function)


def _open_checked(disk: Disk, real: Callable[..., int]) -> Callable[..., int]:
    def function(path: Any, flags: int, *args: Any, **options: Any) -> int:
        disk.check("create" if flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR) else "open", path)
        return real(path, flags, *args, **options)

    return function


def _access(disk: Disk, real: Callable[..., bool]) -> Callable[..., bool]:
    def function(path: Any, mode: int, **options: Any) -> bool:
        return real(path, mode, **options) and not (mode & os.W_OK and disk.strikes("write", path))

    return function


def _faulty_open(disk: Disk) -> Callable[..., Any]:
    def function(file: Any, mode: str = "r", buffering: int = -1, *text: Any, **options: Any) -> Any:
        if not disk._has(file) or "b" not in mode:
            if "b" not in mode:
                disk.check("open" if mode in ("r", "rt") else "create", file)
            return _real_open(file, mode, buffering, *text, **options)
        if not isinstance(file, int):
            disk.check("open" if mode == "rb" else "create", file)
        allowed = {name: option for name, option in options.items() if name in ("closefd", "opener")}
        raw = _FaultyFile(disk, file, mode.replace("b", ""), **allowed)
        if buffering == 0:
            return raw
        buffered = io.BufferedRandom if "+" in mode else io.BufferedReader if "r" in mode else io.BufferedWriter
        return buffered(raw)

    return function


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Callable[[], None]]:
    """Mounts a disk of so many bytes at a folder; what it yields makes it large. Needs `can_mount`."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", folder], check=True)

    def enlarge() -> None:
        subprocess.run(["mount", "-o", "remount,size=1g", folder], check=True)

    try:
        yield enlarge
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def can_mount(folder: Path) -> bool:
    """Whether this process may mount disks: root of a machine may, of most containers not."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder]
    if os.geteuid() or subprocess.run(mount, check=False, capture_output=True).returncode:
        return False
    subprocess.run(["umount", folder], check=True)
    return True


_CAPABILITIES = 0x20080522  # version 3 of the call
_FILES = 0b1111  # CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER


def as_another_user(action: Callable[[], _Result]) -> _Result:
    """Calls a function in a thread that files' modes hold as they hold any user, even if this is root."""
    with ThreadPoolExecutor(1, "unprivileged") as pool:
        pool.submit(_drop_privileges).result()
        return pool.submit(action).result()


def _drop_privileges() -> None:
    """Gives up what root may do with others' files, in this thread and in those that it starts."""
    header, sets = (ctypes.c_uint32 * 2)(_CAPABILITIES, 0), (ctypes.c_uint32 * 6)()
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.capget(header, sets) == 0
    for effective_or_permitted in (0, 1):
        sets[effective_or_permitted] &= ~_FILES
    assert libc.capset(header, sets) == 0, os.strerror(ctypes.get_errno())
