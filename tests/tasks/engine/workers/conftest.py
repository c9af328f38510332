"""Pools with a light server, and ways to know that a process runs or has ended."""

import os
import select
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pteforge.configs.model import Limits
from pteforge.tasks.engine.workers import WorkerCall, WorkerReport, Workers

BODIES = Path(__file__).parent / "bodies"


@pytest.fixture
def bodies() -> str:
    return str(BODIES)


@pytest.fixture(scope="session")
def shared_workers() -> Iterator[Workers]:
    """A pool whose server has nothing preloaded. Only for tests that leave it running."""
    with Workers(jobs=8, memory=1 << 40, preload=()) as pool:
        yield pool


@pytest.fixture
def run(shared_workers: Workers) -> Callable[..., WorkerReport]:
    def run_body(
        name: str, argument: object = None, *, timeout: float = 60, memory: int = 1 << 30, **options: Any
    ) -> WorkerReport:
        limits = Limits(timeout=timeout, memory=memory)
        return shared_workers.run(
            WorkerCall(f"worker_bodies:{name}", argument, limits, python_path=(str(BODIES),), **options)
        )

    return run_body


PRELOADS = {
    "slow_preload": "import time; time.sleep(1.5)",  # as the import of torch does
    "failing_preload": "raise ImportError('there is no such accelerator')",
    "threaded_preload": "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
    "endless_preload": """
import os, pathlib, threading
pathlib.Path(os.environ["PTEFORGE_TEST_ANNOUNCE"]).write_text(str(os.getpid()))
threading.Event().wait()
""",
    "forkless_preload": """
import errno, os
def no_fork():  # the state of a machine that has no processes left
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
os.fork = no_fork
""",
}


@pytest.fixture
def preloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, announcement: Path) -> str:
    """The folder of the modules above; servers that are started here find them, and the bodies."""
    for name, source in PRELOADS.items():
        (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(BODIES)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PTEFORGE_TEST_ANNOUNCE", str(announcement))
    return str(tmp_path)


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
