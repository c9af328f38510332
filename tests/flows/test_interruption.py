"""Ctrl-C and kill -9 of the main process, at any moment: nothing is left behind, and the next run continues."""

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
from pteforge.artifacts.store import open_store
from pteforge.flows.run import recording

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PROMPT = 5.0  # seconds within which Ctrl-C has to end a run, on a busy machine too
STEPS = 12  # of the two models


@dataclass(frozen=True)
class Run:
    """A running export in a project."""

    project: Any
    process: subprocess.Popen[str]

    def all_processes(self) -> list[psutil.Process]:
        """The main process and all below it."""
        main = psutil.Process(self.process.pid)
        return [main, *main.children(recursive=True)]

    def wait_for_builder(self) -> None:
        """Waits until a builder runs in its worker process."""
        assert int((self.project.folder / "running").read_text()) > 0

    def interrupt(self) -> None:
        """Ctrl-C reaches every process of the terminal's foreground group."""
        os.killpg(self.process.pid, signal.SIGINT)


@pytest.fixture
def paused(project):
    """A project with one model that waits in its builder, controlled by named pipes, and one that does not."""
    project.write_zoo({"patient": "waiting:patient", "prompt": "waiting:prompt"}, ("portable-fp32",))
    project.make_pipes()
    return project


def done_line(run, start):
    """Waits for a progress line."""
    assert any(line.startswith(start) for line in run.process.stderr)


MOMENTS = {
    "opening": lambda run: watch((run.project.store / "version").exists),
    "warming up": lambda run: watch(lambda: len(run.all_processes()) >= 3),
    "in a stage": lambda run: run.wait_for_builder(),
    "publishing": lambda run: watch(lambda: any((run.project.store / "objects").glob("*/*"))),
    "first stage done": lambda run: done_line(run, "prompt export: "),
    "first model done": lambda run: done_line(run, "prompt: verified"),
}
KILLED = ("in a stage", "publishing")


@pytest.mark.parametrize(
    ("signum", "moment"),
    [
        *((signal.SIGINT, moment) for moment in MOMENTS),
        *((signal.SIGKILL, moment) for moment in KILLED),
        (signal.SIGTERM, "in a stage"),
    ],
)
def test_ended_runs_leave_nothing_behind(paused, lower, pteforge, capfd, moment, signum):
    """All processes end, on Ctrl-C promptly and with 130; the store is valid; the next run does the rest."""
    with started(paused) as run:
        MOMENTS[moment](run)
        processes = run.all_processes()
        began = time.monotonic()
        if signum == signal.SIGINT:
            run.interrupt()
        else:
            run.process.send_signal(signum)
        code = run.process.wait(60)
        took = time.monotonic() - began
        watch(lambda: all(map(ended, processes)))
    with capfd.disabled():
        sys.stdout.write(f"\n{moment}: ended {took:.2f} s after {signum.name}\n")
    assert code == (130 if signum == signal.SIGINT else -signum)
    assert took < PROMPT
    assert not list(paused.out.rglob(".*"))  # no half-written file
    verified = paused.run("store", "verify")
    assert verified.code == 0, verified.out
    for pipe in ("running", "proceed"):
        (paused.folder / pipe).unlink()
    recorded = {run["status"] for run in pteforge(paused, "runs", "--json").json["runs"]}
    assert recorded <= ({"lost"} if signum == signal.SIGKILL else {"interrupted"})
    if moment in ("first stage done", "first model done"):
        assert "export" in pteforge(paused, "why", "prompt").out, "what was done is recorded"
    finished = len(list((paused.store / "ledger" / "stages").glob("*/*")))
    again = lower(paused)
    assert again.outcome.exit_code == 0
    assert len(again.ran("patient") | again.ran("prompt")) <= STEPS
    assert sum(model.ran for model in again.outcome.models) == STEPS - finished


# Writes a line for each call of torchao, and waits to be killed in the third one.
LAYERED = """
import time
import torch
from pteforge.tasks.quantize import module_transforms
CALLS = {calls!r}
quantize = module_transforms.quantize_

def counted(*args):
    with open(CALLS, "a+") as calls:
        calls.write("called\\n")
        calls.seek(0)
        number = len(calls.readlines())
    if number == 3:
        time.sleep(600)
    return quantize(*args)

def layered():
    module_transforms.quantize_ = counted
    return torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4))), (torch.ones(1, 64),)
"""


def test_finished_layers_of_a_killed_run(project, pteforge, tmp_path):
    """After kill -9 in the middle of a transform, the next run quantizes the other layers only, and `why` says so."""
    calls = tmp_path / "calls"
    project.write("layered.py", LAYERED.format(calls=str(calls)))
    project.write_zoo({"layered": "layered:layered"}, ("xnnpack-int8da-int4w-per-channel",))
    with started(project) as run:
        watch(lambda: calls.exists() and len(calls.read_text().splitlines()) == 3)
        processes = run.all_processes()
        run.process.kill()
        run.process.wait(60)
        watch(lambda: all(map(ended, processes)))
    done = project.export()
    assert done.code == 0, done.err
    assert len(calls.read_text().splitlines()) == 3 + 2
    said = "2 layers quantized before it was interrupted"
    assert said in done.err
    assert said in pteforge(project, "why", "layered").out
    assert not [*(project.store / "unfinished").iterdir()]


def test_interrupted_before_it_begins(project, lower, monkeypatch):
    """Ctrl-C right after the run was first recorded, before any of its work, is recorded, too."""

    def interrupt(_folder):
        raise KeyboardInterrupt

    project.write_zoo({"prompt": "waiting:prompt"}, ("portable-fp32",))
    monkeypatch.setattr(recording, "remove_abandoned_files", interrupt)
    with pytest.raises(KeyboardInterrupt):
        lower(project)
    with open_store(str(project.store)) as store:
        assert [run.status for run in store.runs] == ["interrupted"]


def test_termination_that_an_event_loop_keeps():
    """SIGTERM ends a run even if what Prefect's handler raises is raised in a callback of the event loop."""
    done = subprocess.run([sys.executable, "-c", _KEPT], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGTERM, done.stderr
    assert done.stdout == "interrupted, aborted"


_KEPT = """
import asyncio, os, signal, time
from prefect.utilities.engine import capture_sigterm
from pteforge.flows.run.interrupt import prompt_termination

class Session:
    @property
    def recording(self):
        return self
    def save(self, status):
        print(status, end=", ", flush=True)
    def abort(self):
        time.sleep(1)
        print("aborted", end="", flush=True)

async def wait():
    asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGTERM)
    await asyncio.sleep(50)

with capture_sigterm(), prompt_termination(Session()):
    asyncio.run(wait())
"""


def test_interrupt_message(paused):
    """Ctrl-C prints one line for people, and nothing of Prefect or of stages that were stopped."""
    with started(paused) as run:
        run.wait_for_builder()
        run.interrupt()
        out, err = run.process.communicate(timeout=60)
    lines = [line for line in err.splitlines() if not line.startswith("prompt")]
    assert lines == ["interrupted; finished stages are kept, run the same command to go on"]
    assert out == ""


def test_interrupt_while_waiting_for_another_run(paused):
    """Ctrl-C ends a run that waits for a stage of another run; the other run continues to its end."""
    with started(paused) as first:
        first.wait_for_builder()
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
def started(project, *args: str) -> Iterator[Run]:
    """A running export, all of whose processes are killed at the end."""
    with project.start("export", "zoo.yaml", *args) as process:
        run = Run(project, process)
        try:
            yield run
        finally:
            if process.poll() is None:
                for descendant in reversed(run.all_processes()):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        descendant.kill()


def ended(process):
    """A zombie counts as ended: nobody may be there to reap it."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def leases(run):
    """Number of lease files that the main process has open."""
    return sum("/leases/" in file.path for file in psutil.Process(run.process.pid).open_files())


def watch(condition, limit=120.0):
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.005)
