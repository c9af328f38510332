"""How far a long stage is: a bar in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import pty
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from pteforge.flows.cli.progress import Bar, Lines, bar_on
from pteforge.flows.seldom import Seldom, samples_done
from pteforge.tasks.catalog import StageName
from pteforge.tasks.params import QuantizeParams, TargetParams
from pteforge.tasks.steps import Step
from rich.console import Console

pytestmark = pytest.mark.timeout(600)

QUANTIZED = {"source": "nets:linear", "calibration": {"forward": {"dataset": "waiting:Batches"}}}


@pytest.fixture
def step() -> Step:
    """A step that takes samples."""
    params = QuantizeParams(quantizers=(TargetParams(name="xnnpack"),))
    return Step("quantize/forward", StageName.QUANTIZE, params, {}, ("int8",))


def test_lines_are_seldom(step, capsys):
    """Without a terminal, a stage says how far it is after a while; within that, nothing."""
    Lines().progressed("net", step, 1, 1000)
    assert capsys.readouterr().err == ""
    often = Lines(pause=0)
    often.progressed("net", step, 120, 1000)
    often.progressed("net", step, 121, None)
    assert capsys.readouterr().err == ("net quantize/forward: 120 of 1000 samples\nnet quantize/forward: 121 samples\n")


def test_seldom():
    """Nothing is due at once, and after a pause that has passed it is due once."""
    assert not Seldom(pause=60).due()
    ended = Seldom(pause=-1)
    assert ended.due()
    assert samples_done(3, 7) == "3 of 7 samples"


def test_bar_of_a_stage(step):
    """A stage that counts has a bar of its own, which is there for as long as the stage runs, also where it fails."""
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with bar_on(console) as progress:
        bar = Bar(progress, models=2)
        bar.progressed("net", step, 120, 1000)
        bar.progressed("other", step, 5, None)
        told = [(task.description, task.completed, task.total) for task in progress.tasks[1:]]
        assert told == [("net quantize/forward", 120, 1000), ("other quantize/forward", 5, None)]
        bar.progressed("net", step, 121, 1000)
        assert progress.tasks[1].completed == 121
        bar.failed("net", step, ValueError("no"))
        assert [task.description for task in progress.tasks[1:]] == ["other quantize/forward"]


_DRIVER = """
import sys
from pteforge.flows.cli import run_command
from pteforge.flows.seldom import Seldom
Seldom.due = lambda self: True  # each sample is logged, and not one in a while
sys.argv = ["pteforge", "export", "zoo.yaml"]
sys.exit(run_command())
"""


@pytest.mark.slow
def test_calibration(room):
    """While samples are stored, the terminal shows how many of how many there are, and the task run's log tells it."""
    recipe = {"extends": "xnnpack-int8-static", "verify": {"min_sqnr_db": None}}
    room.zoo({"net": QUANTIZED}, ("int8",), {"int8": recipe})
    os.mkfifo(room.folder / "proceed")
    home = room.folder / "prefect"
    environment = room._environment({"COLUMNS": "140", "TERM": "xterm", "PREFECT_HOME": str(home)})
    command = [sys.executable, "-c", _DRIVER]
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command, cwd=room.folder, env=environment, stdout=subprocess.DEVNULL, stderr=theirs
    ) as process:
        os.close(theirs)
        shown = b""
        while not re.search(rb"net calibration/forward.*1/3.*samples", shown):
            shown += (chunk := read_terminal(ours))
            assert chunk, shown.decode()
        (room.folder / "proceed").write_text("")
        while read_terminal(ours):
            pass
        os.close(ours)
    assert process.returncode == 0
    assert (room.out / "net" / "int8.pte").exists()
    assert ("net quantize/forward/int8", "3 of 3 samples") in logged(home)


def logged(home: Path) -> list[tuple[str, str]]:
    """Names of task runs and what they logged, in the database of a server that was part of the run."""
    with contextlib.closing(sqlite3.connect(home / "prefect.db")) as database:
        return database.execute(
            "select task_run.name, log.message from log join task_run on task_run.id = log.task_run_id"
        ).fetchall()


def read_terminal(fd: int) -> bytes:
    """What a terminal is given next; nothing once everybody has left it, which Linux tells by an error."""
    try:
        return os.read(fd, 1 << 16)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return b""
