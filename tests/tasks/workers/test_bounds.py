"""Time limits, memory bounds, and what a call leaves behind."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from pteforge.errors import StageCrashed, StageOutOfMemory, StageTimedOut
from pteforge.tasks.workers import WorkerLimits, Workers

MIB = 1 << 20


def test_hang_is_killed_at_its_time_limit(run):
    """A body that never ends is killed; the error says the limit and what was written."""
    with pytest.raises(StageTimedOut, match=r"^killed at its time limit of 1 s$") as caught:
        run("hang", timeout=1)
    assert caught.value.log_tail == "hanging"


def test_time_limit_does_not_count_waiting(monkeypatch, bodies):
    """Neither the warm-up nor the wait for a place is held against a call."""
    monkeypatch.syspath_prepend(bodies)
    with Workers(jobs=1, preload=("slow_preload",)) as pool, ThreadPoolExecutor() as threads:
        hanging = threads.submit(pool.run, "worker_bodies:hang", None, WorkerLimits(1.5, MIB))
        waiting = threads.submit(pool.run, "worker_bodies:echo", 1, WorkerLimits(1, MIB))
        assert waiting.result().result == 1
        assert str(hanging.exception()) == "killed at its time limit of 1.5 s"


def test_hog_is_killed_at_its_memory_bound(run):
    """A body that allocates without end is killed soon after its bound; the error says bound and observation."""
    with pytest.raises(StageOutOfMemory, match=r"^killed at its memory bound of 200 MiB: it held \d+ MiB$") as caught:
        run("hog", memory=200 * MIB)
    observed = int(str(caught.value).split()[-2])
    assert 200 <= observed < 2000


def test_memory_of_programs_counts(run):
    """A program that the body starts cannot escape the bound."""
    with pytest.raises(StageOutOfMemory):
        run("hog_in_grandchild", memory=200 * MIB)


def test_memory_that_forks_share_counts_once(run):
    """A body may fork: pages that are shared are not multiplied."""
    assert run("shared_with_forks", 100 * MIB, memory=250 * MIB).peak_memory < 200 * MIB


def test_grandchildren_end_with_a_call_that_returns(run, ends):
    """What a body started and left behind, by fork or as a program, is gone after the call."""
    pids = run("leave_grandchildren").result
    assert len(pids) == 2
    assert all(ends(pid) for pid in pids)


def test_grandchildren_end_with_a_call_that_is_killed(run, ends, announcement):
    """A kill at the time limit takes the whole group."""
    with ThreadPoolExecutor() as threads:
        call = threads.submit(run, "announce_grandchild_and_hang", str(announcement), timeout=3)
        own, _, grandchild = map(int, announcement.read_text().split())
        assert isinstance(call.exception(), StageTimedOut)
    assert ends(own)
    assert ends(grandchild)


def test_daemon_cannot_hold_a_call_up(run, ends):
    """A program that leaves the group and floods the log neither delays the answer nor keeps a reader of its output."""
    assert ends(run("start_flooding_daemon").result)


def test_no_process_of_a_call_is_left_in_the_way(run):
    """A crash, a hang and a hog do not disturb the calls after them."""
    for body, arguments in (("leave", {}), ("hang", {"timeout": 0.2}), ("hog", {"memory": 50 * MIB})):
        with pytest.raises((StageCrashed, StageTimedOut, StageOutOfMemory)):
            run(body, 1, **arguments)
        assert run("echo", body).result == body
