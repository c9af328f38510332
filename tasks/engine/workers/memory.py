"""The memory of processes, from /proc or else from psutil, which only knows the resident size; and who may use it."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

_LINUX = sys.platform == "linux"
_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")
_SHARE = 0.8  # of the machine's memory; the rest is for the server, the pool and other programs


def own_memory(pid: int) -> int:
    """Bytes of anonymous memory of a process, swapped or not; 0 when it is gone. The kernel can drop mapped files."""
    if not _LINUX:
        with contextlib.suppress(psutil.Error):
            return int(psutil.Process(pid).memory_info().rss)
        return 0
    return _fields(f"/proc/{pid}/status", (b"RssAnon:", b"VmSwap:"))


class Descendants:
    """The descendants of a process on Linux, as they were when last looked at; elsewhere there are none."""

    def __init__(self) -> None:
        self._processes: dict[int, psutil.Process] = {}

    def look(self, pid: int) -> int:
        """Finds the descendants of a process that has not ended; returns the bytes of their private memory.

        A forked process shares its pages with its parent until it writes to them, and nothing must count twice.
        """
        processes = {}
        for child in _descendants(pid):
            with contextlib.suppress(psutil.NoSuchProcess):
                processes[child] = self._processes.get(child) or psutil.Process(child)
        self._processes = processes
        return sum(_fields(f"/proc/{child}/smaps_rollup", (b"Private_Dirty:", b"Swap:")) for child in processes)

    def kill(self) -> None:
        """Kills those that are left, and no other process that has the id of one."""
        for process in self._processes.values():
            with contextlib.suppress(psutil.Error):
                process.kill()


def children(pid: int) -> set[int]:
    """The children of a process, also those that have ended and are not reaped; empty where there is no /proc."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 - as below
    except OSError:
        return set()
    pids: set[int] = set()
    for thread in threads:
        with (
            contextlib.suppress(OSError),  # ended meanwhile
            open(f"/proc/{pid}/task/{thread}/children", "rb", buffering=0) as file,  # noqa: PTH123 - as below
        ):
            pids.update(map(int, file.read(1 << 16).split()))
    return pids


def available_memory() -> int:
    """Bytes of physical memory, or of this process's control group or one around it where that is less."""
    total = psutil.virtual_memory().total
    for path in (*_cgroup_limits(), _CGROUPS / "memory" / "memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # no such group, or the word "max"
            total = min(total, int(path.read_text()))
    return total


def _cgroup_limits() -> Iterator[Path]:
    """Limits of this process's groups of version 2; a container sees its own as the root."""
    group = _CGROUPS
    yield group / "memory.max"
    with contextlib.suppress(OSError, StopIteration):
        lines = _OWN_CGROUP.read_text().splitlines()
        for part in Path(next(line for line in lines if line.startswith("0::/"))[4:]).parts:
            group /= part
            yield group / "memory.max"


def _fields(path: str, names: tuple[bytes, ...]) -> int:
    """Sum of fields of a file in /proc, which are in kB, in bytes."""
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - read fifty times a second: pathlib doubles its cost
            lines = file.read(1 << 16).splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(names))


def _descendants(pid: int) -> list[int]:
    pids: list[int] = []
    for child in children(pid):
        pids += [child, *_descendants(child)]
    return pids


def memory_for_calls() -> int:
    """Bytes of this machine, or of this process's control group, that calls may need together."""
    return int(_SHARE * available_memory())


class AdmissionClosed(Exception):
    """No call is admitted any more."""


@dataclass(eq=False)
class _Ticket:
    """A call: the bytes it needs, and how many that came later were admitted before it."""

    memory: int
    overtaken: int = 0


class Admission:
    """First come, first served, but calls that fit overtake larger ones a few times; one above the limit runs alone."""

    PATIENCE = 16  # how many calls may overtake a waiting one

    def __init__(self, jobs: int, memory: int) -> None:
        if jobs < 1:
            raise ValueError(f"jobs is {jobs}, must be at least 1")
        if memory < 1:
            raise ValueError(f"memory is {memory}, must be at least 1 byte")
        self._jobs = jobs
        self._memory = memory
        self._running = 0
        self._promised = 0
        self._queue: list[_Ticket] = []
        self._changed = threading.Condition()
        self._closed = False

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @contextmanager
    def admit(self, memory: int, *, first: bool = False) -> Iterator[Callable[[int], None]]:
        """Waits until a call with so many bytes may run; raises AdmissionClosed after `close`.

        A call that comes `first` goes to the head of the queue, since a process waits for it. Yields a function to call
        with the bytes that the call really takes: where these are more, others wait for more.
        """
        ticket = _Ticket(memory)
        with self._changed:
            self._queue.insert(0 if first else len(self._queue), ticket)
            try:
                self._changed.wait_for(lambda: self._closed or self._next() is ticket)
                if self._closed:
                    raise AdmissionClosed
                for earlier in self._queue[: self._queue.index(ticket)]:
                    earlier.overtaken += 1
                self._take(1, memory)
            finally:
                self._queue.remove(ticket)
                self._changed.notify_all()  # the next in the queue may fit as well
        try:
            yield partial(self._grow, ticket)
        finally:
            with self._changed:
                self._take(-1, -ticket.memory)
                self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _grow(self, ticket: _Ticket, memory: int) -> None:
        with self._changed:
            self._take(0, max(0, memory - ticket.memory))
            ticket.memory = max(ticket.memory, memory)

    def _take(self, calls: int, memory: int) -> None:
        self._running += calls
        self._promised += memory

    def _next(self) -> _Ticket | None:
        """The first call that fits, of those up to the first whose patience is at its end."""
        for ticket in self._queue:
            if self._fits(ticket.memory):
                return ticket
            if ticket.overtaken >= self.PATIENCE:
                break
        return None

    def _fits(self, memory: int) -> bool:
        if self._running == 0:
            return True
        return self._running < self._jobs and self._promised + memory <= self._memory
