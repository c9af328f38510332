"""Leases of every store."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from pteforge.artifacts.digest import digest_bytes
from pteforge.artifacts.lease import LeaseTiming, LocalLeases, RemoteLeases
from pteforge.artifacts.remote_files import RemoteFiles
from pteforge.artifacts.store import RemoteStore, Store

KEY = digest_bytes(b"a stage")


def test_one_thread_at_a_time(place):
    """Only one thread at a time holds a key."""
    inside = 0
    most = 0
    with place.open() as store:

        def work(_: int) -> None:
            nonlocal inside, most
            with store.leases.hold(KEY):
                inside += 1
                most = max(most, inside)
                threading.Event().wait(0.001)  # gives other threads a chance
                inside -= 1

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(work, range(12)))
    assert (most, inside) == (1, 0)


def test_other_keys_and_failures(place):
    """Leases of different keys do not wait for each other, and a stage that fails releases its lease."""
    with place.open() as store:
        with store.leases.hold(KEY), store.leases.hold(digest_bytes(b"another stage")):
            assert store.leases.held()
        with pytest.raises(ZeroDivisionError), store.leases.hold(KEY):
            raise ZeroDivisionError
        assert not store.leases.held()
        with store.leases.hold(KEY):
            assert store.leases.held()


def test_watched(place):
    """Whoever watches a key sees whether somebody holds it, and does not get in the way of those who want it."""
    with place.open() as store, place.open() as other:
        held = other.leases.watch(KEY)
        assert not held()
        with store.leases.hold(KEY):
            assert held()
            assert not other.leases.watch(digest_bytes(b"another stage"))()
        assert not held()


_WORKER = """
import sys
from pathlib import Path
from pteforge.artifacts.digest import digest_bytes
from pteforge.artifacts.store import open_store
with open_store(sys.argv[1], cache=Path(sys.argv[2])) as store:
    for _ in range(5):
        with store.leases.hold(digest_bytes(b"a stage")):
            path = Path(sys.argv[3])
            count = int(path.read_text())
            path.write_text(str(count + 1))
"""


@pytest.mark.slow
def test_one_process_at_a_time(shared_place, start, tmp_path):
    """Hosts with their own local copies that increment a counter under a lease lose no increment."""
    counter = tmp_path / "counter"
    counter.write_text("0")
    hosts = ["same", "same", "same"] if shared_place.is_local else ["a", "b", "c"]
    processes = [start(_WORKER, shared_place.url, str(tmp_path / host), str(counter)) for host in hosts]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert counter.read_text() == "15"


_HOLDER = """
import sys
from pathlib import Path
from pteforge.artifacts.digest import digest_bytes
from pteforge.artifacts.store import open_store
with open_store(sys.argv[1], cache=Path(sys.argv[2])) as store, store.leases.hold(digest_bytes(b"a stage")):
    print("held", flush=True)
    sys.stdin.readline()
"""


def test_lease_of_a_killed_holder_is_taken_over(shared_place, start):
    """The lease of a killed holder is free on the same host, and expires for other hosts."""
    holder = start(_HOLDER, shared_place.url, str(shared_place.folder / "victim"))
    assert holder.stdout.readline() == "held\n"
    with _open_impatient(shared_place) as store:
        assert store.leases.held()
        held = store.leases.watch(KEY)
        assert held()
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        _wait_for(lambda: not held())
        with store.leases.hold(KEY):
            pass
        with store.leases.hold(KEY):  # no trace of the dead holder is left
            pass
        assert not store.leases.held()


def test_heartbeat_keeps_a_lease(shared_place):
    """A living holder keeps its lease for longer than the expiry time."""
    with _open_impatient(shared_place) as store, _open_impatient(shared_place, "other") as other:
        entered = threading.Event()

        def wait_for_it() -> None:
            with other.leases.hold(KEY):
                entered.set()

        waiter = threading.Thread(target=wait_for_it)
        with store.leases.hold(KEY):
            waiter.start()
            assert not entered.wait(3.0)  # twice the expiry
        waiter.join()
        assert entered.is_set()


def test_lost_lease_is_reported(tmp_path, caplog):
    """A holder whose lease another one has taken over, for example while it was suspended, warns, and cleans up."""
    files = RemoteFiles(f"file://{tmp_path}/remote")
    leases = RemoteLeases(files, LocalLeases(tmp_path / "local"), LeaseTiming(heartbeat=0.05))
    with leases.hold(KEY):
        [name] = files.names("leases")
        files.move(name, f"{name[:-1]}1")
        _wait_for(lambda: "taken over" in caplog.text)
    assert files.names("leases") == [f"{name[:-1]}1"]


def test_outage_does_not_fail_the_holder(tmp_path, caplog):
    """While the store cannot be reached, the holder only warns."""
    files = RemoteFiles(f"file://{tmp_path}/remote")
    leases = RemoteLeases(files, LocalLeases(tmp_path / "local"), LeaseTiming(heartbeat=0.05))
    with leases.hold(KEY):
        (tmp_path / "remote/leases").rename(tmp_path / "away")
        (tmp_path / "remote/leases").write_text("no folder: nothing below it can be read or written")
        _wait_for(lambda: "could not be renewed" in caplog.text)
    assert "could not be released" in caplog.text


@pytest.mark.timeout(20)
@pytest.mark.parametrize("place", ["s3"], indirect=True)
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("notanumber", b"x"),
        ("00000007", b"[" * 100_000),
        ("00000007", b" " * 100_000),
        ("00000007", b'{"holder":"x","beat":0,"held":1e300}'),  # not signed
        ("99999999", b"{}"),
        ("a/b", b"{}"),
    ],
)
def test_what_others_put_in_place_of_a_lease(place, name, content, caplog):
    """A file that is no lease holds nothing up, is removed by the next holder, and is reported once at most."""
    with place.open() as store:
        files = store.leases.files
        files.write(f"leases/{KEY}/{name}", content)
        for _ in range(2):
            assert not store.leases.held()
            assert not store.leases.watch(KEY)()
        with store.leases.hold(KEY):
            assert len(files.names("leases")) == 1
        assert files.names("leases") == []
        assert caplog.text.count("is not used") <= 1


def _wait_for(condition: Callable[[], bool]) -> None:
    while not condition():
        threading.Event().wait(0.01)


def test_waiting_for_a_lease_can_be_interrupted(shared_place, start):
    """Ctrl-C ends a process that waits for a lease."""
    with shared_place.open("victim") as store, store.leases.hold(KEY):
        waiter = start("print('up', flush=True)" + _HOLDER, shared_place.url, str(shared_place.folder / "victim"))
        assert waiter.stdout.readline() == "up\n"
        while waiter.poll() is None:
            waiter.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                waiter.wait(0.2)
        assert waiter.stdout.read() == ""
        assert waiter.returncode != 0


def _open_impatient(place, host: str = "impatient") -> Store:
    if place.is_local:
        return place.open(host)
    return RemoteStore(place.url, place.folder / host, timing=LeaseTiming(heartbeat=0.1, expiry=1.5, poll=0.1))
