"""Decides when a call may start: so many at once, and so much memory promised to all of them together."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager


class AdmissionClosed(Exception):
    """No call is admitted any more."""


class Admission:
    """First come, first served, so that a large call is not overtaken by small ones for ever.

    A call that alone exceeds the whole memory is admitted when nothing else runs.
    """

    def __init__(self, jobs: int, memory: int) -> None:
        """Places for so many calls and so many bytes; both are at least 1."""
        if jobs < 1:
            raise ValueError(f"jobs is {jobs}, must be at least 1")
        if memory < 1:
            raise ValueError(f"memory is {memory}, must be at least 1 byte")
        self._jobs = jobs
        self._memory = memory
        self._running = 0
        self._promised = 0
        self._queue: deque[object] = deque()
        self._changed = threading.Condition()
        self._closed = False

    @property
    def waiting(self) -> int:
        """How many wait for a place."""
        return len(self._queue)

    @contextmanager
    def place(self, memory: int) -> Iterator[None]:
        """Waits for a place with so many bytes and gives it back at the end; raises AdmissionClosed after `close`."""
        self._enter(memory)
        try:
            yield
        finally:
            self._leave(memory)

    def close(self) -> None:
        """Turns away all who wait and all who come."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _enter(self, memory: int) -> None:
        ticket = object()
        with self._changed:
            self._queue.append(ticket)
            try:
                self._changed.wait_for(lambda: self._closed or (self._queue[0] is ticket and self._fits(memory)))
                if self._closed:
                    raise AdmissionClosed
                self._running += 1
                self._promised += memory
            finally:
                self._queue.remove(ticket)
                self._changed.notify_all()  # the next in the queue may fit as well

    def _leave(self, memory: int) -> None:
        with self._changed:
            self._running -= 1
            self._promised -= memory
            self._changed.notify_all()

    def _fits(self, memory: int) -> bool:
        if self._running == 0:
            return True
        return self._running < self._jobs and self._promised + memory <= self._memory
