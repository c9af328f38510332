"""Start, stop, and the end of every process, whoever dies first."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pteforge.configs.model import Limits
from pteforge.errors import StageCrashed, StageFailed
from pteforge.tasks.engine.workers import WorkerCall, Workers

LIMITS = Limits(timeout=60, memory=1 << 30)
MAIN = """\
import sys, threading
from pteforge.configs.model import Limits
from pteforge.tasks.engine.workers import Workers, WorkerCall
pool = Workers(jobs=2, preload=tuple(sys.argv[3:]))
pool.start()
limits = Limits(timeout=600, memory=1 << 30)
pool.run(WorkerCall("worker_bodies:hang_beside_daemon", [sys.argv[1], 1], limits, python_path=(sys.argv[2],)))
"""


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        ("failing_preload", "ImportError: there is no such accelerator"),
        ("threaded_preload", "the preload modules left 1 more threads running (Thread-1 (wait))"),
        ("no_such_module", "No module named 'no_such_module'"),
    ],
)
@pytest.mark.usefixtures("preloads")
def test_failing_preload_fails_all_calls(module, reason):
    """Calls that wait for a server that cannot become ready, and later ones, fail with its log."""
    with Workers(jobs=2, preload=(module,)) as pool, ThreadPoolExecutor() as threads:
        waiting = [threads.submit(pool.run, WorkerCall("worker_bodies:echo", 1, LIMITS)) for _ in range(4)]
        errors = [call.exception() for call in waiting]
        with pytest.raises(StageFailed, match="failed in its warm-up") as later:
            pool.run(WorkerCall("worker_bodies:echo", 1, LIMITS))
        assert all(isinstance(error, StageFailed) and reason in error.log_tail for error in [*errors, later.value])
        assert pool.calls == 0


@pytest.mark.usefixtures("preloads")
@pytest.mark.parametrize(("limit", "problem"), [(None, "stopped"), (3, "the worker server was not ready within 3 s")])
def test_start_does_not_wait(monkeypatch, announcement, ends, limit, problem):
    """`start` returns while the preload is still being imported; its callers fail when the pool is stopped."""
    if limit:
        monkeypatch.setattr("pteforge.tasks.engine.workers.warm_server._WARM_UP_LIMIT", limit)
    with Workers(jobs=1, preload=("endless_preload",)) as pool, ThreadPoolExecutor() as threads:
        pool.start()
        assert pool.started
        server = int(announcement.read_text())
        waiting = [threads.submit(pool.run, WorkerCall("worker_bodies:echo", 1, LIMITS)) for _ in range(3)]
        if not limit:
            pool.stop()
        assert [str(call.exception()) for call in waiting] == [problem] * 3
        assert ends(server)


@pytest.mark.usefixtures("preloads")
def test_machine_without_processes_is_a_crash_of_the_call():
    """A fork that fails is reported to its call; the server lives on and can be stopped."""
    with Workers(jobs=1, preload=("forkless_preload",)) as pool:
        for _ in range(2):
            with pytest.raises(StageCrashed, match=r"^no process could be forked.*unavailable"):
                pool.run(WorkerCall("worker_bodies:echo", 1, LIMITS))


@pytest.fixture
def hang(bodies, announcement):
    """Starts a call that hangs; returns it with the pids of its process, of the server and of its child."""

    def start(pool: Workers, threads: ThreadPoolExecutor):
        arguments = ("worker_bodies:announce_grandchild_and_hang", str(announcement), LIMITS)
        running = threads.submit(pool.run, WorkerCall(*arguments, python_path=(bodies,)))
        return running, tuple(map(int, announcement.read_text().split()))

    return start


def test_stop_kills_what_runs_and_turns_away_what_waits(hang, ends):
    """`stop` from another thread: running and waiting calls raise at once, and no process is left."""
    pool = Workers(jobs=1, preload=())
    with ThreadPoolExecutor() as threads:
        running, pids = hang(pool, threads)
        waiting = [threads.submit(pool.run, WorkerCall("worker_bodies:echo", 1, LIMITS)) for _ in range(3)]
        pool.stop()
        for call in (running, *waiting):
            assert isinstance(call.exception(), StageCrashed)
            assert str(call.exception()) == "stopped"
    assert len(pids) == 3
    assert all(ends(pid) for pid in pids)


def test_start_and_stop():
    """A pool that is opened and closed starts no process and no thread."""
    threads = threading.active_count()
    with Workers(jobs=1, preload=("no_such_module",)) as pool:
        assert (pool.started, pool.calls) == (False, 0)
    assert not pool.started
    assert threading.active_count() == threads
    pool = Workers(jobs=1, preload=())
    thread = threading.Thread(target=pool.run, args=(WorkerCall("json:dumps", 1, LIMITS),))
    thread.start()
    thread.join()
    server = pool._server.pid
    assert pool.run(WorkerCall("json:dumps", 2, LIMITS)).result == "2"
    assert pool._server.pid == server
    pool.stop()
    pool.stop()
    with pytest.raises(StageCrashed, match="stopped"):
        pool.run(WorkerCall("json:dumps", 1, LIMITS))
    with pytest.raises(StageCrashed, match="stopped"):
        pool.start()


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_lost_server_fails_its_calls_and_is_replaced(hang, ends, signum):
    """If the server is killed or terminated, its calls crash, no process is left, and the next call gets a new one."""
    with Workers(jobs=2, preload=()) as pool, ThreadPoolExecutor() as threads:
        running, pids = hang(pool, threads)
        os.kill(pids[1], signum)
        assert isinstance(running.exception(), StageCrashed)
        if signum == signal.SIGKILL:
            assert str(running.exception()) == "the worker server ended (killed by SIGKILL)"
        assert all(ends(pid) for pid in pids)
        assert pool.run(WorkerCall("json:dumps", 1, LIMITS)).result == "1"


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGINT])
def test_ended_parent_leaves_nothing_behind(bodies, announcement, ends, signum):
    """SIGKILL of the main process, or SIGINT to the terminal's foreground group, ends the server and all processes."""
    command = [sys.executable, "-c", MAIN, announcement, bodies]
    main = subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE, text=True)
    pids = list(map(int, announcement.read_text().split()))
    os.killpg(main.pid, signum)
    _, errors = main.communicate(timeout=60)
    assert ("KeyboardInterrupt" in errors) is (signum == signal.SIGINT)
    assert len(pids) == 4
    assert all(ends(pid) for pid in pids)


def test_killed_parent_during_the_warm_up_leaves_nothing_behind(preloads, announcement, ends):
    """SIGKILL of the main process while the server still imports ends the server."""
    arguments = [sys.executable, "-c", MAIN, "unused", preloads, "endless_preload"]
    main = subprocess.Popen(arguments, env=os.environ | {"PYTHONPATH": preloads})
    server = int(announcement.read_text())
    main.kill()
    main.wait()
    assert ends(server)


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
            pool.run(
                WorkerCall(
                    "worker_bodies:announce_grandchild_and_hang", str(announcement), LIMITS, python_path=(bodies,)
                )
            )
        thread.join()
        own, _, grandchild = pids
        assert ends(own)
        assert ends(grandchild)
        assert pool.run(WorkerCall("json:dumps", 1, LIMITS)).result == "1"


BORROWER = """\
import sys
from pteforge.configs.model import Limits
from pteforge.tasks.engine.workers import Workers, WorkerCall
limits = Limits(timeout=600, memory=1 << 30)
borrower = Workers(jobs=1, preload=("no_such_module",), address=sys.argv[1])
call = WorkerCall("worker_bodies:announce_grandchild_and_hang", sys.argv[2], limits, python_path=(sys.argv[3],))
borrower.run(call)
"""


def shared_address(owner: Workers) -> str | None:
    """Where others find the owner's server, which is started."""
    owner.start(shared=True)
    return owner.address


def test_shared_server_ends_with_neither_borrower(bodies, announcement, hang, ends):
    """Another process's pool uses the server at an address. If it is stopped or killed, only its own calls end."""
    with Workers(jobs=2, preload=()) as owner, ThreadPoolExecutor() as threads:
        address = shared_address(owner)
        command = [sys.executable, "-c", BORROWER, address, announcement, bodies]
        process = subprocess.Popen(command)
        killed = tuple(map(int, announcement.read_text().split()))
        borrower = Workers(jobs=2, preload=("no_such_module",), address=address)
        stopped, pids = hang(borrower, threads)
        assert killed[1] == pids[1] == owner._server.pid
        process.kill()
        process.wait()
        assert all(ends(pid) for pid in (killed[0], killed[2]))
        assert not stopped.done()
        borrower.stop()
        assert str(stopped.exception()) == "stopped"
        assert all(ends(pid) for pid in (pids[0], pids[2]))
        assert owner.run(WorkerCall("json:dumps", 1, LIMITS)).result == "1"
    assert not Path(address).parent.exists()


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder in which sockets can have names: the system bounds the length of their paths."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


KILLED = """\
import os, signal
from pteforge.tasks.engine.workers import Workers
pool = Workers(jobs=1, preload=())
pool.start(shared=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def _is_listening(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(path))
        except ConnectionRefusedError:
            return False
    return True


def test_socket_of_a_killed_process_is_removed(monkeypatch, short_path):
    """A process that is killed leaves its server's socket; the next one removes it, and not those that are in use."""
    monkeypatch.setattr("tempfile.tempdir", str(short_path))
    killed = subprocess.run([sys.executable, "-c", KILLED], env=os.environ | {"TMPDIR": str(short_path)}, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(list(short_path.iterdir())) == 1
    (left,) = short_path.glob("*/*")
    while _is_listening(left):  # its server is still ending
        time.sleep(0.05)
    with Workers(jobs=1, preload=()) as one, Workers(jobs=1, preload=()) as other:
        sockets = [Path(shared_address(pool)) for pool in (one, other)]
        assert sorted(short_path.iterdir()) == sorted(socket.parent for socket in sockets)
    assert list(short_path.iterdir()) == []


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_lost_shared_server_is_replaced(hang, ends, signum):
    """Calls on a shared server that ends crash; the next one gets a server of the pool's own, as does one without."""
    with (
        Workers(jobs=2, preload=()) as owner,
        Workers(jobs=2, preload=(), address=shared_address(owner)) as borrower,
        ThreadPoolExecutor() as threads,
    ):
        running, pids = hang(borrower, threads)
        os.kill(pids[1], signum)
        assert str(running.exception()) == "the worker server ended"
        assert all(ends(pid) for pid in pids)
        assert borrower.run(WorkerCall("json:dumps", 1, LIMITS)).result == "1"
        with Workers(jobs=1, preload=(), address="/nowhere/server") as alone:
            assert alone.run(WorkerCall("json:dumps", 1, LIMITS)).result == "1"


@pytest.mark.usefixtures("preloads")
def test_shared_server_that_fails_its_warm_up():
    """Whoever borrows it tries with a server of its own, which says what is wrong."""
    with (
        Workers(jobs=1, preload=("failing_preload",)) as owner,
        Workers(jobs=1, preload=("failing_preload",), address=shared_address(owner)) as borrower,
    ):
        with pytest.raises(StageCrashed, match="the worker server ended"):
            borrower.run(WorkerCall("worker_bodies:echo", 1, LIMITS))
        with pytest.raises(StageFailed, match="failed in its warm-up"):
            borrower.run(WorkerCall("worker_bodies:echo", 1, LIMITS))
