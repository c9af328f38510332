"""Processes that are started instead of forked, as on macOS: they are like forked ones, and end as those do."""

import os
import signal

import pytest
from pteforge.configs.model import Limits
from pteforge.errors import StageCrashed, StageFailed, StageTimedOut
from pteforge.tasks.engine.workers import CallChain, WorkerCall, Workers
from pteforge.tasks.engine.workers.protocol import PROCESSES_VARIABLE

pytestmark = pytest.mark.usefixtures("preloads")


@pytest.fixture
def run(bodies, monkeypatch):
    """Runs a body in a pool whose processes are started; the pool's preload modules are the `preload` of the call."""
    monkeypatch.setenv(PROCESSES_VARIABLE, "started")
    pools = {}

    def run_body(name, argument=None, *, preload=(), timeout=60, chain=None):
        pool = pools.setdefault(preload, Workers(jobs=2, memory=1 << 40, preload=preload))
        limits = Limits(timeout=timeout, memory=1 << 30)
        return pool.run(WorkerCall(f"worker_bodies:{name}", argument, limits, python_path=(bodies,), chain=chain))

    yield run_body
    for pool in pools.values():
        pool.stop()


def test_surroundings(run, bodies):
    """It leads its own session, has the given folders, one thread and its own descriptors, and remembers nothing."""
    seen, other = run("environment").result, run("environment").result
    assert os.getpid() != seen["pid"] == seen["group"] == seen["session"] != other["pid"]
    assert (seen["path"], seen["threads"], seen["torch"]) == ([bodies], 1, False)
    assert sum(name.startswith("pipe:") for name in seen["descriptors"]) == 4
    assert sum(name.startswith("socket:") for name in seen["descriptors"]) == 1
    assert [run("remember", number).result for number in (1, 2)] == [[], []]
    assert run("write_much", 2).log == b"line 0\nline 1\n"


def test_a_chain_shares_one(run, ends):
    """Calls of a chain follow each other in one process, which is worth the imports; the last one ends it."""
    first, last = CallChain("net", goes_on=True), CallChain("net", goes_on=False)
    assert [run("remember", number, chain=chain).result for number, chain in ((1, first), (2, first))] == [[], [1]]
    assert ends(run("environment", chain=last).result["pid"])


def test_preload_modules_are_imported_in_it(run):
    """Threads of theirs do not matter, since nothing is forked; one that fails ends the call, and its log says why."""
    assert run("echo", 1, preload=("threaded_preload",)).result == 1
    with pytest.raises(StageCrashed, match="without an answer") as caught:
        run("echo", 1, preload=("failing_preload",))
    assert "there is no such accelerator" in caught.value.log_tail


@pytest.mark.parametrize(
    ("body", "argument", "timeout", "error"),
    [("die", signal.SIGSEGV, 60, StageCrashed), ("fail", "no", 60, StageFailed), ("hang", None, 1, StageTimedOut)],
)
def test_failures_are_those_of_forked_ones(run, body, argument, timeout, error):
    """A crash, an exception and a hang have the same errors and logs, and the pool goes on."""
    with pytest.raises(error):
        run(body, argument, timeout=timeout)
    assert run("echo", 1).result == 1
