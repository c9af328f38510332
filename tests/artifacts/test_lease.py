"""What is said while another process has a lease; who counts as dead after times when a store was out of reach."""

import contextlib
import logging
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pteforge.artifacts import lease
from pteforge.artifacts.digest import digest_bytes
from pteforge.artifacts.lease import Lease, LocalLeases, RemoteLeases, Silence
from pteforge.artifacts.remote_files import RemoteFiles
from pteforge.errors import LeaseLost

KEY = digest_bytes(b"a stage")
_HOLD = """
import sys, time
from pathlib import Path
from pteforge.artifacts.lease import LocalLeases
with LocalLeases(Path(sys.argv[1])).hold(sys.argv[2], "net edge"):
    print("held", flush=True)
    time.sleep(100)
"""


@contextlib.contextmanager
def holder(folder) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lease until it is killed."""
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(folder), KEY], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("stopped", [False, True])
def test_wait_is_told_once(tmp_path, monkeypatch, caplog, stopped):
    """Whoever waits says after a while what it waits for, and which process to continue or end if that is stopped."""
    monkeypatch.setattr(lease, "QUIET_WAIT", 0.2)
    with holder(tmp_path) as other:
        if stopped:
            other.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, other.pid, os.WSTOPPED)
        threading.Timer(1.0, other.kill).start()
        with LocalLeases(tmp_path).hold(KEY, "net edge"):
            pass
    (said,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert said.startswith(f"waiting for process {other.pid}")
    assert said.endswith(", which runs net edge")
    assert (f"`kill -CONT {other.pid}` continues it" in said) == stopped


def test_short_wait_is_not_told(tmp_path, caplog):
    """Nothing is said of a wait that ends soon."""
    with holder(tmp_path) as other:
        threading.Timer(0.2, other.kill).start()
        began = time.monotonic()
        with LocalLeases(tmp_path).hold(KEY, "net edge"):
            assert time.monotonic() - began > 0.1
    assert not caplog.records


class Clock:
    """Stands for the module `time`; sleeping takes no time."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Away(RemoteFiles):
    """A store in memory that is out of reach from time to time: calls wait until it answers again, as they do."""

    def __init__(self, url: str, clock: Clock, outages: Sequence[tuple[float, float]], *, silent: bool) -> None:
        super().__init__(url)
        self.clock, self.outages, self.silent = clock, outages, silent

    def _call(self, participle: str, action: Callable[[], Any], expected: type[OSError] | None = None) -> Any:
        for begin, end in self.outages:
            if begin <= self.clock.now < end:
                if not self.silent:  # one that says nothing is only noticed by the time that it takes
                    self._outages.failed = end
                self.clock.now = end
        return super()._call(participle, action, expected)


class World:
    """A holder of a lease and an observer on another host, on one clock."""

    def __init__(self, monkeypatch: Any, folder: Any, outages: Sequence[tuple[float, float]], *, silent: bool) -> None:
        self.clock = Clock()
        monkeypatch.setattr(lease, "time", self.clock)
        url = f"memory://{secrets.token_hex(8)}"
        shifted = [(self.clock.now + begin, self.clock.now + end) for begin, end in outages]
        self.outages = shifted
        self.holders, self.observers = (
            RemoteLeases(Away(url, self.clock, shifted, silent=silent), LocalLeases(folder / host))
            for host in ("holder", "observer")
        )

    def watch(self, held: Lease, *, until: float = 800.0, dies: float = 1e9) -> Iterator[tuple[float, bool]]:
        """Times, and whether the observer sees that the lease is held, until it is not.

        The holder renews it every 10 s, unless it is dead, and begins with that 25 s after the end of an outage.
        """
        start, beat, seen = self.clock.now, self.clock.now, self.observers.watch(KEY)
        while self.clock.now - start < until:
            now = self.clock.now
            met = any(begin < beat + 10 and now < end + 25 for begin, end in self.outages)
            if now >= beat + 10 and not met and now - start < dies:
                held.renew()
                beat = now
            is_held = seen()
            yield self.clock.now - start, is_held
            if not is_held:
                return
            self.clock.now += 2.0


ROWS = [
    [(5.0, 25.0)],
    [(5.0, 55.0)],
    [(30.0, 330.0)],
    [(20.0, 70.0), (110.0, 160.0), (200.0, 250.0)],
    [(10.0 + 60 * index, 60.0 + 60 * index) for index in range(10)],  # up for 10 s each time
]


@pytest.mark.parametrize("silent", [False, True], ids=["refused", "no answer"])
@pytest.mark.parametrize("outages", ROWS, ids=str)
def test_outages_kill_nobody(tmp_path, monkeypatch, outages, silent):
    """Whoever was blind itself takes no living holder for dead, after one outage or many; nor is its lease lost."""
    world = World(monkeypatch, tmp_path, outages, silent=silent)
    with world.holders.hold(KEY) as held:
        assert all(seen for _, seen in world.watch(held))
        held.check()


@pytest.mark.parametrize("silent", [False, True], ids=["refused", "no answer"])
@pytest.mark.parametrize("outages", [[], *ROWS[:4]], ids=str)
def test_the_dead_are_found_after_outages(tmp_path, monkeypatch, outages, silent):
    """A holder that died is found out as soon as the store has answered for as long as leases take to expire."""
    world = World(monkeypatch, tmp_path, outages, silent=silent)
    with world.holders.hold(KEY) as held:
        *_, (last, seen) = world.watch(held, dies=0.0)
        assert not seen
        back = max((end for begin, end in outages if begin < last), default=0.0)
        assert 45 < last - back < 60


def test_stopped_observer(tmp_path, monkeypatch):
    """An observer that was stopped for minutes, or slept between looks, has not heard nothing for so long."""
    world = World(monkeypatch, tmp_path, [], silent=False)
    with world.holders.hold(KEY) as held:
        seen = world.observers.watch(KEY)
        assert seen()
        for _ in range(5):
            world.clock.sleep(300.0)
            held.renew()
            world.clock.sleep(300.0)
            assert seen()


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100), st.booleans(), st.booleans()), max_size=8))
def test_silence_is_what_was_observed(looks):
    """Silence is at most the time since the last sign of life, the last failure and the last look that took long."""
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock()
        patch.setattr(lease, "time", clock)
        silence, since = Silence(15.0), clock.now
        for pause, took, heard, failed in looks:
            clock.now += pause
            began = clock.now
            clock.now += took
            seconds = silence.look(began, heard=heard, failed=began if failed else -1.0)
            if heard or failed or took > 15.0:
                assert seconds == 0.0
                since = clock.now
            assert 0.0 <= seconds <= clock.now - since + 1e-6


def test_lease_that_another_took_over(tmp_path, monkeypatch, caplog):
    """A holder that others could not hear for long looks before it publishes, and leaves the lease to the new one."""
    world = World(monkeypatch, tmp_path, [], silent=False)
    with world.holders.hold(KEY) as lost:
        *_, (_, seen) = world.watch(lost, dies=0.0)
        assert not seen
        with world.observers.hold(KEY) as held:
            with pytest.raises(LeaseLost):
                lost.check()
            assert lost.lost
            held.renew()
            held.check()
            assert not held.lost
        assert "taken over" in caplog.text
        with world.observers.hold(KEY) as again:  # has the name of the first one
            lost.renew()
            again.renew()
            assert not again.lost
    assert world.observers.files.names("leases") == []


def test_lease_that_was_only_removed(tmp_path, monkeypatch):
    """A holder whose lease was removed while nobody wanted it has it again."""
    world = World(monkeypatch, tmp_path, [], silent=False)
    with world.holders.hold(KEY) as held:
        world.observers.files.delete(world.observers.files.names("leases")[0])
        held.renew()
        held.check()
        assert world.observers.watch(KEY)()


@pytest.mark.parametrize("dead", [False, True])
def test_old_heartbeats_prove_nothing(tmp_path, monkeypatch, dead):
    """Where nobody waits, holders with old heartbeats are watched until they expire; only the dead ones' leases go."""
    world = World(monkeypatch, tmp_path, [], silent=False)
    with world.holders.hold(KEY) as held:
        later, sleep = time.time() + 600.0, world.clock.sleep

        def sleep_and_beat(seconds: float) -> None:
            sleep(seconds)
            if not dead and world.clock.now > 1030.0:
                held.renew()

        world.clock.sleep = sleep_and_beat
        assert set(world.observers.held(later)) == (set() if dead else {KEY})
        assert len(world.observers.files.names("leases")) == (0 if dead else 1)
        began = world.clock.now
        if dead:
            assert world.observers.held(later) == {}
            assert world.clock.now == began  # those that are known to be dead are not waited for again
