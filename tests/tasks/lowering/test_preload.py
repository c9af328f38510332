"""The real warm server: processes forked from it lower models and map files as a fresh interpreter does."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pteforge.configs.model import Limits
from pteforge.tasks.engine.keys.builder import LOADED_PACKAGES
from pteforge.tasks.engine.workers import WorkerCall, Workers

BODIES = Path(__file__).parents[1] / "engine" / "workers" / "bodies"
LIMITS = Limits(timeout=300, memory=1 << 30)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def warm() -> Iterator[Workers]:
    with Workers(jobs=2) as pool:
        pool.start()
        yield pool


@pytest.fixture
def run(warm: Workers) -> Callable[[str, Any], Any]:
    path = (str(BODIES),)
    return lambda name, argument: (
        warm.run(WorkerCall(f"lowering_bodies:{name}", argument, LIMITS, python_path=path)).result
    )


def test_lowering_in_forked_processes_is_that_of_a_fresh_one(run, tmp_path):
    """Again and again, two at a time, bytes are equal to those of an interpreter without any warm-up."""
    paths = [str(tmp_path / f"{number}.pte") for number in range(6)]
    with ThreadPoolExecutor(2) as threads:
        digests = list(threads.map(lambda path: run("lower", path), paths))
    command = [sys.executable, BODIES / "lowering_bodies.py", "lower", tmp_path / "fresh.pte"]
    done = subprocess.run(command, check=True, capture_output=True, timeout=300)
    assert set(digests) == {json.loads(done.stdout.splitlines()[-1])}
    assert b"XnnpackBackend" in Path(paths[0]).read_bytes()


def test_processes_are_light(warm, run):
    """Processes run side by side, so each computes with one thread; neither command line nor Prefect is loaded."""
    assert run("environment", None) == [1, []]
    assert warm.run(WorkerCall("json:dumps", 1, LIMITS)).peak_memory < 16 << 20


def test_names_of_loaded_packages(run, tmp_path):
    """What a worker has loaded before it looks into the user's folders is known: such names are refused there."""
    run("lower", str(tmp_path / "lowered.pte"))
    of_the_tests = {path.stem for path in BODIES.glob("*.py")}
    assert set(run("installed_modules", None)) - of_the_tests <= LOADED_PACKAGES


def test_mapped_tensors_can_be_read(run, tmp_path):
    """A file that is mapped in several processes is read right in each."""
    path = tmp_path / "ones"
    path.write_bytes(b"\x00\x00\x80\x3f" * 100_000)
    assert [run("sum_of_mapped", str(path)) for _ in range(3)] == [100_000.0] * 3
