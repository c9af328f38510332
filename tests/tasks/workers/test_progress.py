"""How far a call is: told while it runs, never waited for."""

from __future__ import annotations

import os

import pytest
from pteforge.tasks.workers import WorkerLimits
from pteforge.tasks.workers.progress import ProgressReader, ProgressWriter


def test_it_is_told_while_the_call_runs(shared_workers, bodies, announcement):
    """The pool hears of the first sample while the call waits for what the pool does then, and of the last one."""
    heard = []

    def hear(done: int, total: int | None) -> None:
        heard.append((done, total))
        if done == 1:
            announcement.write_text("go on")

    limits = WorkerLimits(60, 1 << 30)
    argument = [str(announcement), 3]
    report = shared_workers.run("worker_bodies:count_samples", argument, limits, python_path=(bodies,), progressed=hear)
    assert report.result == "go on"
    assert (heard[0], heard[-1]) == ((1, 3), (3, 3))


def test_a_total_may_be_unknown(shared_workers, bodies, announcement):
    """Where nobody knows how many samples there are, how many are done is told alone; nobody need listen."""
    heard = []

    def hear(done: int, total: int | None) -> None:
        heard.append((done, total))
        announcement.write_text("go on")

    argument = [str(announcement), None]
    limits = WorkerLimits(60, 1 << 30)
    shared_workers.run("worker_bodies:count_samples", argument, limits, python_path=(bodies,), progressed=hear)
    assert heard == [(1, None)]  # the others came within a tenth of a second


@pytest.fixture
def pipe():
    """The reading and the writing end of a pipe."""
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_nobody_reads(pipe):
    """Many times what a pipe holds is told without waiting for a reader, and what is read then are whole records."""
    reading, writing = pipe
    writer = ProgressWriter(writing)
    for _ in range(20_000):
        writer(7, 7)  # the last sample is always told
    heard = []
    reader = ProgressReader(lambda *told: heard.append(told))
    reader.add(os.read(reading, 1 << 20))
    assert heard == [(7, 7)]


def test_nobody_is_there(pipe):
    """A pool that has gone away is no error of the call."""
    reading, writing = pipe
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, reading)
    os.close(null)
    ProgressWriter(writing)(1, 2)


def test_records_may_come_in_parts(pipe):
    """A record that is cut by the size of a read is told when the rest of it is there."""
    reading, writing = pipe
    ProgressWriter(writing)(1, None)
    ProgressWriter(writing)(2, None)
    stream = os.read(reading, 1 << 10)
    heard = []
    reader = ProgressReader(lambda *told: heard.append(told))
    for end in (20, len(stream)):
        reader.add(stream[:end] if end == 20 else stream[20:])
    assert heard == [(1, None), (2, None)]
