"""Who may run when. Threads take places; a place that is free is taken within seconds, one that is not stays so."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from pteforge.configs.model import Limits
from pteforge.tasks.engine.workers import WorkerCall, Workers, memory, memory_for_calls
from pteforge.tasks.engine.workers.memory import Admission, AdmissionClosed


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


def visit(admission: Admission, memory: int, threads: ThreadPoolExecutor, *, first: bool = False) -> Visit:
    """Lets a thread queue up; returns when it is inside or in the queue."""
    queued = admission.waiting
    inside, leaving = threading.Event(), threading.Event()

    def stay() -> None:
        with admission.admit(memory, first=first):
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


def test_large_calls(threads, monkeypatch):
    """A call larger than the whole is admitted when nothing else runs, and nothing else is admitted then."""
    monkeypatch.setattr(Admission, "PATIENCE", 2)
    admission = Admission(jobs=8, memory=100)
    first = visit(admission, 1, threads)
    too_large = visit(admission, 1000, threads)
    overtaking = [visit(admission, 30, threads) for _ in range(2)]
    late = visit(admission, 30, threads)
    assert all(call.enters() for call in (first, *overtaking))
    assert admission.waiting == 2
    for call in (first, *overtaking):
        assert not too_large.inside.is_set()
        assert not late.inside.is_set()
        call.leave()
    assert too_large.enters()
    assert not late.inside.is_set()
    too_large.leave()
    assert late.enters()
    late.leave()


def test_a_call_that_takes_more_than_expected(threads):
    """Others wait for what running calls really take, until they leave."""
    admission = Admission(jobs=8, memory=100)
    with admission.admit(10) as grow:
        grow(5)
        beside = visit(admission, 90, threads)
        assert beside.enters()
        beside.leave()
        grow(60)
        waiting = visit(admission, 50, threads)
        fitting = visit(admission, 40, threads)
        assert fitting.enters()
        fitting.leave()
        assert not waiting.inside.is_set()
    assert waiting.enters()
    waiting.leave()
    whole = visit(admission, 100, threads)
    assert whole.enters()
    whole.leave()


def test_calls_that_come_first(threads):
    """A call for which a process waits enters before those that came earlier."""
    admission = Admission(jobs=1, memory=100)
    running, early = (visit(admission, 10, threads) for _ in range(2))
    first = visit(admission, 10, threads, first=True)
    running.leave()
    assert first.enters()
    assert not early.inside.is_set()
    first.leave()
    assert early.enters()
    early.leave()


def test_closing_turns_away_who_waits_and_who_comes(threads):
    """After `close` nobody enters any more; who is inside may finish."""
    admission = Admission(jobs=1, memory=100)
    inside = visit(admission, 1, threads)
    waiting = visit(admission, 1, threads)
    admission.close()
    assert isinstance(waiting.done.exception(), AdmissionClosed)
    with pytest.raises(AdmissionClosed), admission.admit(1):
        pass
    inside.leave()


@pytest.mark.parametrize(("jobs", "memory"), [(0, 1), (1, 0), (-1, 1)])
def test_impossible_pools_are_refused(jobs, memory):
    """A pool without places or memory would wait for ever."""
    with pytest.raises(ValueError, match="must be at least 1"):
        Workers(jobs=jobs, memory=memory)


def test_pool_runs_one_after_another_with_one_job(bodies, announcement):
    """The pool asks its admission: with one job, a second call gets its process only after the first has ended."""
    limits = Limits(timeout=60, memory=1 << 20)
    with Workers(jobs=1, preload=()) as pool, ThreadPoolExecutor() as runners:
        first = runners.submit(
            pool.run, WorkerCall("worker_bodies:announce_and_wait", str(announcement), limits, python_path=(bodies,))
        )
        assert announcement.read_text() == "begun"
        second = runners.submit(pool.run, WorkerCall("worker_bodies:echo", 2, limits, python_path=(bodies,)))
        while not pool._admission.waiting:
            threading.Event().wait(0.001)
        assert pool.calls == 1
        announcement.write_text("go on")
        assert first.result().result == "go on"
        assert second.result().result == 2
        assert pool.calls == 2


def test_two_large_calls_do_not_run_at_once(bodies, announcement):
    """Calls wait for the memory that they will probably need, whatever their limits are; small ones go on meanwhile."""
    limits, started = Limits(timeout=60, memory=1 << 40), []
    with Workers(jobs=8, memory=1000 << 20, preload=()) as pool, ThreadPoolExecutor() as runners:

        def call(function, argument, memory):
            return runners.submit(
                pool.run,
                WorkerCall(
                    f"worker_bodies:{function}",
                    argument,
                    limits,
                    memory=memory << 20,
                    python_path=(bodies,),
                    started=lambda: started.append(memory),
                ),
            )

        large = call("announce_and_wait", str(announcement), 700)
        assert announcement.read_text() == "begun"
        second = call("echo", 2, 701)
        while not pool._admission.waiting:
            threading.Event().wait(0.001)
        assert [call("echo", number, 100).result().result for number in range(3)] == [0, 1, 2]
        assert started == [700, 100, 100, 100]
        announcement.write_text("go on")
        assert large.result().result == "go on"
        assert second.result().result == 2
        assert started[-1] == 701


@pytest.mark.parametrize("limited", ["", "system.slice", "system.slice/run.scope"])
def test_memory_of_a_control_group(tmp_path, monkeypatch, limited):
    """The smallest limit of the groups that the process is in counts, with a reserve for what is not a call."""
    group = tmp_path / "system.slice" / "run.scope"
    group.mkdir(parents=True)
    (tmp_path / "cgroup").write_text("0::/system.slice/run.scope\n")
    for folder in (tmp_path, group.parent, group):
        (folder / "memory.max").write_text("max\n")
    (tmp_path / limited / "memory.max").write_text(f"{64 << 20}\n")
    monkeypatch.setattr(memory, "_CGROUPS", tmp_path)
    monkeypatch.setattr(memory, "_OWN_CGROUP", tmp_path / "cgroup")
    assert memory.available_memory() == 64 << 20
    assert 32 << 20 < memory_for_calls() < 64 << 20
    assert Workers().memory == memory_for_calls()
