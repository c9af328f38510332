"""Leases: if several threads, processes or hosts need the same stage, one computes it while the others wait."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import math
import os
import random
import re
import secrets
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from ..errors import LeaseLost, StoreUnusable
from .digest import Digest
from .files import QUIET_WAIT, read_errors, write_errors
from .records import Record, RecordFiles, Seal

if TYPE_CHECKING:
    from .remote_files import RemoteFiles  # imports fsspec, which a local store does without

_log = logging.getLogger(__name__)

_POLL = 0.002
_POLL_MAXIMUM = 0.1

_ABANDONED = 90.0
"""Age in seconds from which a heartbeat is doubted. It proves nothing: the store may have been out of reach."""

_CLOCK_STEP = 1.0  # seconds by which servers round modification times down
_HEARTBEAT_LIMIT = 4096  # bytes
_LEASE = re.compile(r"leases/[^/]+/[0-9]{8}")


@dataclass(slots=True)
class Silence:
    """Seconds without a heartbeat, counted only while the observer could have seen one.

    The clock is the observer's own. A look that takes longer than `most` seconds, or whose calls had to be retried, met
    an outage, in which the holder may not have been able to write either, so counting starts again. Between two looks,
    at most `most` seconds count: the observer may have been stopped.
    """

    most: float
    seconds: float = 0.0
    _looked: float | None = None

    def look(self, began: float, *, heard: bool, failed: float = -math.inf) -> float:
        """Counts a look, which began and met a failure at these times; returns the seconds of silence so far."""
        now = time.monotonic()
        last = began if self._looked is None else self._looked
        if heard or now - began > self.most or failed >= last:
            self.seconds = 0.0
        else:
            self.seconds += min(now - last, self.most)
        self._looked = now
        return self.seconds


class Lease:
    """A lease that is held. This one, between processes of one host, is never lost."""

    lost: bool = False  # whether another process is known to have taken it over

    def check(self) -> None:
        """Raises LeaseLost if another process has taken the lease over; looks if renewing has failed for a while."""


class Leases(ABC):
    """One holder per key at a time; a holder that dies loses its lease.

    A holder whose heartbeats do not reach the store can lose its lease: before it publishes, it calls `Lease.check`.
    """

    @abstractmethod
    def hold(self, key: Digest, what: str = "") -> AbstractContextManager[Lease]:
        """Waits until nobody else holds the key, then holds it in the ``with`` block; logs long waits as `what`."""

    @abstractmethod
    def watch(self, key: Digest) -> Callable[[], bool]:
        """Returns a function that reports whether the key is currently held, judging by heartbeats."""

    @abstractmethod
    def held(self, now: float | None = None) -> dict[str, float]:
        """The keys that are held, and since when, in seconds since the epoch on the store's clock.

        `now` is the time on that clock, by default this machine's. Waits for new heartbeats where the last are old.
        """


class LocalLeases(Leases):
    """Leases between threads and processes of one host: file locks, which the kernel drops when a holder dies."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextlib.contextmanager
    def hold(self, key: Digest, what: str = "") -> Iterator[Lease]:
        path = self._folder / key
        with write_errors(self._folder.parent):
            descriptor = self._acquire(path, what)
        try:
            yield Lease()
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
        """The time a lease was taken, None if nobody holds it; raises StoreUnusable if the store does not answer."""
        with read_errors(self._folder.parent):
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
    """Logs once whom we wait for, if that takes long."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._since: float | None = time.monotonic()

    def tell(self, holder: Callable[[], str]) -> None:
        if self._since is not None and time.monotonic() - self._since > QUIET_WAIT:
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
    """Times in seconds."""

    heartbeat: float = 10.0  # between heartbeats
    expiry: float = 45.0  # until a holder without heartbeat counts as dead
    poll: float = 2.0  # between polls at most


class RemoteLeases(Leases):
    """One file per holder, ``leases/<key>/<generation>``.

    A process that finds no lease, or only stale ones, creates the next generation. Creation is conditional, so only one
    of several succeeds. If it then finds another live lease after all, it withdraws and starts over.
    """

    def __init__(
        self, files: RemoteFiles, local: Leases, timing: LeaseTiming | None = None, seal: Seal | None = None
    ) -> None:
        """Keeps sealed leases in `files`; takes `local` ones first, so that one process per host polls."""
        self.files = files
        self.records = RecordFiles(files, seal)
        self.timing = timing or LeaseTiming()
        self._local = local
        self._watched: dict[str, _Holders] = {}  # by folder: who waits for a key afterwards need not start over

    @contextlib.contextmanager
    def hold(self, key: Digest, what: str = "") -> Iterator[Lease]:
        with self._local.hold(key, what):
            lease = self._acquire(f"leases/{key}", what)
            ended = threading.Event()
            heart = threading.Thread(target=lease.beat, args=(ended,), name=f"lease-{key[:8]}", daemon=True)
            heart.start()
            try:
                yield lease
            finally:
                ended.set()
                heart.join()
                lease.release()

    def watch(self, key: Digest) -> Callable[[], bool]:
        holders = self._watched[f"leases/{key}"] = _Holders(self.timing)
        return lambda: bool(self._find(f"leases/{key}", holders)[1])

    def held(self, now: float | None = None) -> dict[str, float]:
        now = time.time() if now is None else now
        files = {file.name: file for file in self.files.list("leases")}
        heartbeats = {name: heartbeat for name in files if (heartbeat := self.read(name))}
        dead = self._dead({name: heartbeats[name] for name in heartbeats if now - files[name].modified >= _ABANDONED})
        return {
            name.split("/")[1]: files[name].modified - heartbeat.held - _CLOCK_STEP
            for name, heartbeat in heartbeats.items()
            if name not in dead
        }

    def _dead(self, doubtful: dict[str, _Heartbeat]) -> set[str]:
        """The lease files among these without a heartbeat until they expire; removes those."""
        if not doubtful:
            return set()
        expiry = self.timing.expiry
        _log.warning("watching for %.0f s if holders of %d leases without a heartbeat live", expiry, len(doubtful))
        holders, stale, began = _Holders(self.timing), set[str](), time.monotonic()
        holders.look(doubtful, began)
        while doubtful and time.monotonic() - began < 2 * expiry + self.timing.heartbeat:  # others are taken to live
            time.sleep(self.timing.poll)
            looked = time.monotonic()
            now = {name: self.read(name) for name in doubtful}
            doubtful = {name: heartbeat for name, heartbeat in doubtful.items() if now[name] == heartbeat}
            stale |= holders.look(doubtful, looked, self.files.failed)
            doubtful = {name: heartbeat for name, heartbeat in doubtful.items() if name not in stale}
        with contextlib.suppress(StoreUnusable):  # it may be read-only
            for name in stale:
                self.files.delete(name)
        return stale

    def _acquire(self, folder: str, what: str) -> _RemoteLease:
        holders = self._watched.pop(folder, None) or _Holders(self.timing)
        waiting, pause, least = _Waiting(what), 0.02, 0
        while True:
            stale, live = self._find(folder, holders)
            if not live:
                generation = max(least, *(int(name[-8:]) + 1 for name in stale if _LEASE.fullmatch(name)), 0)
                lease = _RemoteLease(self, f"{folder}/{generation:08d}")
                if lease.create():
                    if set(self.files.names(folder)) <= {lease.name, *stale}:
                        for dead in stale:
                            self.files.delete(dead)
                        return lease
                    self.files.delete(lease.name)
                else:
                    least = generation + 1  # somebody else's, or a folder, which no listing has
            waiting.tell(holders.describe)
            time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - only spreads waiting processes
            pause = min(pause * 2, self.timing.poll)

    def _find(self, folder: str, holders: _Holders) -> tuple[list[str], list[str]]:
        """Stale leases, with files that are no leases, and live ones."""
        began = time.monotonic()
        leases = {name: self.read(name) for name in self.files.names(folder)}
        heartbeats = {name: heartbeat for name, heartbeat in leases.items() if heartbeat}
        live = heartbeats.keys() - holders.look(heartbeats, began, self.files.failed)
        return [name for name in leases if name not in live], sorted(live)

    def read(self, name: str) -> _Heartbeat | None:
        return self.records.read(name, name, _Heartbeat, _HEARTBEAT_LIMIT) if _LEASE.fullmatch(name) else None

    def newer(self, name: str) -> bool:
        """Whether a lease of a later generation has taken the place of this one."""
        folder = name.rpartition("/")[0]
        return any(other > name for other in self.files.names(folder) if _LEASE.fullmatch(other))


class _RemoteLease(Lease):
    """A lease file of ours. Usable from several threads."""

    def __init__(self, leases: RemoteLeases, name: str) -> None:
        self.name = name
        self._leases = leases
        self._holder = f"{os.getpid()}@{socket.gethostname()} {secrets.token_hex(8)}"
        self._start = self._renewed = time.monotonic()
        self._beats = 0
        self._renewing = threading.Lock()

    def create(self) -> bool:
        """Creates the file where there is none; returns whether it is ours."""
        return self._leases.files.create(self.name, self._leases.records.sealed(self.name, self._heartbeat()))

    def check(self) -> None:
        if self._is_late():
            self.renew()
        if self.lost:
            raise LeaseLost(f"lease {self.name} was taken over: its heartbeat came too late")

    def beat(self, ended: threading.Event) -> None:
        """Renews the lease from time to time until the event, or until it is lost."""
        while not (self.lost or ended.wait(self._leases.timing.heartbeat)):
            try:
                self.renew()
            except StoreUnusable as error:
                _log.warning("lease %s could not be renewed: %s", self.name, error)

    def release(self) -> None:
        try:
            if not self.lost:
                self._leases.files.delete(self.name)
        except StoreUnusable as error:
            _log.warning("lease %s could not be released, others wait until it expires: %s", self.name, error)

    def renew(self) -> None:
        """Writes the next heartbeat, or a removed lease again; notes that it is lost if another process has it."""
        with self._renewing:
            if self.lost:
                return
            self._beats += 1
            there = self._leases.read(self.name)
            if there and there.holder == self._holder:
                self._leases.records.write(self.name, self.name, self._heartbeat())
            elif there or self._leases.newer(self.name) or not self.create():
                self.lost = True
            # If somebody took it over since we read it, our rewritten file of an earlier generation has to go.
            if not self.lost and (not there or self._is_late()) and self._leases.newer(self.name):
                self._leases.files.delete(self.name)
                self.lost = True
            self._renewed = time.monotonic()
            if self.lost:
                _log.warning("lease %s was taken over: its heartbeat came too late", self.name)

    def _is_late(self) -> bool:
        """Whether the last heartbeat is so old that others may have taken us for dead, or are about to."""
        return time.monotonic() - self._renewed > self._leases.timing.expiry / 2

    def _heartbeat(self) -> bytes:
        return _Heartbeat(self._holder, self._beats, time.monotonic() - self._start).encode()


@dataclass(slots=True)
class _Holders:
    """The last heartbeat of each lease file, and for how long there was none; hosts' clocks are never compared."""

    timing: LeaseTiming
    seen: dict[str, tuple[_Heartbeat, Silence]] = field(default_factory=dict)

    def look(self, heartbeats: Mapping[str, _Heartbeat], began: float, failed: float = -math.inf) -> set[str]:
        """Takes note of the heartbeats that a look has found; returns the names of leases that have expired."""
        stale = set()
        for name, heartbeat in heartbeats.items():
            before, silence = self.seen.get(name, (None, Silence(self.timing.expiry / 3)))
            self.seen[name] = heartbeat, silence
            if silence.look(began, heard=heartbeat != before, failed=failed) > self.timing.expiry:
                stale.add(name)
        return stale

    def describe(self) -> str:
        names = {heartbeat.holder.partition(" ")[0] for heartbeat, _ in self.seen.values()}
        return f"process {', '.join(sorted(names))}"


@dataclass(frozen=True, slots=True)
class _Heartbeat(Record):
    """The content of a lease file: its holder (pid, host, random number), and which heartbeat this is."""

    holder: str
    beat: int
    held: Annotated[float, Field(ge=0, allow_inf_nan=False)]
