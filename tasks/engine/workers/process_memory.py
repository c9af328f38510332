"""The memory of processes, from /proc; elsewhere from psutil, which only knows the resident size."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil

_LINUX = sys.platform == "linux"
_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")


def own_memory(pid: int) -> int:
    """Bytes of anonymous memory of one process, swapped or not; 0 when it is gone.

    File mappings do not count: the kernel can drop mapped weights from its page cache.
    """
    if not _LINUX:
        with contextlib.suppress(psutil.Error):
            return int(psutil.Process(pid).memory_info().rss)
        return 0
    return _fields(f"/proc/{pid}/status", (b"RssAnon:", b"VmSwap:"))


class Descendants:
    """The descendants of a process on Linux, as they were when last looked at; elsewhere there are none."""

    def __init__(self) -> None:
        """Has looked at no process yet."""
        self._found: dict[int, psutil.Process] = {}

    def look(self, pid: int) -> int:
        """Finds the descendants of a process that has not ended; returns the bytes of their private memory.

        A forked process shares its pages with its parent until it writes to them, and nothing must count twice.
        """
        found = {}
        for child in _descendants(pid):
            with contextlib.suppress(psutil.NoSuchProcess):
                found[child] = self._found.get(child) or psutil.Process(child)
        self._found = found
        return sum(_fields(f"/proc/{child}/smaps_rollup", (b"Private_Dirty:", b"Swap:")) for child in found)

    def kill(self) -> None:
        """Kills those that are left, and no other process that has the id of one."""
        for process in self._found.values():
            with contextlib.suppress(psutil.Error):
                process.kill()


def children(pid: int) -> set[int]:
    """The children of a process, also those that have ended and are not reaped; empty where there is no /proc."""
    found: set[int] = set()
    for thread in _threads(pid):
        with (
            contextlib.suppress(OSError),  # ended meanwhile
            open(f"/proc/{pid}/task/{thread}/children", "rb", buffering=0) as file,  # noqa: PTH123 - as below
        ):
            found.update(map(int, file.read(1 << 16).split()))
    return found


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
    found: list[int] = []
    for child in children(pid):
        found += [child, *_descendants(child)]
    return found


def _threads(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 - as above
    except OSError:
        return []
