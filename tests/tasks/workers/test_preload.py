"""The real warm server: processes forked from it lower, map and run models as a fresh interpreter does."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pteforge.tasks.workers import WorkerLimits, Workers

BODIES = Path(__file__).parent / "bodies"
LIMITS = WorkerLimits(timeout=300, memory=1 << 30)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def warm() -> Iterator[Workers]:
    """A pool with what it preloads by default."""
    with Workers(jobs=2) as pool:
        pool.start()
        yield pool


@pytest.fixture
def run(warm: Workers) -> Callable[[str, Any], Any]:
    """Runs a function of `bodies/lowering_bodies.py` in a forked process."""
    return lambda name, argument: (
        warm.run(f"lowering_bodies:{name}", argument, LIMITS, python_path=(str(BODIES),)).result
    )


def in_fresh_interpreter(name: str, argument: str) -> Any:
    """What the function gives in a process of its own that nothing was preloaded in."""
    script = BODIES / "lowering_bodies.py"
    done = subprocess.run([sys.executable, script, name, argument], check=True, capture_output=True, timeout=300)
    return json.loads(done.stdout.splitlines()[-1])


def test_lowering_in_forked_processes_is_that_of_a_fresh_one(run, tmp_path):
    """Again and again, two at a time, bytes are equal to those of an interpreter without any warm-up; and they run."""
    paths = [str(tmp_path / f"{number}.pte") for number in range(6)]
    with ThreadPoolExecutor(2) as threads:
        digests = list(threads.map(lambda path: run("lower", path), paths))
        errors = list(threads.map(lambda path: run("largest_error", path), paths))
    assert set(digests) == {in_fresh_interpreter("lower", str(tmp_path / "fresh.pte"))}
    assert max(errors) < 1e-5
    assert b"XnnpackBackend" in Path(paths[0]).read_bytes()


def test_mapped_tensors_can_be_read(run, tmp_path):
    """A file that is mapped in several processes is read right in each."""
    path = tmp_path / "ones"
    path.write_bytes(b"\x00\x00\x80\x3f" * 100_000)
    assert [run("sum_of_mapped", str(path)) for _ in range(3)] == [100_000.0] * 3


def test_torch_has_one_thread(run):
    """Processes run side by side, so each computes with one thread."""
    assert run("torch_threads", None) == 1


def test_what_stages_do_not_need_is_not_loaded(run):
    """Nothing of the command line or of Prefect is in the processes."""
    assert run("loaded_modules", None) == []


def test_memory_of_the_server_is_not_counted(warm):
    """Hundreds of megabytes are inherited; the report of a call that does nothing shows next to none."""
    assert warm.run("json:dumps", 1, LIMITS).peak_memory < 16 << 20
