"""Calls: results, errors and logs, time limits and memory bounds, and what a call leaves behind."""

import math
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pteforge.configs.model import Limits
from pteforge.errors import StageCrashed, StageFailed, StageOutOfMemory, StageTimedOut
from pteforge.tasks.engine.workers import WorkerCall, Workers
from pteforge.tasks.engine.workers.protocol import CappedLog


@pytest.mark.parametrize(
    ("body", "argument", "result"),
    [
        *(("echo", value, value) for value in [None, 0, math.inf, "\u26a1 \x00", {"a": [1, 2.5, {"b": None}]}]),
        ("blob", 16 << 20, "x" * (16 << 20)),  # many times the size of a pipe
        ("length", "x" * (8 << 20), 8 << 20),
        ("start_thread_that_never_ends", None, "done"),  # an answer ends its process
        ("close_stdout", None, "closed"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_result_is_what_the_body_returned(run, body, argument, result):
    """Any JSON value goes in and comes out unchanged; infinite figures (the SQNR of an exact result) too."""
    assert run(body, argument).result == result


def test_report_says_time_and_memory(run):
    """Seconds and peak memory are those of the call, not the server's; pages that its forks share count once."""
    report = run("hold", 100 << 20)
    assert 0.2 <= report.seconds < 60
    assert 90 << 20 < report.peak_memory < 130 << 20
    assert run("echo").peak_memory < 20 << 20
    assert run("shared_with_forks", 100 << 20, memory=250 << 20).peak_memory < 200 << 20


def test_exceptions(run):
    """Type and message share the first line, even if the message begins with an empty one; the log has a traceback."""
    with pytest.raises(StageFailed) as caught:
        run("fail", "\nshapes differ\nexpected: 3")
    assert str(caught.value) == "RuntimeError: shapes differ\nexpected: 3"
    assert "in fail" in caught.value.log_tail
    assert "Traceback" in caught.value.log_tail
    assert not caught.value.bad_input
    with pytest.raises(StageFailed) as caught:
        run("fail", "x" * (1 << 20))
    assert len(str(caught.value)) < 5000
    with pytest.raises(StageFailed, match=r"^SourceError: the builder returned nothing$") as caught:
        run("fail_on_input")
    assert caught.value.bad_input  # an InputError of ours is the user's to correct


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


def test_malformed_function_is_refused(shared_workers):
    """A name without a colon is a mistake of the caller, found before a process is forked."""
    before = shared_workers.calls
    with pytest.raises(ValueError, match=r"must be 'package\.module:name'"):
        shared_workers.run(WorkerCall("os.getpid", None, Limits(timeout=60, memory=1 << 30)))
    assert shared_workers.calls == before


def test_given_up(run):
    """A call that nobody needs any more is killed."""
    asked = iter([False, False])
    with pytest.raises(StageCrashed, match=r"^killed, since nobody needs it"):
        run("hang", given_up=lambda: next(asked, True))


@pytest.mark.parametrize("signum", [signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGTERM, signal.SIGILL])
def test_signal_is_named(run, signum):
    """A process that a signal kills is a crash that says which; the log has what it wrote before, and where it was."""
    with pytest.raises(StageCrashed, match=f"^killed by {signum.name}$") as caught:
        run("die", signum)
    assert "just before" in caught.value.log_tail
    if signum == signal.SIGSEGV:
        assert "Fatal Python error: Segmentation fault" in caught.value.log_tail
        assert "in die" in caught.value.log_tail


@pytest.mark.parametrize(
    ("body", "argument", "error", "message", "log"),
    [
        ("leave", 0, StageCrashed, "^exited with code 0 without an answer$", ""),
        ("leave", 3, StageCrashed, "^exited with code 3 without an answer$", ""),
        ("close_all_descriptors", None, StageCrashed, "^exited with code 70 without an answer$", "Bad file descriptor"),
        ("die", signal.SIGKILL, StageOutOfMemory, "probably by the kernel", ""),  # the pool did not send it
    ],
)
def test_end_without_an_answer(run, body, argument, error, message, log):
    """A process that just exits gave no result, whatever its code says."""
    with pytest.raises(error, match=message) as caught:
        run(body, argument)
    assert log in caught.value.log_tail


def test_logs(run):
    """Python's streams, raw descriptors and programs all end up in the log, bytes unchanged."""
    log = run("write_everywhere").log
    for piece in (b"print to stdout\n", b"print to stderr\n", b"write to 1\n", b"from a program\n"):
        assert piece in log
    assert "wri\u0167e to 2 \u26a1\n".encode() in log
    assert b"\xff\xfe\x00\x1b[31m binary\n" in log
    log = run("write_much", 400_000).log
    assert len(log) < 1.1 * (1 << 20)
    assert log.startswith(b"line 0\nline 1\n")
    assert log.endswith(b"line 399998\nline 399999\n")
    assert b"bytes left out" in log
    with pytest.raises(StageFailed) as caught:
        run("write_much_and_fail", 10_000)
    lines = caught.value.log_tail.splitlines()
    assert 40 < len(lines) < 50
    assert lines[0].startswith("line 99")
    assert lines[-1] == "RuntimeError: after much"


def test_no_descriptors_leak(bodies):
    """After 200 calls from four threads, each with its own answer or error, no more files are open than after one."""
    with Workers(jobs=4, preload=()) as pool:
        limits = Limits(timeout=60, memory=1 << 30)

        def call(number: int) -> None:
            if number % 10 == 0:
                with pytest.raises(StageCrashed):
                    pool.run(WorkerCall("worker_bodies:leave", 1, limits, python_path=(bodies,)))
            else:
                assert (
                    pool.run(WorkerCall("worker_bodies:echo", number, limits, python_path=(bodies,))).result == number
                )

        call(0)
        server = pool._server.pid
        before = [_descriptors("self"), _descriptors(server)]
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(call, range(200)))
        after = [_descriptors("self"), _descriptors(server)]
        assert after[0] == before[0]
        assert after[1] <= before[1] + 1  # it closes the link of the last call just after it has reported its end
        assert pool.calls == 201


def _descriptors(process: str | int) -> int:
    return len(list(Path(f"/proc/{process}/fd").iterdir()))


@pytest.mark.usefixtures("preloads")
def test_time_limit_does_not_count_waiting():
    """Neither the warm-up nor the wait for a place counts towards a call's time limit."""
    with Workers(jobs=1, preload=("slow_preload",)) as pool, ThreadPoolExecutor() as threads:
        hanging = threads.submit(pool.run, WorkerCall("worker_bodies:hang", None, Limits(timeout=1.5, memory=1 << 20)))
        waiting = threads.submit(pool.run, WorkerCall("worker_bodies:echo", 1, Limits(timeout=1, memory=1 << 20)))
        assert waiting.result().result == 1
        assert str(hanging.exception()) == "killed at its time limit of 1.5 s"


@pytest.mark.parametrize(
    ("body", "limits", "error", "message"),
    [
        ("hang", {"timeout": 1}, StageTimedOut, r"^killed at its time limit of 1 s$"),
        ("hog", {"memory": 200 << 20}, StageOutOfMemory, r"^killed at its memory bound of 200 MiB: it held \d+ MiB$"),
        ("hog_in_grandchild", {"memory": 200 << 20}, StageOutOfMemory, "200 MiB"),
    ],
)
def test_a_call_is_killed_at_its_limits(run, body, limits, error, message):
    """A body that never ends, or allocates without end (also in a program that it starts), is killed soon after."""
    with pytest.raises(error, match=message) as caught:
        run(body, **limits)
    if body == "hang":
        assert caught.value.log_tail == "hanging"
    else:
        assert 200 <= int(str(caught.value).split()[-2]) < 2000


def test_grandchildren_end_with_their_call(run, ends, announcement):
    """What a body started and left behind, by fork or as a program, is gone after the call; a kill takes it, too."""
    pids = run("leave_grandchildren").result
    assert len(pids) == 2
    assert all(ends(pid) for pid in [*pids, run("start_flooding_daemon").result])
    with ThreadPoolExecutor() as threads:
        call = threads.submit(run, "announce_grandchild_and_hang", str(announcement), timeout=3)
        own, _, grandchild = map(int, announcement.read_text().split())
        assert isinstance(call.exception(), StageTimedOut)
    assert ends(own)
    assert ends(grandchild)


@pytest.mark.parametrize("end", ["return", "limit", "memory", "stop", "server"])
def test_daemons_belong_to_their_call(bodies, announcement, ends, end):
    """What forks twice and leaves its session counts as its call's memory, and ends with it, however the call ends."""
    size = 100 << 20
    limits = Limits(timeout=1.5 if end == "limit" else 60, memory=size // 2 if end == "memory" else 1 << 30)
    body = "worker_bodies:leave_daemon" if end == "return" else "worker_bodies:hang_beside_daemon"
    with Workers(jobs=2, preload=()) as pool, ThreadPoolExecutor() as threads:
        call = partial(pool.run, WorkerCall(body, [str(announcement), size], limits, memory=1, python_path=(bodies,)))
        running = threads.submit(call)
        pids = [int(pid) for pid in announcement.read_text().split()][:3]
        if end == "stop":
            pool.stop()
        elif end == "server":
            while pool._admission._promised < size:  # the pool has not seen the daemon yet
                time.sleep(0.01)
            os.kill(pool._server.pid, signal.SIGKILL)
        if end == "return":
            assert 90 << 20 < running.result().peak_memory < 200 << 20
        else:
            kind = {"limit": StageTimedOut, "memory": StageOutOfMemory}.get(end, StageCrashed)
            assert isinstance(running.exception(), kind)
        assert len(pids) == 3
        assert all(ends(pid) for pid in pids)


def test_daemons_of_other_calls_go_on(run, announcement, ends):
    """The end of a call ends its own daemons only; multiprocessing, with each way to start, works beside them."""
    with ThreadPoolExecutor() as threads:
        hanging = threads.submit(run, "hang_beside_daemon", [str(announcement), 1])
        *pids, stage, _ = [int(pid) for pid in announcement.read_text().split()]
        assert run("square_in_processes", [1, 2, 3]).result == {
            way: [1, 4, 9] for way in ("fork", "forkserver", "spawn")
        }
        run("leave_grandchildren")
        assert all(Path(f"/proc/{pid}").exists() for pid in pids)
        assert psutil.Process(pids[0]).ppid() == stage  # which has adopted it
        os.kill(stage, signal.SIGTERM)
        assert str(hanging.exception()) == "killed by SIGTERM"
    assert all(ends(pid) for pid in pids)


@given(st.lists(st.binary(max_size=40)), st.integers(2, 100))
def test_short_logs_are_whole_and_long_ones_bounded(chunks, limit):
    """Up to the limit nothing changes; past it, head and tail are exact and the gap says how much is missing."""
    log = CappedLog(limit)
    for chunk in chunks:
        log.add(chunk)
    written, half = b"".join(chunks), limit // 2
    missing = len(written) - 2 * half
    gap = b"\n[... %d bytes left out ...]\n" % missing
    assert log.content() == (written if missing <= 0 else written[:half] + gap + written[-half:])
