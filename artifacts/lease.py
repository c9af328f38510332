"""Leases: if several threads, processes or hosts need the same stage, one computes it while the others wait."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import random
import re
import secrets
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from ..errors import StoreUnusable
from .digest import Digest
from .files import WAIT_UNTOLD, read_errors, write_errors
from .records import Record, RecordFiles, Seal

if TYPE_CHECKING:
    from .remote_files import RemoteFiles  # imports fsspec, which a local store does without

_log = logging.getLogger(__name__)

_POLL = 0.002
_POLL_MAXIMUM = 0.1

_ABANDONED = 90.0
"""Seconds without a heartbeat after which the holder of a lease counts as dead, where nobody waits for the lease."""

_CLOCK_STEP = 1.0
"""Seconds by which servers round modification times down."""

_HEARTBEAT_LIMIT = 4096  # bytes
_LEASE = re.compile(r"leases/[^/]+/[0-9]{8}")


class Leases(ABC):
    """One holder per key at a time; a holder that dies loses its lease.

    Publishing is idempotent, so if two hold the same key (after a network partition), only time is lost.
    """

    @abstractmethod
    def hold(self, key: Digest, what: str = "") -> AbstractContextManager[None]:
        """Waits until nobody else holds the key, then holds it until the end of the ``with`` block.

        Whoever waits for long says so, and that it is for `what`.
        """

    @abstractmethod
    def watch(self, key: Digest) -> Callable[[], bool]:
        """A function that says whether somebody holds the key, as far as heartbeats tell by the time it is called."""

    @abstractmethod
    def held(self, now: float | None = None) -> dict[str, float]:
        """The keys that somebody holds, and since when, in seconds since the epoch on the store's clock.

        `now` is the time on that clock; by default, this machine's is taken for it.
        """


class LocalLeases(Leases):
    """Leases between threads and processes of one host: file locks, which the kernel drops when a holder dies."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextlib.contextmanager
    def hold(self, key: Digest, what: str = "") -> Iterator[None]:
        path = self._folder / key
        with write_errors(self._folder.parent):
            descriptor = self._acquire(path, what)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # the lock counts: a file that stays is nobody's lease
                path.unlink()
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing is not enough if a forked child still has it open
            os.close(descriptor)

    def watch(self, key: Digest) -> Callable[[], bool]:
        return lambda: self._taken(self._folder / key) is not None

    def held(self, now: float | None = None) -> dict[str, float]:
        del now  # locks tell
        with read_errors(self._folder.parent):
            paths = list(self._folder.iterdir()) if self._folder.is_dir() else []
        return {path.name: taken for path in paths if (taken := self._taken(path)) is not None}

    def _taken(self, path: Path) -> float | None:
        """When a lease was taken; None if nobody holds it. Raises StoreUnusable if that cannot be told."""
        with read_errors(self._folder.parent):
            return self._locked_since(path)

    @staticmethod
    def _locked_since(path: Path) -> float | None:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return os.fstat(descriptor).st_mtime
        finally:
            os.close(descriptor)
        return None

    def _acquire(self, path: Path, what: str) -> int:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        waiting, pause = _Waiting(what), _POLL
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_at(path, descriptor):
                    os.utime(descriptor)
                    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
                    return descriptor
            except BlockingIOError:
                waiting.tell(lambda: _describe_process(descriptor))  # noqa: B023 - called at once
                # Polls, because a blocking flock would swallow Ctrl-C in a thread and cannot be cancelled.
                time.sleep(pause)
                pause = min(2 * pause, _POLL_MAXIMUM)
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)


class _Waiting:
    """Says once for whom we wait, if that takes long."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._since: float | None = time.monotonic()

    def tell(self, holder: Callable[[], str]) -> None:
        if self._since is not None and time.monotonic() - self._since > WAIT_UNTOLD:
            self._since = None
            _log.warning("waiting for %s, which runs %s", holder(), self._what or "what is needed here, too")


def _describe_process(descriptor: int) -> str:
    """The process that a local lease names, and what to do if it is stopped."""
    import psutil  # noqa: PLC0415 - few runs wait

    with contextlib.suppress(OSError, ValueError, psutil.Error):
        process = psutil.Process(int(os.pread(descriptor, 20, 0).partition(b"\n")[0]))
        since = datetime.fromtimestamp(os.fstat(descriptor).st_mtime).astimezone()
        stopped = process.status() == psutil.STATUS_STOPPED
        advice = f" (it is stopped: `kill -CONT {process.pid}` continues it, `kill -9 {process.pid}` ends it)"
        return f"process {process.pid}{advice if stopped else ''} since {since:%H:%M:%S}"
    return "another process"


def _is_at(path: Path, descriptor: int) -> bool:
    """Whether the locked file still has its name: the previous holder removed it before unlocking it."""
    try:
        return path.stat().st_ino == os.fstat(descriptor).st_ino
    except FileNotFoundError:
        return False


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    """Seconds between heartbeats, until a holder without heartbeat counts as dead, and between polls at most."""

    heartbeat: float = 10.0
    expiry: float = 45.0
    poll: float = 2.0


class RemoteLeases(Leases):
    """One file per holder, ``leases/<key>/<generation>``.

    A process that finds no lease, or only stale ones, creates the next generation. Creation is conditional, so only one
    of several succeeds. If it then finds another live lease after all, it withdraws and starts over.
    """

    def __init__(
        self, files: RemoteFiles, local: Leases, timing: LeaseTiming | None = None, seal: Seal | None = None
    ) -> None:
        """Keeps leases in `files`, wrapped by `seal` if others can write them.

        Takes this host's lease in `local` first, so that one process per host polls.
        """
        self._files = files
        self._records = RecordFiles(files, seal)
        self._local = local
        self._timing = timing or LeaseTiming()
        self._watched: dict[str, _LeaseChanges] = {}  # by folder: who waits for a key afterwards need not start over

    @contextlib.contextmanager
    def hold(self, key: Digest, what: str = "") -> Iterator[None]:
        with self._local.hold(key, what):
            holder = f"{os.getpid()}@{socket.gethostname()} {secrets.token_hex(8)}"
            name = self._acquire(f"leases/{key}", holder, what)
            ended = threading.Event()
            heart = threading.Thread(
                target=self._beat, args=(name, holder, ended), name=f"lease-{key[:8]}", daemon=True
            )
            heart.start()
            try:
                yield
            finally:
                ended.set()
                heart.join()
                self._release(name)

    def watch(self, key: Digest) -> Callable[[], bool]:
        changes = self._watched[f"leases/{key}"] = _LeaseChanges(self._timing.expiry)
        return lambda: bool(self._find(f"leases/{key}", changes)[1])

    def held(self, now: float | None = None) -> dict[str, float]:
        now, found = time.time() if now is None else now, {}
        for file in self._files.list("leases"):
            if now - file.modified < _ABANDONED and (heartbeat := self._read(file.name)):
                found[file.name.split("/")[1]] = file.modified - heartbeat.held - _CLOCK_STEP
        return found

    def _acquire(self, folder: str, holder: str, what: str) -> str:
        changes = self._watched.pop(folder, None) or _LeaseChanges(self._timing.expiry)
        waiting, pause, least = _Waiting(what), 0.02, 0
        while True:
            stale, live = self._find(folder, changes)
            if not live:
                generation = max(least, *(int(name[-8:]) + 1 for name in stale if _LEASE.fullmatch(name)), 0)
                name = f"{folder}/{generation:08d}"
                if self._files.create(name, self._records.sealed(name, _Heartbeat(holder, 0, 0.0).encode())):
                    if set(self._files.names(folder)) <= {name, *stale}:
                        for dead in stale:
                            self._files.delete(dead)
                        return name
                    self._files.delete(name)
                else:
                    least = generation + 1  # somebody else's, or a folder, which no listing has
            waiting.tell(changes.holders)
            time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - only spreads waiting processes
            pause = min(pause * 2, self._timing.poll)

    def _find(self, folder: str, changes: _LeaseChanges) -> tuple[list[str], list[str]]:
        """Stale leases, which what is no lease counts as, and live ones."""
        stale: list[str] = []
        live: list[str] = []
        for name in self._files.names(folder):
            heartbeat = self._read(name)
            (live if heartbeat and not changes.is_stale(name, heartbeat) else stale).append(name)
        return stale, live

    def _read(self, name: str) -> _Heartbeat | None:
        return self._records.read(name, name, _Heartbeat, _HEARTBEAT_LIMIT) if _LEASE.fullmatch(name) else None

    def _beat(self, name: str, holder: str, ended: threading.Event) -> None:
        start = time.monotonic()
        beat = 0
        while not ended.wait(self._timing.heartbeat):
            beat += 1
            try:
                if self._files.read(name) is None:
                    _log.warning("lease %s was taken over: its heartbeat came too late", name)
                    return
                self._records.write(name, name, _Heartbeat(holder, beat, time.monotonic() - start).encode())
            except StoreUnusable as error:
                _log.warning("lease %s could not be renewed: %s", name, error)

    def _release(self, name: str) -> None:
        try:
            self._files.delete(name)
        except StoreUnusable as error:
            _log.warning("lease %s could not be released, others wait until it expires: %s", name, error)


@dataclass(slots=True)
class _LeaseChanges:
    """When each lease file last changed, by our own monotonic clock: clocks of different hosts are never compared."""

    expiry: float
    seen: dict[str, tuple[_Heartbeat, float]] = field(default_factory=dict)

    def is_stale(self, name: str, heartbeat: _Heartbeat) -> bool:
        now = time.monotonic()
        before, since = self.seen.get(name, (None, now))
        if before != heartbeat:
            since = now
        self.seen[name] = (heartbeat, since)
        return now - since > self.expiry

    def holders(self) -> str:
        """Who has had the leases."""
        names = {heartbeat.holder.partition(" ")[0] for heartbeat, _ in self.seen.values()}
        return f"process {', '.join(sorted(names))}"


@dataclass(frozen=True, slots=True)
class _Heartbeat(Record):
    """The content of a lease file: its holder, the number of this heartbeat, and the seconds since the first.

    The holder is the number of its process at its host, and a random number.
    """

    holder: str
    beat: int
    held: Annotated[float, Field(ge=0, allow_inf_nan=False)]
