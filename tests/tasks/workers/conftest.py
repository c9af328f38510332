"""Pools with a light server, and ways to know that a process runs or has ended."""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pteforge.tasks.workers import WorkerLimits, WorkerReport, Workers

BODIES = Path(__file__).parent / "bodies"


@pytest.fixture
def bodies() -> str:
    """The folder of the functions and preload modules that the tests run in processes."""
    return str(BODIES)


@pytest.fixture(scope="session")
def shared_workers() -> Iterator[Workers]:
    """A pool whose server has nothing preloaded. Only for tests that leave it running."""
    with Workers(jobs=8, memory=1 << 40, preload=()) as pool:
        yield pool


@pytest.fixture
def run(shared_workers: Workers) -> Callable[..., WorkerReport]:
    """Runs a function of `bodies/worker_bodies.py`."""

    def run_body(name: str, argument: object = None, *, timeout: float = 60, memory: int = 1 << 30) -> WorkerReport:
        limits = WorkerLimits(timeout, memory)
        return shared_workers.run(f"worker_bodies:{name}", argument, limits, python_path=(str(BODIES),))

    return run_body


@pytest.fixture
def announcement(tmp_path: Path) -> Path:
    """A named pipe: reading waits until a process announces itself."""
    path = tmp_path / "announcement"
    os.mkfifo(path)
    return path


@pytest.fixture
def ends() -> Callable[[int], bool]:
    """Waits some seconds for the end of any process, says whether it came. A zombie has ended."""

    def process_ends(pid: int) -> bool:
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            return True
        try:
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            return bool(poll.poll(5000))
        finally:
            os.close(fd)

    return process_ends
