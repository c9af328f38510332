"""Who may run when. Threads take places; a place that is free is taken within seconds, one that is not stays so."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from pteforge.tasks.workers import WorkerLimits, Workers
from pteforge.tasks.workers.pool import Admission, AdmissionClosed


@dataclass
class Visit:
    """A thread that keeps its place until `leave`."""

    inside: threading.Event
    leaving: threading.Event
    done: Future[None]

    def enters(self) -> bool:
        """Whether the place is taken within ten seconds."""
        return self.inside.wait(10)

    def leave(self) -> None:
        self.leaving.set()
        self.done.result()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    """As many threads as any test here needs."""
    with ThreadPoolExecutor(16) as pool:
        yield pool


def visit(admission: Admission, memory: int, threads: ThreadPoolExecutor) -> Visit:
    """Lets a thread queue up; returns when it is inside or in the queue."""
    queued = admission.waiting
    inside, leaving = threading.Event(), threading.Event()

    def stay() -> None:
        with admission.place(memory):
            inside.set()
            leaving.wait()

    new = Visit(inside, leaving, threads.submit(stay))
    while not inside.is_set() and admission.waiting == queued:
        threading.Event().wait(0.001)
    return new


@pytest.mark.parametrize(("jobs", "sizes", "leaver"), [(2, (10, 10, 10), 0), (8, (60, 40, 1), 1)])
def test_no_more_at_once_than_jobs_or_memory(threads, jobs, sizes, leaver):
    """With no job free, or all memory promised, the third call waits until one leaves."""
    admission = Admission(jobs=jobs, memory=100)
    *running, third = (visit(admission, memory, threads) for memory in sizes)
    assert all(call.enters() for call in running)
    assert admission.waiting == 1
    running.pop(leaver).leave()
    assert third.enters()
    running[0].leave()
    third.leave()


def test_large_calls(threads):
    """A call larger than the whole is admitted when nothing else runs, and nothing else is admitted then.

    A small call that would fit waits behind a large one that came first, so the large one gets its turn.
    """
    admission = Admission(jobs=8, memory=100)
    small = visit(admission, 1, threads)
    too_large = visit(admission, 1000, threads)
    other = visit(admission, 60, threads)
    assert small.enters()
    assert admission.waiting == 2
    small.leave()
    assert too_large.enters()
    assert not other.inside.is_set()
    too_large.leave()
    assert other.enters()
    large, fitting = (visit(admission, memory, threads) for memory in (80, 10))
    assert admission.waiting == 2
    other.leave()
    assert large.enters()
    assert fitting.enters()
    large.leave()
    fitting.leave()


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
