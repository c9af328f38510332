"""Progress of a long stage: a bar in a terminal, rate-limited lines elsewhere."""

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
from pteforge.configs.model import Limits
from pteforge.flows.cli.progress import Bar, Lines, bar_on
from pteforge.tasks.runner import StageCall, StageId
from pteforge.tasks.stage import TargetParams
from pteforge.tasks.stages.quantize import Quantize
from rich.console import Console

pytestmark = pytest.mark.timeout(600)

QUANTIZED = {"source": "nets:linear", "calibration": {"forward": {"dataset": "waiting:Batches"}}}


def call(model: str = "net") -> StageCall:
    """A call of a stage that reports samples."""
    params = Quantize.Params(quantizers=(TargetParams(name="xnnpack"),))
    return StageCall(model, StageId("quantize", "forward"), Quantize, params, {}, Limits(), Path())


def test_lines_are_throttled(capsys):
    """Without a terminal, progress lines are rate-limited."""
    Lines().progressed(call(), 1, 1000)
    assert capsys.readouterr().err == ""
    often = Lines(pause=0)
    often.progressed(call(), 120, 1000)
    often.progressed(call(), 121, None)
    assert capsys.readouterr().err == ("net quantize/forward: 120 of 1000 samples\nnet quantize/forward: 121 samples\n")


def test_bar_of_a_stage():
    """A stage that reports samples has a bar of its own while it runs, until it ends or fails."""
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with bar_on(console) as progress:
        bar = Bar(progress, models=2)
        bar.progressed(call(), 120, 1000)
        bar.progressed(call("other"), 5, None)
        shown = [(task.description, task.completed, task.total) for task in progress.tasks[1:]]
        assert shown == [("net quantize/forward", 120, 1000), ("other quantize/forward", 5, None)]
        bar.progressed(call(), 121, 1000)
        assert progress.tasks[1].completed == 121
        bar.failed(call(), ValueError("no"))
        assert [task.description for task in progress.tasks[1:]] == ["other quantize/forward"]


_DRIVER = """
import sys
from pteforge.flows.cli import run_command
from pteforge.flows.throttle import Throttle
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
