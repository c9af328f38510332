"""Leases between hosts: small files in a remote store that their holders keep changing."""

from __future__ import annotations

import contextlib
import json
import logging
import random
import secrets
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from ..errors import StoreUnusable
from .digest import Digest
from .lease import Leases
from .remote_files import RemoteFiles

_log = logging.getLogger(__name__)

_ABANDONED = 24 * 3600.0
"""Seconds after which a lease that nobody waits for no longer holds up gc."""

_CLOCK_STEP = 1.0
"""Seconds by which servers round modification times down."""


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    """Seconds between heartbeats, without one until a holder counts as dead, and between looks at most."""

    heartbeat: float = 10.0
    expiry: float = 45.0
    poll: float = 2.0


@dataclass(slots=True)
class _Watch:
    """When each lease file was last seen to change, on our own monotonic clock: clocks of hosts are never compared."""

    expiry: float
    seen: dict[str, tuple[bytes, float]] = field(default_factory=dict)

    def is_stale(self, name: str, content: bytes) -> bool:
        now = time.monotonic()
        before, since = self.seen.get(name, (None, now))
        if before != content:
            since = now
        self.seen[name] = (content, since)
        return now - since > self.expiry


class RemoteLeases(Leases):
    """One file per holder, ``leases/<key>/<generation>``.

    Who finds no lease, or only stale ones, makes the next generation; making a file is conditional, so one of several
    succeeds. Who then finds that there is a lease of somebody else after all gives way and starts over.
    """

    def __init__(self, files: RemoteFiles, local: Leases, timing: LeaseTiming | None = None) -> None:
        """Keeps leases in `files`; takes this host's lease in `local` first, so that one waiter per host polls."""
        self._files = files
        self._local = local
        self._timing = timing or LeaseTiming()

    @contextlib.contextmanager
    def hold(self, key: Digest) -> Iterator[None]:
        """Waits until nobody else holds the key, then holds it until the end of the ``with`` block."""
        with self._local.hold(key):
            holder = secrets.token_hex(8)
            name = self._acquire(f"leases/{key}", holder)
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

    def oldest(self) -> float | None:
        """When the longest held lease was taken, on the store's clock; None where none is held."""
        times = []
        for file in self._files.list("leases"):
            content = self._files.read(file.name)
            if content is not None and time.time() - file.modified < _ABANDONED:
                times.append(file.modified - _seconds_held(content) - _CLOCK_STEP)
        return min(times, default=None)

    def _acquire(self, folder: str, holder: str) -> str:
        watch = _Watch(self._timing.expiry)
        pause = 0.02
        while True:
            stale, live = self._look(folder, watch)
            if not live:
                generation = 1 + max((int(name.rsplit("/", 1)[1]) for name in stale), default=-1)
                name = f"{folder}/{generation:08d}"
                if self._files.create(name, _beat(holder, 0, 0.0)):
                    if set(self._files.names(folder)) <= {name, *stale}:
                        for dead in stale:
                            self._files.delete(dead)
                        return name
                    self._files.delete(name)
            time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - only spreads waiters
            pause = min(pause * 2, self._timing.poll)

    def _look(self, folder: str, watch: _Watch) -> tuple[list[str], list[str]]:
        """Names of stale and of live leases."""
        stale: list[str] = []
        live: list[str] = []
        for name in self._files.names(folder):
            content = self._files.read(name)
            if content is not None:
                (stale if watch.is_stale(name, content) else live).append(name)
        return stale, live

    def _beat(self, name: str, holder: str, ended: threading.Event) -> None:
        start = time.monotonic()
        count = 0
        while not ended.wait(self._timing.heartbeat):
            count += 1
            try:
                if self._files.read(name) is None:
                    _log.warning("lease %s was taken over: its heartbeat came too late", name)
                    return
                self._files.write(name, _beat(holder, count, time.monotonic() - start))
            except StoreUnusable as error:
                _log.warning("lease %s could not be renewed: %s", name, error)

    def _release(self, name: str) -> None:
        try:
            self._files.delete(name)
        except StoreUnusable as error:
            _log.warning("lease %s could not be given back, others wait until it expires: %s", name, error)


def _beat(holder: str, count: int, held: float) -> bytes:
    return json.dumps({"holder": holder, "beat": count, "held": held}).encode()


def _seconds_held(content: bytes) -> float:
    with contextlib.suppress(ValueError):
        match json.loads(content):
            case {"held": float() as held}:
                return held
    return 0.0
