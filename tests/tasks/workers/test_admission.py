"""Who may run when. Threads take places; a place that is free is taken within seconds, one that is not stays so."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from pteforge.tasks.workers import WorkerLimits, Workers
from pteforge.tasks.workers.admission import Admission, AdmissionClosed


@dataclass
class Visit:
    """A thread that keeps its place until it is told to leave."""

    inside: threading.Event
    told: threading.Event
    done: Future[None]

    def enters(self) -> bool:
        """Waits until the place is taken; says whether it came to that."""
        return self.inside.wait(10)

    def leave(self) -> None:
        """Gives the place back."""
        self.told.set()
        self.done.result()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    """As many threads as any test here needs."""
    with ThreadPoolExecutor(16) as pool:
        yield pool


def visit(admission: Admission, memory: int, threads: ThreadPoolExecutor) -> Visit:
    """Lets a thread queue up; returns when it is inside or in the queue."""
    queued = admission.waiting
    inside, told = threading.Event(), threading.Event()

    def stay() -> None:
        with admission.place(memory):
            inside.set()
            told.wait()

    new = Visit(inside, told, threads.submit(stay))
    while not inside.is_set() and admission.waiting == queued:
        threading.Event().wait(0.001)
    return new


def test_no_more_than_jobs_at_once(threads):
    """The third of two waits until one leaves."""
    admission = Admission(jobs=2, memory=100)
    first, second, third = (visit(admission, 10, threads) for _ in range(3))
    assert first.enters()
    assert second.enters()
    assert admission.waiting == 1
    first.leave()
    assert third.enters()
    second.leave()
    third.leave()


def test_no_more_memory_than_there_is(threads):
    """Places are free but the memory is promised: the call waits."""
    admission = Admission(jobs=8, memory=100)
    first, second, third = (visit(admission, memory, threads) for memory in (60, 40, 1))
    assert first.enters()
    assert second.enters()
    assert admission.waiting == 1
    second.leave()
    assert third.enters()
    first.leave()
    third.leave()


def test_too_large_a_call_runs_alone(threads):
    """A call larger than the whole is admitted when nothing runs, and nothing beside it."""
    admission = Admission(jobs=8, memory=100)
    small = visit(admission, 1, threads)
    large = visit(admission, 1000, threads)
    other = visit(admission, 1, threads)
    assert small.enters()
    assert admission.waiting == 2
    small.leave()
    assert large.enters()
    assert not other.inside.is_set()
    large.leave()
    assert other.enters()
    other.leave()


def test_large_calls_are_not_overtaken(threads):
    """A small call that would fit waits behind a large one that came first, so the large one gets its turn."""
    admission = Admission(jobs=8, memory=100)
    first = visit(admission, 60, threads)
    large = visit(admission, 80, threads)
    small = visit(admission, 10, threads)
    assert admission.waiting == 2
    first.leave()
    assert large.enters()
    assert small.enters()
    large.leave()
    small.leave()


def test_closing_turns_away_who_waits_and_who_comes(threads):
    """After `close` nobody enters any more; who is inside may finish."""
    admission = Admission(jobs=1, memory=100)
    inside = visit(admission, 1, threads)
    waiting = visit(admission, 1, threads)
    admission.close()
    assert isinstance(waiting.done.exception(), AdmissionClosed)
    with pytest.raises(AdmissionClosed), admission.place(1):
        pass
    inside.leave()


@pytest.mark.parametrize(("jobs", "memory"), [(0, 1), (1, 0), (-1, 1)])
def test_impossible_pools_are_refused(jobs, memory):
    """A pool without places or memory would wait for ever."""
    with pytest.raises(ValueError, match="must be at least 1"):
        Workers(jobs=jobs, memory=memory)


def test_pool_runs_one_after_another_with_one_job(bodies, announcement):
    """The pool asks its admission: with one job, a second call gets its process only after the first has ended."""
    limits = WorkerLimits(60, 1 << 20)
    with Workers(jobs=1, preload=()) as pool, ThreadPoolExecutor() as runners:
        first = runners.submit(
            pool.run, "worker_bodies:announce_and_wait", str(announcement), limits, python_path=(bodies,)
        )
        assert announcement.read_text() == "begun"
        second = runners.submit(pool.run, "worker_bodies:echo", 2, limits, python_path=(bodies,))
        while not pool._admission.waiting:
            threading.Event().wait(0.001)
        assert pool.calls == 1
        announcement.write_text("go on")
        assert first.result().result == "go on"
        assert second.result().result == 2
        assert pool.calls == 2
