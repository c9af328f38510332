"""Ctrl-C and kill -9 of the main process, at any moment: nothing is left behind, and the next run goes on."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psutil
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PROMPT = 5.0  # seconds within which Ctrl-C has to end a run, on a busy machine too
STEPS = 12  # of the two models


@dataclass(frozen=True)
class Run:
    """A running export in a room."""

    room: Any
    process: subprocess.Popen[str]

    def all_processes(self) -> list[psutil.Process]:
        """The main process and all below it."""
        main = psutil.Process(self.process.pid)
        return [main, *main.children(recursive=True)]

    def interrupt(self) -> None:
        """Ctrl-C reaches every process of the terminal's foreground group."""
        os.killpg(self.process.pid, signal.SIGINT)


@pytest.fixture
def paused(room):
    """A zoo of a model that waits in its builder and one that does not, and pipes that tell and steer it."""
    room.zoo({"patient": "waiting:patient", "prompt": "waiting:prompt"}, ("portable-fp32",))
    os.mkfifo(room.folder / "running")
    os.mkfifo(room.folder / "proceed")
    return room


def opening(run):
    """The store was opened just now; nothing is started yet."""
    watch((run.room.store / "version").exists)


def warming_up(run):
    """Worker server and Prefect's server are starting."""
    watch(lambda: len(run.all_processes()) >= 3)


def in_a_stage(run):
    """One builder waits in its process."""
    assert int((run.room.folder / "running").read_text()) > 0


def publishing(run):
    """The first object is in the store."""
    watch(lambda: any((run.room.store / "objects").glob("*/*")))


def first_stage_done(run):
    """One stage of the model that waits for nothing was told to be done."""
    assert "prompt export: " in run.process.stderr.readline()


def first_model_done(run):
    """One of two models is through."""
    assert any(line.startswith("prompt: verified") for line in run.process.stderr)


INTERRUPTED = [opening, warming_up, in_a_stage, publishing, first_stage_done, first_model_done]
KILLED = [warming_up, in_a_stage, publishing, first_model_done]


@pytest.mark.parametrize(
    ("signum", "moment"),
    [*((signal.SIGINT, moment) for moment in INTERRUPTED), *((signal.SIGKILL, moment) for moment in KILLED)],
    ids=lambda value: value.__name__ if callable(value) else value.name,
)
def test_ended_runs_leave_nothing_behind(paused, lower, gone, capfd, moment, signum):
    """All processes end, Ctrl-C promptly and with 130; the store is valid; the next run does what is missing."""
    with started(paused) as run:
        moment(run)
        processes = run.all_processes()
        began = time.monotonic()
        if signum == signal.SIGINT:
            run.interrupt()
        else:
            run.process.kill()
        code = run.process.wait(60)
        took = time.monotonic() - began
        assert all(map(gone, processes))
    with capfd.disabled():
        sys.stdout.write(f"\n{moment.__name__}: ended {took:.2f} s after {signum.name}\n")
    assert code == (130 if signum == signal.SIGINT else -signal.SIGKILL)
    assert took < PROMPT
    assert not list(paused.out.rglob(".*"))  # no half-written file
    verified = paused.run("store", "verify")
    assert verified.code == 0, verified.out
    for pipe in ("running", "proceed"):
        (paused.folder / pipe).unlink()
    finished = len(list((paused.store / "ledger" / "stages").glob("*/*")))
    again = lower(paused)
    assert again.outcome.exit_code == 0
    assert len(again.ran("patient") | again.ran("prompt")) <= STEPS
    assert sum(model.ran for model in again.outcome.models) == STEPS - finished


def test_interrupt_tells_what_to_do(paused):
    """What is printed is one line for people, and nothing of Prefect's or of stages that were stopped."""
    with started(paused) as run:
        in_a_stage(run)
        run.interrupt()
        out, err = run.process.communicate(timeout=60)
    lines = [line for line in err.splitlines() if not line.startswith("prompt")]
    assert lines == ["interrupted; finished stages are kept, run the same command to go on"]
    assert out == ""


def test_terminated_run_leaves_nothing_behind(paused, gone):
    """SIGTERM, as a service manager sends it, ends every process too."""
    with started(paused) as run:
        in_a_stage(run)
        processes = run.all_processes()
        run.process.terminate()
        assert run.process.wait(60) == -signal.SIGTERM
        assert all(map(gone, processes))
    assert paused.run("store", "verify").code == 0


def test_interrupt_while_waiting_for_another_run(paused):
    """A run that waits for a stage which another run computes can be interrupted; the other one goes on to its end."""
    with started(paused) as first:
        in_a_stage(first)
        with started(paused, "--model", "patient", "--out", "elsewhere") as second:
            watch(lambda: leases(second) > 0)
            began = time.monotonic()
            second.interrupt()
            assert second.process.wait(60) == 130
            assert time.monotonic() - began < 2 * PROMPT
        (paused.folder / "proceed").write_text("")
        out, err = first.process.communicate(timeout=120)
    assert first.process.returncode == 0, err
    assert "2 files verified" in out


@contextlib.contextmanager
def started(room, *args: str) -> Iterator[Run]:
    """A running export; whatever happens, nothing of it is left at the end."""
    with room.start("export", "zoo.yaml", *args) as process:
        run = Run(room, process)
        try:
            yield run
        finally:
            if process.poll() is None:
                for each in reversed(run.all_processes()):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        each.kill()


def leases(run):
    """How many lease files the main process has open."""
    return sum("/leases/" in file.path for file in psutil.Process(run.process.pid).open_files())


def watch(condition, limit=120.0):
    """Looks again and again until something is so."""
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.005)
