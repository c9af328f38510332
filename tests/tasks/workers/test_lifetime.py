"""Start, stop, and the end of every process, whoever dies first."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pteforge.errors import StageCrashed, StageFailed
from pteforge.tasks.workers import WorkerLimits, Workers

LIMITS = WorkerLimits(60, 1 << 30)
MAIN = """\
import sys, threading
from pteforge.tasks.workers import Workers, WorkerLimits
pool = Workers(jobs=2, preload=tuple(sys.argv[3:]))
pool.start()
limits = WorkerLimits(600, 1 << 30)
pool.run("worker_bodies:announce_grandchild_and_hang", sys.argv[1], limits, python_path=(sys.argv[2],))
"""


def test_nothing_is_started_before_it_is_needed():
    """A pool that is opened and closed starts no process and no thread."""
    threads = threading.active_count()
    with Workers(jobs=1, preload=("no_such_module",)) as pool:
        assert not pool.started
        assert pool.calls == 0
    assert not pool.started
    assert threading.active_count() == threads


def test_start_does_not_wait(monkeypatch, bodies, announcement, ends):
    """`start` returns while the preload is still being imported; stopping then ends the server."""
    monkeypatch.syspath_prepend(bodies)
    monkeypatch.setenv("PTEFORGE_TEST_ANNOUNCE", str(announcement))
    pool = Workers(jobs=1, preload=("endless_preload",))
    pool.start()
    assert pool.started
    server = int(announcement.read_text())
    with ThreadPoolExecutor() as threads:
        waiting = [threads.submit(pool.run, "worker_bodies:echo", 1, LIMITS) for _ in range(3)]
        pool.stop()
        assert [str(call.exception()) for call in waiting] == ["stopped"] * 3
    assert ends(server)


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        ("failing_preload", "ImportError: there is no such accelerator"),
        ("threaded_preload", "the preload modules left 1 more threads running (Thread-1 (wait))"),
        ("no_such_module", "No module named 'no_such_module'"),
    ],
)
def test_failing_preload_is_told_to_all(monkeypatch, bodies, module, reason):
    """Calls that wait for a server that cannot become ready, and later ones, fail with its log."""
    monkeypatch.syspath_prepend(bodies)
    with Workers(jobs=2, preload=(module,)) as pool, ThreadPoolExecutor() as threads:
        waiting = [threads.submit(pool.run, "worker_bodies:echo", 1, LIMITS) for _ in range(4)]
        errors = [call.exception() for call in waiting]
        with pytest.raises(StageFailed, match="failed in its warm-up") as later:
            pool.run("worker_bodies:echo", 1, LIMITS)
        assert all(isinstance(error, StageFailed) and reason in error.log_tail for error in [*errors, later.value])
        assert pool.calls == 0


def test_endless_preload_is_given_up(monkeypatch, bodies, announcement, ends):
    """A warm-up that does not end fails its callers after a while, and its server is killed."""
    monkeypatch.syspath_prepend(bodies)
    monkeypatch.setenv("PTEFORGE_TEST_ANNOUNCE", str(announcement))
    monkeypatch.setattr("pteforge.tasks.workers.warm_server._WARM_UP_LIMIT", 3)
    with Workers(jobs=1, preload=("endless_preload",)) as pool:
        pool.start()
        server = int(announcement.read_text())
        with pytest.raises(StageFailed, match=r"^the worker server was not ready within 3 s$"):
            pool.run("worker_bodies:echo", 1, LIMITS)
        assert ends(server)


def test_machine_without_processes_is_a_crash_of_the_call(monkeypatch, bodies):
    """A fork that fails is told to the call; the server lives on and can be stopped."""
    monkeypatch.syspath_prepend(bodies)
    with Workers(jobs=1, preload=("forkless_preload",)) as pool:
        for _ in range(2):
            with pytest.raises(StageCrashed, match=r"^no process could be forked for it: .*unavailable"):
                pool.run("worker_bodies:echo", 1, LIMITS)


def test_stop_kills_what_runs_and_turns_away_what_waits(bodies, announcement, ends):
    """`stop` from another thread: running and waiting calls raise at once, and no process is left."""
    pool = Workers(jobs=1, preload=())
    with ThreadPoolExecutor() as threads:
        arguments = ("worker_bodies:announce_grandchild_and_hang", str(announcement), LIMITS)
        running = threads.submit(pool.run, *arguments, python_path=(bodies,))
        pids = list(map(int, announcement.read_text().split()))
        waiting = [threads.submit(pool.run, "worker_bodies:echo", 1, LIMITS) for _ in range(3)]
        pool.stop()
        for call in (running, *waiting):
            assert isinstance(call.exception(), StageCrashed)
            assert str(call.exception()) == "stopped"
    assert len(pids) == 3
    assert all(ends(pid) for pid in pids)


def test_stop_again_and_use_after_stop():
    """`stop` may be called any number of times; a stopped pool says so."""
    pool = Workers(jobs=1, preload=())
    assert pool.run("json:dumps", 1, LIMITS).result == "1"
    pool.stop()
    pool.stop()
    with pytest.raises(StageCrashed, match="stopped"):
        pool.run("json:dumps", 1, LIMITS)
    with pytest.raises(StageCrashed, match="stopped"):
        pool.start()


def test_pool_outlives_the_thread_that_started_it():
    """The server is not tied to the thread of the first caller."""
    with Workers(jobs=1, preload=()) as pool:
        thread = threading.Thread(target=pool.run, args=("json:dumps", 1, LIMITS))
        thread.start()
        thread.join()
        first = pool._server.pid
        assert pool.run("json:dumps", 2, LIMITS).result == "2"
        assert pool._server.pid == first


def test_lost_server_fails_its_calls_and_is_replaced(bodies, announcement, ends):
    """If the server is killed, the running call crashes, its processes end, and the next call gets a new server."""
    with Workers(jobs=2, preload=()) as pool, ThreadPoolExecutor() as threads:
        arguments = ("worker_bodies:announce_grandchild_and_hang", str(announcement), LIMITS)
        running = threads.submit(pool.run, *arguments, python_path=(bodies,))
        own, server, grandchild = map(int, announcement.read_text().split())
        os.kill(server, signal.SIGKILL)
        assert isinstance(running.exception(), StageCrashed)
        assert str(running.exception()) == "the worker server ended (killed by SIGKILL)"
        assert ends(own)
        assert ends(grandchild)
        assert pool.run("json:dumps", 1, LIMITS).result == "1"


def test_terminated_server_takes_its_calls_along(bodies, announcement, ends):
    """SIGTERM to all processes of a service: the server kills the groups of its calls before it ends."""
    with Workers(jobs=2, preload=()) as pool, ThreadPoolExecutor() as threads:
        arguments = ("worker_bodies:announce_grandchild_and_hang", str(announcement), LIMITS)
        running = threads.submit(pool.run, *arguments, python_path=(bodies,))
        own, server, grandchild = map(int, announcement.read_text().split())
        os.kill(server, signal.SIGTERM)
        assert isinstance(running.exception(), StageCrashed)
        assert all(ends(pid) for pid in (own, server, grandchild))


def test_killed_parent_leaves_nothing_behind(bodies, announcement, ends):
    """SIGKILL of the main process while a stage runs ends the server, the stage and what the stage started."""
    main = subprocess.Popen([sys.executable, "-c", MAIN, announcement, bodies])
    pids = list(map(int, announcement.read_text().split()))
    main.kill()
    main.wait()
    assert len(pids) == 3
    assert all(ends(pid) for pid in pids)


def test_killed_parent_during_the_warm_up_leaves_nothing_behind(bodies, announcement, ends):
    """SIGKILL of the main process while the server still imports ends the server."""
    environment = {**os.environ, "PTEFORGE_TEST_ANNOUNCE": str(announcement), "PYTHONPATH": bodies}
    arguments = [sys.executable, "-c", MAIN, "unused", bodies, "endless_preload"]
    main = subprocess.Popen(arguments, env=environment)
    server = int(announcement.read_text())
    main.kill()
    main.wait()
    assert ends(server)


@pytest.mark.parametrize("delay", [0.02, 0.1, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5])
def test_parent_killed_at_any_moment(bodies, ends, tmp_path, delay):
    """Wherever in start, fork and run the SIGKILL hits, no process that has the main one's environment is left."""
    marker = str(tmp_path)
    environment = {**os.environ, "PTEFORGE_TEST_MARKER": marker}
    main = subprocess.Popen([sys.executable, "-c", MAIN, tmp_path / "unread", bodies], env=environment)
    time.sleep(delay)  # not to wait for something: the moment of the kill is what varies
    main.kill()
    main.wait()
    assert all(ends(pid) for pid in _processes_with(f"PTEFORGE_TEST_MARKER={marker}"))


def test_interrupt_reaches_the_main_process_only(bodies, announcement, ends):
    """SIGINT to the terminal's foreground group: the main process is interrupted and everything ends with it."""
    main = subprocess.Popen(
        [sys.executable, "-c", MAIN, announcement, bodies], start_new_session=True, stderr=subprocess.PIPE, text=True
    )
    pids = list(map(int, announcement.read_text().split()))
    os.killpg(main.pid, signal.SIGINT)
    _, errors = main.communicate(timeout=60)
    assert "KeyboardInterrupt" in errors
    assert all(ends(pid) for pid in pids)


def test_interrupted_call_is_killed(bodies, announcement, ends):
    """An exception in the thread that waits for a call (Ctrl-C in a main thread) ends that call, not the pool."""
    with Workers(jobs=2, preload=()) as pool:
        main = threading.get_ident()

        def interrupt() -> None:
            pids.extend(map(int, announcement.read_text().split()))
            signal.pthread_kill(main, signal.SIGINT)

        pids: list[int] = []
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            pool.run("worker_bodies:announce_grandchild_and_hang", str(announcement), LIMITS, python_path=(bodies,))
        thread.join()
        own, _, grandchild = pids
        assert ends(own)
        assert ends(grandchild)
        assert pool.run("json:dumps", 1, LIMITS).result == "1"


def _processes_with(variable: str) -> list[int]:
    """Processes that were started with an environment variable."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):  # ended meanwhile, or not ours
                if variable.encode() in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
    return found
