"""What a call gives back: results, errors, logs."""

from __future__ import annotations

import math
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pteforge.errors import StageCrashed, StageFailed, StageOutOfMemory
from pteforge.tasks.workers import WorkerLimits, Workers


@pytest.mark.parametrize("value", [None, 0, "\u26a1 \x00", {"a": [1, 2.5, {"b": None}]}, []])
def test_result_is_what_the_body_returned(run, value):
    """Any JSON value goes in and comes out unchanged."""
    assert run("echo", value).result == value


def test_infinite_figures_pass(run):
    """An infinite figure (the SQNR of an exact result) survives the way."""
    assert run("echo", math.inf).result == math.inf


def test_large_values_pass_both_ways(run):
    """Many times the size of a pipe is no problem."""
    assert len(run("echo", "x" * (8 << 20)).result) == 8 << 20
    assert len(run("blob", 16 << 20).result) == 16 << 20


def test_each_call_has_a_fresh_process(run):
    """Nothing that one call leaves behind is seen by the next."""
    assert run("remember", 1).result == []
    assert run("remember", 2).result == []
    assert run("pid").result != run("pid").result != os.getpid()


def test_report_says_time_and_memory(run):
    """Seconds and peak memory are those of the call: what it held is in it, what the server has is not."""
    report = run("hold", 100 << 20)
    assert 0.2 <= report.seconds < 60
    assert 90 << 20 < report.peak_memory < 130 << 20
    assert run("echo").peak_memory < 20 << 20


def test_exception_is_told_in_one_line_first(run):
    """Type and message share the first line, even if the message begins with an empty one; the log has a traceback."""
    with pytest.raises(StageFailed) as caught:
        run("fail", "\nshapes differ\nexpected: 3")
    assert str(caught.value) == "RuntimeError: shapes differ\nexpected: 3"
    assert "in fail" in caught.value.log_tail
    assert "Traceback" in caught.value.log_tail
    assert not caught.value.bad_input


def test_bad_input_is_marked(run):
    """An InputError of ours is the user's to mend."""
    with pytest.raises(StageFailed, match=r"^SourceError: the builder returned nothing$") as caught:
        run("fail_on_input")
    assert caught.value.bad_input


@pytest.mark.parametrize(
    ("body", "argument", "message"),
    [
        ("fail_unprintably", None, "Odd: (its message cannot be shown: ValueError)"),
        ("fail", "", "RuntimeError"),
        ("leave_politely", 0, "SystemExit: 0"),
        ("give_a_set", None, "TypeError: Object of type set is not JSON serializable"),
        ("no_such_body", None, "AttributeError: module 'worker_bodies' has no attribute 'no_such_body'"),
    ],
)
def test_other_ways_to_raise(run, body, argument, message):
    """Whatever is raised in the process, on the way in and out too, is a failed stage with its name."""
    with pytest.raises(StageFailed) as caught:
        run(body, argument)
    assert str(caught.value) == message


def test_long_messages_are_cut(run):
    """A message of a megabyte does not reach the summary."""
    with pytest.raises(StageFailed) as caught:
        run("fail", "x" * (1 << 20))
    assert len(str(caught.value)) < 5000


def test_missing_module_is_a_failure(shared_workers):
    """A module that is not there fails the call, not the pool."""
    with pytest.raises(StageFailed, match="ModuleNotFoundError: No module named 'not_there'"):
        shared_workers.run("not_there:run", None, WorkerLimits(60, 1 << 30))


def test_malformed_function_is_refused(shared_workers):
    """A name without a colon is a mistake of the caller, found before a process is forked."""
    before = shared_workers.calls
    with pytest.raises(ValueError, match=r"must be 'package\.module:name'"):
        shared_workers.run("os.getpid", None, WorkerLimits(60, 1 << 30))
    assert shared_workers.calls == before


@pytest.mark.parametrize("signum", [signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGTERM, signal.SIGILL])
def test_signal_is_named(run, signum):
    """A process that a signal kills is a crash that says which, with what it wrote before."""
    with pytest.raises(StageCrashed, match=f"^killed by {signum.name}$") as caught:
        run("die", signum)
    assert "just before" in caught.value.log_tail


def test_segfault_leaves_a_python_traceback(run):
    """The log of a segfault says where in Python it happened."""
    with pytest.raises(StageCrashed) as caught:
        run("die", signal.SIGSEGV)
    assert "Fatal Python error: Segmentation fault" in caught.value.log_tail
    assert "in die" in caught.value.log_tail


def test_foreign_kill_is_reported_as_probable_lack_of_memory(run):
    """SIGKILL that the pool did not send is most likely the kernel's."""
    with pytest.raises(StageOutOfMemory, match="probably by the kernel"):
        run("die", signal.SIGKILL)


@pytest.mark.parametrize("code", [0, 3])
def test_exit_without_an_answer_is_a_crash(run, code):
    """A process that just exits gave no result, whatever its code says."""
    with pytest.raises(StageCrashed, match=f"^exited with code {code} without an answer$"):
        run("leave", code)


def test_answer_that_cannot_be_written_is_a_crash(run):
    """A body that closes descriptors it does not own loses its answer; the log says why."""
    with pytest.raises(StageCrashed, match=r"^exited with code 70 without an answer$") as caught:
        run("close_all_descriptors")
    assert "Bad file descriptor" in caught.value.log_tail


def test_threads_do_not_keep_a_process_alive(run):
    """A body's answer ends its process even if it left a thread running."""
    assert run("start_thread_that_never_ends", timeout=30).result == "done"


def test_log_has_everything_that_was_written(run):
    """Python's streams, raw descriptors and programs all end up in the log, bytes unchanged."""
    log = run("write_everywhere").log
    for piece in (
        b"print to stdout\n",
        b"print to stderr\n",
        b"write to 1\n",
        "wri\u0167e to 2 \u26a1\n".encode(),
        b"\xff\xfe\x00\x1b[31m binary\n",
        b"from a program\n",
    ):
        assert piece in log


def test_closed_streams_do_not_lose_the_answer(run):
    """A body that closes stdout and stderr still answers."""
    assert run("close_stdout").result == "closed"


def test_long_log_keeps_head_and_tail(run):
    """Of many megabytes, the first and the last lines are kept and the gap is told."""
    log = run("write_much", 400_000).log
    assert len(log) < 1.1 * (1 << 20)
    assert log.startswith(b"line 0\nline 1\n")
    assert log.endswith(b"line 399998\nline 399999\n")
    assert b"bytes left out" in log


def test_log_tail_is_short(run):
    """An error carries the last lines only: those before the traceback, and the traceback."""
    with pytest.raises(StageFailed) as caught:
        run("write_much_and_fail", 10_000)
    lines = caught.value.log_tail.splitlines()
    assert len(lines) == 40
    assert lines[0].startswith("line 99")
    assert lines[-1] == "RuntimeError: after much"


def test_many_threads_at_once(run):
    """Calls from many threads each get their own answer."""
    with ThreadPoolExecutor(16) as threads:
        reports = list(threads.map(lambda number: run("echo", number), range(64)))
    assert [report.result for report in reports] == list(range(64))


def test_no_descriptors_leak(bodies):
    """After 200 calls of all sorts, this process and the server have as many open files as after the first."""
    with Workers(jobs=4, preload=()) as pool:
        limits = WorkerLimits(60, 1 << 30)

        def call(number: int) -> None:
            if number % 10 == 0:
                with pytest.raises(StageCrashed):
                    pool.run("worker_bodies:leave", 1, limits, python_path=(bodies,))
            else:
                assert pool.run("worker_bodies:echo", number, limits, python_path=(bodies,)).result == number

        call(0)
        server = pool._server.pid
        before = [_descriptors("self"), _descriptors(server)]
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(call, range(200)))
        after = [_descriptors("self"), _descriptors(server)]
        assert after[0] == before[0]
        assert after[1] <= before[1] + 1  # it closes the link of the last call just after it has told of its end
        assert pool.calls == 201


@pytest.mark.parametrize("limits", [(0, 1), (-1.0, 1), (math.nan, 1), (1, 0)])
def test_bounds_must_be_positive(limits):
    """A bound that nothing could keep is refused."""
    with pytest.raises(ValueError, match="must be more than 0"):
        WorkerLimits(*limits)


def _descriptors(process: str | int) -> int:
    """How many open files a process has."""
    return len(list(Path(f"/proc/{process}/fd").iterdir()))
