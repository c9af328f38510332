"""The tutorials work: their files and commands, in an empty folder and in order, print what the pages show."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import nbformat
import pteforge
import pytest
from nbclient import NotebookClient
from pteforge.tests.conftest import run_process
from pteforge.tests.flows.server.conftest import running_server

FOLDER = Path(pteforge.__file__).parent / "docs" / "tutorials"
MARK = "run by: tests/test_tutorials.py"
EXITS = {"pteforge plan zoo.yaml": 3, "pteforge export zoo.yaml --set models.bars.accuracy.floor=1.0": 1}


class Block(NamedTuple):
    """A block of a page with the comment before it, and the output that is shown after it."""

    mark: str
    language: str
    text: str
    shown: str


def blocks(page: str) -> Iterator[Block]:
    """The blocks of a page that are not outputs, in order."""
    text = (FOLDER / page).read_text(encoding="utf-8")
    found = re.findall(r"(?:^<!-- (.+?) -->\n)?^```(\w+)\n(.*?)^```\n", text, re.MULTILINE | re.DOTALL)
    for place, (mark, language, content) in enumerate(found):
        following = found[place + 1] if place + 1 < len(found) else ("", "", "")
        if language != "text":
            yield Block(mark, language, content, following[2] if following[1] == "text" else "")


def plain(text: str) -> list[str]:
    """Lines without numbers, units and widths of columns, which differ from machine to machine."""
    text = re.sub(r"[-+]?[\d.]+(e[+-]\d+)?( KiB| B\b| MiB)?", "#", text)
    lines = (" ".join(line.replace("─", "").split()) for line in text.splitlines())
    return [line for line in lines if line not in ("", "...")]


def work_through(page: str, folder: Path, **variables: str) -> dict[str, str]:
    """Writes the files and runs the commands of a page; returns what each block of commands printed."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "COLUMNS": "120", **variables}
    printed: dict[str, str] = {}
    for block in blocks(page):
        assert block.mark.startswith((MARK, "not run: ")), block
        if block.mark.startswith("not run: "):
            continue
        if name := re.match(r"(?:#|//) ([\w/]+\.\w+)\n", block.text):
            (folder / name[1]).parent.mkdir(exist_ok=True)
            (folder / name[1]).write_text(block.text, encoding="utf-8")
            continue
        assert block.language == "bash", block
        done = run_process("bash", "-euc", block.text, cwd=folder, env=environment, timeout=900)
        said = printed[block.text] = done.stdout + done.stderr
        assert done.returncode == EXITS.get(block.text.strip(), 0), said
        missing = [line for line in plain(block.shown) if not any(line in other for other in plain(said))]
        assert missing == [], said
    return printed


@pytest.mark.parametrize(
    "page",
    [
        pytest.param("first-file.md", marks=pytest.mark.slow),
        pytest.param("zoo-with-gates.md", marks=pytest.mark.nightly),
        pytest.param("language-model.md", marks=pytest.mark.nightly),
        pytest.param("into-an-app.md", marks=pytest.mark.nightly),
    ],
)
@pytest.mark.timeout(900)
def test_a_tutorial(page, tmp_path):
    """Each block does what the page says, and prints what the page shows, but for numbers."""
    assert work_through(page, tmp_path)


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_three_machines(tmp_path):
    """The deployment runs on a pool with one worker, and another machine has its files from the store."""
    folder = tmp_path / "zoo"
    folder.mkdir()
    with running_server(tmp_path / "server") as (url, _):
        variables = {"PREFECT_API_URL": url, "PTEFORGE_STORE": str(tmp_path / "store")}
        worker = ["prefect", "worker", "start", "--pool", "forge", "--limit", "3"]
        environment = {**os.environ, **variables, "PREFECT_WORKER_QUERY_SECONDS": "1"}
        with (
            (tmp_path / "worker.log").open("wb") as log,
            # it waits for the pool, which the page creates
            subprocess.Popen(
                [sys.executable, "-m", *worker], cwd=folder, env=environment, stdout=log, stderr=log
            ) as process,
        ):
            try:
                printed = work_through("three-machines.md", folder, **variables)
            finally:
                process.terminate()
    assert any("Completed" in said for said in printed.values())


@pytest.mark.slow
def test_the_notebook(tmp_path, monkeypatch):
    """It runs in a kernel, its tables are HTML, and nothing is written to standard error in any cell."""
    monkeypatch.setenv("PTEFORGE_STORE", str(tmp_path / "store"))
    notebook = nbformat.read(FOLDER / "notebook.ipynb", as_version=4)
    committed = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert {output.get("name", "stdout") for output in (*committed, *outputs)} == {"stdout"}
    assert len(outputs) == len(committed)
    assert sum("text/html" in output.get("data", {}) for output in outputs) == 5
    assert (tmp_path / "keywords.pte").is_file()
