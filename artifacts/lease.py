"""Leases: of all threads, processes and hosts that need the same stage, one computes it while the others wait."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from .digest import Digest

_POLL = 0.002
_POLL_MAXIMUM = 0.1


class Leases(ABC):
    """One holder per key at a time; a holder that dies loses its lease.

    Publishing is idempotent, so that even where two hold the same key (after a partition of the network) only time is
    lost.
    """

    @abstractmethod
    def hold(self, key: Digest) -> AbstractContextManager[None]:
        """Waits until nobody else holds the key, then holds it until the end of the ``with`` block."""

    @abstractmethod
    def oldest(self) -> float | None:
        """When the longest held lease was taken, in seconds since the epoch on the store's clock; None without any."""


class LocalLeases(Leases):
    """Leases between threads and processes of one host: locks on files, which the kernel drops when a holder dies."""

    def __init__(self, folder: Path) -> None:
        """Keeps lock files in `folder`."""
        self._folder = folder

    @contextlib.contextmanager
    def hold(self, key: Digest) -> Iterator[None]:
        """Waits until nobody else holds the key, then holds it until the end of the ``with`` block."""
        path = self._folder / key
        descriptor = self._acquire(path)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing would not do where a forked child still has it open
            os.close(descriptor)

    def oldest(self) -> float | None:
        """When the longest held lease was taken, None where none is held."""
        times = []
        for path in self._folder.iterdir() if self._folder.is_dir() else ():
            with contextlib.suppress(FileNotFoundError):
                descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    times.append(os.fstat(descriptor).st_mtime)
                finally:
                    os.close(descriptor)
        return min(times, default=None)

    def _acquire(self, path: Path) -> int:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        pause = _POLL
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_at(path, descriptor):
                    os.utime(descriptor)
                    return descriptor
            except BlockingIOError:
                # polling, because a blocking flock would swallow Ctrl-C in a thread and cannot be given up
                time.sleep(pause)
                pause = min(2 * pause, _POLL_MAXIMUM)
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)


def _is_at(path: Path, descriptor: int) -> bool:
    """Whether the locked file still has its name: the holder before us removed it before unlocking."""
    try:
        return path.stat().st_ino == os.fstat(descriptor).st_ino
    except FileNotFoundError:
        return False
