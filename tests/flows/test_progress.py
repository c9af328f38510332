"""The pace of a run: progress in a terminal and elsewhere, the time that is left, stages that wait for memory."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
import os
import pty
import re
import sqlite3
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from pteforge.artifacts.digest import digest_bytes
from pteforge.artifacts.runs import StageOutcome
from pteforge.artifacts.store import open_store
from pteforge.configs.model import Limits
from pteforge.configs.zoo import RunConfig
from pteforge.flows.cli.progress import Bar, Failures, Lines
from pteforge.flows.run.outcome import ModelOutcome
from pteforge.flows.run.progress import ExpectedStage, Pace, ZooObserver
from pteforge.flows.run.session import stage_memory
from pteforge.flows.run.zoo import find_models, lower_rest
from pteforge.tasks.engine.executor import LocalRunner
from pteforge.tasks.engine.keys.code import StageKey
from pteforge.tasks.engine.runner import Done, StageCall, StageId
from pteforge.tasks.engine.workers import Workers, memory_for_calls
from pteforge.tasks.quantize.stages.quantize import Quantize
from pteforge.tasks.targets import TargetParams
from pteforge.tests.flows.conftest import open_run
from rich.console import Console

QUANTIZED = {"source": "nets:linear", "calibration": {"forward": {"dataset": "waiting:Batches"}}}


def call(model: str = "net") -> StageCall:
    """A call of a stage that reports samples."""
    params = Quantize.Params(quantizers=(TargetParams(name="xnnpack"),))
    return StageCall(model, StageId("quantize", "forward"), Quantize, params, {}, Limits(), Path())


def test_lines_are_throttled(capsys):
    """Without a terminal, progress lines are rate-limited."""
    Lines(Failures()).progressed(call(), 1, 1000)
    assert capsys.readouterr().err == ""
    often = Lines(Failures(), pause=0)
    often.progressed(call(), 120, 1000)
    often.progressed(call(), 121, None)
    assert capsys.readouterr().err == ("net quantize/forward: 120 of 1000 samples\nnet quantize/forward: 121 samples\n")


def done(made: StageCall, *, cached: bool = False, seconds: float = 4.0) -> Done:
    """The result of a call."""
    key = StageKey(made.stage.name, digest_bytes(b"code"), {}, {}, {})
    return Done(made, key, {}, cached=cached, seconds=seconds)


class Screen:
    """What a terminal of a size shows of a run of two models, two stages at once."""

    def __init__(self, width: int = 80, height: int = 24) -> None:
        self.console = Console(file=io.StringIO(), force_terminal=True, width=width, height=height, color_system=None)
        self.pace = Pace()
        self.bar = Bar(self.console, self.pace, Failures(), models=2, at_once=2)

    def lines(self) -> list[str]:
        with self.console.capture() as captured:
            self.console.print(self.bar)
        return [line.rstrip() for line in captured.get().splitlines()]


def test_running_stages_are_listed():
    """Below how many stages are done are all that run, each with its time, and its samples if it counts them."""
    screen = Screen()
    assert "starting workers" in screen.lines()[0]
    for model in ("net", "other"):
        screen.pace.started(call(model))
    screen.bar.progressed(call(), 120, 1000)
    heading, *running = screen.lines()
    assert re.search(r"0/2 stages, 0:0\d, 0/2 models, 0 cached", heading)
    assert [line.split() for line in running] == [
        ["net", "quantize/forward", "120/1000", "samples", "0:00"],
        ["other", "quantize/forward", "0:00"],
    ]
    screen.pace.finished(done(call()))
    screen.bar.finished(done(call()))
    assert [line.split()[0] for line in screen.lines()[1:]] == ["other"]
    screen.pace.failed(call("other"))
    screen.bar.failed(call("other"), ValueError("no"))
    assert "other quantize/forward: no" in screen.console.file.getvalue()
    assert "2/2 stages" in screen.lines()[0]
    assert len(screen.lines()) == 1


@pytest.mark.parametrize(("width", "height"), [(80, 10), (40, 3)])
def test_the_display_fits_the_terminal(width, height):
    """However many stages run and whatever they are called, there is a line for each or for how many more there are."""
    screen = Screen(width, height)
    for number in range(30):
        screen.pace.started(call(f"model_{number}_{'long' * 30}"))
    lines = screen.lines()
    assert max(map(len, lines)) <= width
    assert len(lines) < height or height == 3
    assert lines[-1] == f"  and {30 - (len(lines) - 2)} more"
    assert lines[1].endswith("0:00")


def test_the_time_left_is_estimated():
    """Stages take what they took the last time; those that never ran, what others of their name did.

    Stages that turn out to be cached or not to be there take nothing.
    """
    pace = Pace()
    assert pace.left(2) is None
    pace.expect("net", {"net/a": ExpectedStage("edge", 30.0), "net/b": ExpectedStage("verify", 10.0)})
    pace.expect("other", {"other/a": ExpectedStage("edge", None), call("other").slot: ExpectedStage("quantize", None)})
    assert (pace.done, pace.known) == (0, 4)
    assert pace.left(2) == (30 + 10 + 30 + 20) / 2
    assert pace.left(8) == 30  # the longest
    pace.started(call("other"))
    pace.finished(done(call("other"), cached=True))
    assert (pace.done, pace.known, pace.cached) == (1, 4, 1)
    assert pace.left(2) == pytest.approx(35, rel=1e-2)
    found = (
        StageOutcome(f"other/{stage}", stage, None, (), "cached", None) for stage in ("edge", "quantize", "report")
    )
    pace.completed(ModelOutcome("other", (), tuple(found)))
    assert (pace.done, pace.known, pace.cached, pace.models) == (3, 5, 3, 1)
    assert pace.left(2) == pytest.approx(30)
    pace.expect("other", {"other/a": ExpectedStage("edge", None)})  # too late
    assert pace.known == 5


@pytest.fixture
def clock(monkeypatch):
    """The time that a pace sees, in seconds: a list of one number."""
    now = [1000.0]
    monkeypatch.setattr("pteforge.flows.run.progress.time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_the_speed_is_what_was_seen(clock):
    """An estimate is right after a tenth of a cold run, whatever passes between stages.

    Half of the stages that plans list are not needed; one that fails, and has few stages, does not count.
    """
    pace, models = Pace(), [f"net_{number}" for number in range(100)]
    stages = {"edge": 3.0, "verify": 1.0, "fold_batch_norms": 0.0, "layers": 0.0}
    pace.ask(models)
    for model in models[:60]:  # the others are not planned yet
        pace.expect(model, {f"{model}/{stage}": ExpectedStage(stage, None) for stage in stages})
    failed = StageOutcome("net_99/export", "export", None, (), "failed", None)
    pace.completed(ModelOutcome("net_99", (), (failed,)))
    for model in models[:10]:
        for stage in ("edge", "verify"):
            made = replace(call(model), id=StageId(stage), stage=SimpleNamespace(name=stage))
            pace.started(made)
            clock[0] += 1.5 * stages[stage]  # one at a time, and half as much again for everything else
            pace.finished(done(made, seconds=stages[stage]))
        ran = [StageOutcome(f"{model}/{stage}", stage, None, (), "ran", None) for stage in ("edge", "verify")]
        pace.completed(ModelOutcome(model, (), tuple(ran)))
    assert pace.known == pytest.approx(200, rel=0.2)
    assert pace.left(2) == pytest.approx(89 * 4 * 1.5, rel=0.2)


def test_the_speed_is_recent(clock):
    """When the machine gets slower, the estimate follows."""
    pace = Pace()
    pace.expect("net", {f"net/{number}": ExpectedStage("edge", 1.0) for number in range(2000)})
    for number in range(1000):
        made = replace(call("net"), id=StageId("edge", str(number)), stage=SimpleNamespace(name="edge"))
        pace.started(made)
        clock[0] += 1 if number < 700 else 4
        pace.finished(done(made, seconds=1.0))
    assert pace.left(1) > 3.5 * 2000


def test_models_that_ran_elsewhere_count(clock):
    """In a work pool, models that are completed say what stages take, and how fast the run is."""
    pace, models = Pace(), [f"net_{number}" for number in range(20)]
    pace.ask(models)
    for model in models:
        pace.expect(model, {f"{model}/edge": ExpectedStage("edge", None)})
    assert pace.left(2) is None
    for model in models[:10]:
        clock[0] += 4
        pace.completed(
            ModelOutcome(model, (), (StageOutcome(f"{model}/edge", "edge", None, (), "ran", None, seconds=8.0),))
        )
    assert pace.left(2) == pytest.approx(10 * 4, rel=0.1)
    assert (pace.done, pace.known) == (10, 20)


def test_an_estimate_has_a_base(clock):
    """A large cold run shows none until it is known what most stages take, and then counts models not planned yet."""
    pace = Pace()
    pace.ask(f"net_{number}" for number in range(150))
    stages = ("quantize", "edge", "partition", "verify")
    pace.started(call("net_0"))
    clock[0] += 1
    pace.finished(done(call("net_0"), seconds=2.0))
    assert pace.left(2) is None
    for model in ("net_0", "net_1"):
        pace.expect(model, {f"{model}/{stage}/forward": ExpectedStage(stage, None) for stage in stages})
    assert pace.left(2) is None
    pace.expect("net_2", {"net_2/edge": ExpectedStage("edge", 8.0), "net_2/verify": ExpectedStage("verify", 30.0)})
    estimate = pace.left(2)
    assert estimate is not None
    assert 150 * 38 / 2 < estimate < 150 * 56 / 2


def test_stages_are_known_before_they_run(lower, warm):
    """Of models that were lowered before, the last run says which stages they have."""
    before = lower(warm, models="linear")
    with Workers(jobs=1) as workers, open_run(warm, workers) as session:
        session.expect_stages()
        assert session.progress.pace.left(1) > 0
        assert not workers.started
    assert session.progress.pace.known >= 2 * len(before.stages["linear"])


def test_what_is_cached_takes_no_time(warm):
    """Of a model of which some stages have to run, those that are in the ledger count, and take nothing."""
    warm.edit("zoo.yaml", "- xnnpack-fp32", "- xnnpack-fp32\n  - xnnpack-int8-dynamic")
    with Workers(jobs=1) as workers, open_run(warm, workers) as session:
        find_models(session)
        session.expect_stages()
    stages = session.progress.planned["linear"]
    assert {slot.split("/")[1] for slot, stage in stages.items() if stage.seconds == 0} >= {"export", "verify"}
    assert all(stage.seconds is None for slot, stage in stages.items() if slot.endswith("int8-dynamic"))
    assert session.progress.pace.known == sum(map(len, session.progress.planned.values()))


def test_plans_say_what_to_expect(warm, tmp_path):
    """Of models that never ran, the look that shows that stages have to run also says which ones to expect."""
    store = open_store(str(tmp_path / "empty"))
    with Workers(jobs=1) as workers, open_run(warm, workers, store=store) as session:
        find_models(session)
        session.expect_stages()
    assert session.progress.pace.known == sum(map(len, session.progress.planned.values())) > len(session.models)


class Watch(ZooObserver):
    """Notes when each stage starts."""

    def __init__(self):
        self.starts = {}

    def started(self, call):
        self.starts[call.slot] = time.monotonic()


@pytest.mark.slow
def test_large_stages_run_one_after_another(warm):
    """Two exports that together took more than there is do not run at once, although cores are free."""
    exports = {"linear/export", "conv/export"}
    with open_store(str(warm.store)) as store:
        past = {slot: store.ledger.last_run(slot).peak_memory for slot in exports}
    warm.edit("nets.py", "def conv", "EDITED = 1\n\n\ndef conv")
    with Workers(jobs=4, memory=sum(past.values()) - 1) as workers, open_run(warm, workers, recipes="po*") as session:
        session.progress.observe(watch := Watch())
        asyncio.run(lower_rest(session, LocalRunner(session.executor, 8, session.progress)))
    assert session.progress.outcome().exit_code == 0
    stages = {stage.slot: stage for model in session.progress.outcomes.values() for stage in model.stages}
    for slot in exports:
        assert stages[slot].predicted_memory == past[slot]
        assert stages[slot].peak_memory > 0
    first, second = sorted(exports, key=watch.starts.__getitem__)
    assert watch.starts[second] - watch.starts[first] >= stages[first].seconds
    assert stages[second].queued > 0


def test_processes_of_this_machine_share_its_memory():
    """A cluster that the run starts divides the machine's memory; one that runs already has it on each machine."""
    assert stage_memory(RunConfig()) == memory_for_calls()
    assert stage_memory(RunConfig(on="dask", workers=4, memory=2**30)) == 2**28
    assert stage_memory(RunConfig(on="dask", workers=4)) == memory_for_calls() // 4
    assert stage_memory(RunConfig(on="dask", address="tcp://a:1", memory=2**30)) == 2**30
    assert stage_memory(RunConfig(on="pool", pool="forge")) is None


_WIDTH = 1 << 22  # rows of 4, 1 and 3 numbers of 4 bytes each: 134 MB of weights
_WEIGHTS = _WIDTH * (4 + 1 + 3) * 4


def peak(project, folder, *models):
    """Peak resident memory of the flow's process, in bytes."""
    wanted = [part for model in models for part in ("--model", model)]
    process = project.start(
        "export", "zoo.yaml", *wanted, "--store", str(folder / "store"), "--out", str(folder / "out"), "--jobs", "1"
    )
    seen = [0]

    def watch():
        status = psutil.Process(process.pid)
        while process.poll() is None:
            try:
                seen.append(status.memory_info().rss)
            except psutil.Error:
                return
            done.wait(0.05)

    done = threading.Event()
    watching = threading.Thread(target=watch)
    watching.start()
    _, said = process.communicate(timeout=280)
    done.set()
    watching.join()
    assert process.returncode == 0, said
    return max(seen)


@pytest.mark.slow
def test_weights_do_not_pass_through_the_flow(project, tmp_path):
    """With 134 MB of weights the flow's process takes less than half of that more than with a few bytes."""
    large = {"builder": "nets:linear", "kwargs": {"width": _WIDTH}}
    project.write_zoo({"small": "nets:linear", "large": {"source": large}}, ("xnnpack-fp32",))
    sizes = {model: peak(project, tmp_path / model, model) for model in ("small", "large")}
    assert (tmp_path / "large" / "out" / "large" / "xnnpack-fp32.pte").stat().st_size > _WEIGHTS
    assert sizes["large"] - sizes["small"] < _WEIGHTS / 2  # what a run takes varies by some 30 MB


_DRIVER = """
import sys
from pteforge.tests.command import run_command
from pteforge.flows.run.progress import Throttle
Throttle.due = lambda self: True  # log each sample
sys.argv = ["pteforge", "export", "zoo.yaml"]
sys.exit(run_command())
"""


@pytest.mark.slow
def test_calibration(project):
    """While samples are stored, the terminal shows their number and total, and so does the log of the task run."""
    recipe = {"extends": "xnnpack-int8-static", "verify": {"min_sqnr_db": None}}
    project.write_zoo({"net": QUANTIZED}, ("int8",), {"int8": recipe})
    os.mkfifo(project.folder / "proceed")
    home = project.folder / "prefect"
    environment = project.environment({"COLUMNS": "140", "TERM": "xterm", "PREFECT_HOME": str(home)})
    command = [sys.executable, "-c", _DRIVER]
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command, cwd=project.folder, env=environment, stdout=subprocess.DEVNULL, stderr=theirs
    ) as process:
        os.close(theirs)
        shown = b""
        while not re.search(rb"net calibration/forward.*1/3.*samples", shown):
            shown += (chunk := read_terminal(ours))
            assert chunk, shown.decode()
        (project.folder / "proceed").write_text("")
        while read_terminal(ours):
            pass
        os.close(ours)
    assert process.returncode == 0
    assert (project.out / "net" / "int8.pte").exists()
    assert ("net quantize/forward/int8", "3 of 3 samples") in logged(home)


def logged(home: Path) -> list[tuple[str, str]]:
    """Names of task runs and their log messages, from the database of the embedded server."""
    with contextlib.closing(sqlite3.connect(home / "prefect.db")) as database:
        return database.execute(
            "select task_run.name, log.message from log join task_run on task_run.id = log.task_run_id"
        ).fetchall()


def read_terminal(fd: int) -> bytes:
    """The next output of a terminal; empty once its other side is closed, which Linux reports as an error."""
    try:
        return os.read(fd, 1 << 16)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return b""
