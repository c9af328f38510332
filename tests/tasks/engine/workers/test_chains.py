"""Calls that share a process, one after another: what they see of each other, and when a process ends."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from pteforge.configs.model import Limits
from pteforge.errors import StageCrashed, StageFailed, StageOutOfMemory, StageTimedOut
from pteforge.tasks.engine.workers import CallChain, WorkerCall, Workers

CHAIN = CallChain("net/xnnpack", goes_on=True)
END = CallChain("net/xnnpack", goes_on=False)
LIMITS = Limits(timeout=60, memory=1 << 30)


@pytest.fixture
def pid(run):
    """Runs a call of a chain; returns the id of its process."""

    def run_call(chain=CHAIN, **options):
        return run("environment", chain=chain, **options).result["pid"]

    return run_call


@pytest.fixture(autouse=True)
def nobody_waits(pid, ends):
    """Ends the process that a test has left in the shared pool."""
    yield
    assert ends(pid(END))


def test_calls_of_a_chain_share_a_process(run, pid, ends):
    """What one call leaves in the process, the next one finds; each has its own log. The last one ends the process."""
    process = pid()
    others = [pid(None), pid(CallChain("net/portable", goes_on=False))]
    assert run("remember", 1, chain=CHAIN).result == []
    assert run("remember", 2, chain=CHAIN).result == [1]
    logs = [run("write_much", lines, chain=CHAIN).log for lines in (2, 1)]
    assert logs == [b"line 0\nline 1\n", b"line 0\n"]
    seen = run("environment", chain=END).result
    assert seen["pid"] == process
    assert len({process, *others}) == 3
    assert (seen["path"], seen["threads"]) == (run("environment").result["path"], 1)
    assert sum(name.startswith("pipe:") for name in seen["descriptors"]) == 4  # as in a fresh process
    assert ends(process)


@pytest.mark.parametrize(
    ("body", "argument", "limits", "error"),
    [
        ("die", signal.SIGSEGV, {}, StageCrashed),
        ("fail", "shapes differ", {}, StageFailed),
        ("leave", 0, {}, StageCrashed),
        ("hang", None, {"timeout": 1}, StageTimedOut),
        ("hog", None, {"memory": 200 << 20}, StageOutOfMemory),
    ],
)
def test_a_failure_costs_the_call_that_it_hits(run, pid, ends, body, argument, limits, error):
    """A call that fails ends the process; its log has nothing of earlier calls, and the next call gets a fresh one."""
    process = pid()
    run("write_much", 3, chain=CHAIN)
    with pytest.raises(error) as caught:
        run(body, argument, chain=CHAIN, **limits)
    assert "line 0" not in caught.value.log_tail
    if body == "die":
        assert "just before" in caught.value.log_tail
    assert ends(process)
    assert pid() != process


def test_limits_and_figures_are_those_of_a_call(run, pid):
    """Time and memory of earlier calls do not count; what a call holds and releases is in its own figure only."""
    process = pid()
    for size in (100 << 20, 20 << 20):
        report = run("hold", size, chain=CHAIN, timeout=10, memory=size + (30 << 20))
        assert 0.9 * size < report.peak_memory < size + (30 << 20)
        assert 0.2 <= report.seconds < 10
    assert run("echo", chain=CHAIN).peak_memory < 10 << 20
    assert pid() == process


@pytest.mark.parametrize(
    ("body", "argument"),
    [("keep", 64 << 20), ("start_thread_that_never_ends", None), ("leave_grandchildren", None)],
)
def test_a_process_in_which_something_is_left_ends(run, pid, ends, body, argument):
    """Memory, threads and children that a call leaves behind do not reach the next one."""
    process = pid()
    left = run(body, argument, chain=CHAIN).result
    assert ends(process)
    assert pid() != process
    if body == "leave_grandchildren":
        assert all(map(ends, left))


def test_a_process_that_is_gone_is_replaced(pid, ends, monkeypatch):
    """The next call runs in a fresh process where the one that waited was killed, or has waited for too long."""
    killed = pid()
    os.kill(killed, signal.SIGKILL)
    assert ends(killed)
    monkeypatch.setattr("pteforge.tasks.engine.workers.pool._LINGER", 0.001)
    tired = pid()
    assert ends(tired)
    assert len({killed, tired, pid()}) == 3


def test_how_many_processes_wait(bodies, ends):
    """As many as there are jobs, those that came last; none is left once the pool was stopped."""

    def call(pool: Workers, name: str) -> int:
        chain = CallChain(name, goes_on=True)
        return pool.run(
            WorkerCall("worker_bodies:environment", None, LIMITS, python_path=(bodies,), chain=chain)
        ).result["pid"]

    with Workers(jobs=2, preload=()) as pool:
        first, *others = [call(pool, name) for name in "abc"]
        assert ends(first)
        assert [pool.awaits(CallChain(name, goes_on=True)) for name in "abc"] == [False, True, True]
        assert [call(pool, name) for name in "bc"] == others
    assert all(map(ends, others))


def test_calls_of_one_chain_at_once(bodies, announcement):
    """A process takes one call at a time: another call of its chain meanwhile gets a process of its own."""
    with Workers(jobs=2, preload=()) as pool, ThreadPoolExecutor() as threads:
        options = {"python_path": (bodies,), "chain": CHAIN}
        running = threads.submit(
            pool.run, WorkerCall("worker_bodies:announce_and_wait", str(announcement), LIMITS, **options)
        )
        assert announcement.read_text() == "begun"
        assert pool.run(WorkerCall("worker_bodies:echo", 2, LIMITS, **options)).result == 2
        announcement.write_text("go on")
        assert running.result().result == "go on"


def test_processes_of_a_shared_server(bodies, ends):
    """A pool that uses another's server has chains of its own, whose processes end with it."""
    with Workers(jobs=1, preload=()) as owner:
        owner.start(shared=True)
        with Workers(jobs=1, preload=("no_such_module",), address=owner.address) as borrower:
            pids = [
                pool.run(
                    WorkerCall("worker_bodies:environment", None, LIMITS, python_path=(bodies,), chain=CHAIN)
                ).result["pid"]
                for pool in (owner, borrower, owner, borrower)
            ]
        assert pids[:2] == pids[2:]
        assert len(set(pids)) == 2
        assert ends(pids[1])
        assert owner.awaits(CHAIN)


MAIN = """\
import os, signal, sys
from pteforge.configs.model import Limits
from pteforge.tasks.engine.workers import CallChain, Workers, WorkerCall
pool = Workers(jobs=2, preload=())
limits = Limits(timeout=600, memory=1 << 30)
chain = CallChain("net", goes_on=True)
report = pool.run(WorkerCall("worker_bodies:environment", None, limits, python_path=(sys.argv[1],), chain=chain))
print(report.result["pid"], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_killed_parent_leaves_no_waiting_process(bodies, ends):
    """A process that waits for a call ends with the main process, however that ends."""
    main = subprocess.run([sys.executable, "-c", MAIN, bodies], stdout=subprocess.PIPE, text=True, check=False)
    assert main.returncode == -signal.SIGKILL
    assert ends(int(main.stdout))
