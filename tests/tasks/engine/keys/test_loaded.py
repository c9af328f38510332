"""Keys have the code that this process has loaded, or there are none: each case is a process of its own."""

from __future__ import annotations

import sys

import pytest
from pteforge.tests.conftest import run_process

START = """
import importlib, os, sys, pteforge
from pathlib import Path
from pteforge.artifacts.store import Store
from pteforge.configs.model import Limits
from pteforge.errors import StageFailed
from pteforge.tasks.engine.executor import Executor
from pteforge.tasks.engine.keys.code import stage_code_digest
from pteforge.tasks.engine.keys.loaded import *
from pteforge.tasks.engine.keys.loaded import check_distributions, check_own_modules
from pteforge.tasks.engine.keys.search import distribution_versions
from pteforge.tasks.engine.workers import InProcess, WorkerCall, Workers

ROOT = Path(pteforge.__file__).parent
GATE = "pteforge.tasks.verify.stages.gate"

def edit(name="tasks/verify/stages/gate.py"):
    (ROOT / name).write_text((ROOT / name).read_text() + "\\nMORE = 1\\n")

def refused(function, *args, **options):
    try:
        return f"not refused: {function(*args, **options)}"
    except StageFailed as error:
        return str(error)

def called():
    with Workers(preload=(), jobs=1, memory=2**30) as workers:
        return workers.run(WorkerCall("json:loads", "1", Limits())).result
"""


@pytest.fixture
def say(tmp_path, package):
    """Runs a program, which begins as above, with a copy of pteforge; returns what it prints, by lines."""

    def run(program: str) -> list[str]:
        program = f"import sys; sys.path[:0] = ['', {str(package.parent)!r}, {str(tmp_path)!r}]\n{START}{program}"
        done = run_process(sys.executable, "-c", program, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return run


def test_code_is_what_it_was_at_the_start(say):
    """What was edited before it was read has no key, and no worker; other stages have theirs."""
    gate, other, worker = say("""
edit()
print(refused(stage_code_digest, GATE))
print(refused(stage_code_digest, "pteforge.tasks.file.stages.serialize"))
print(refused(called))
""")
    assert all("code has changed" in said and "tasks/verify/stages/gate.py" in said for said in (gate, worker))
    assert "not refused" in other


def test_code_that_is_edited_later(say):
    """Once an executor is there, edits change no key of this process; modules that are loaded after them are refused.

    Those that only carry are not.
    """
    same, worker, carried, late = say("""
Executor(Store(Path("store")), InProcess())
edit()
once = stage_code_digest(GATE)
(ROOT / "tasks/verify/stages/gate.py").unlink()
print(once == stage_code_digest(GATE))
print(refused(called))
edit("tasks/explain/node_losses.py")
print(refused(check_own_modules, lambda name: False))
sys.modules["pteforge.tasks.explain.node_losses"] = type(sys)("late")
sys.modules["pteforge.tasks.explain.node_losses"].__file__ = str(ROOT / "tasks/explain/node_losses.py")
print(refused(check_own_modules, lambda name: name.startswith("pteforge.tasks.explain.")), end="; ")
print(refused(check_own_modules, lambda name: False))
""")
    assert same == "True"
    assert "tasks/verify/stages/gate.py" in worker
    assert "not refused" in carried
    assert late.startswith("not refused")
    assert late.endswith("restart workers that live longer than a run")
    assert "tasks/explain/node_losses.py" in late


def test_workers_have_loaded_the_same(say):
    """A server that is started after an edit of what only carries is refused as well: its starter has other code."""
    assert say("print(called())") == ["1"]
    (said,) = say("edit('artifacts/ref.py')\nprint(refused(called))")
    assert "artifacts/ref.py" in said


def test_packages_that_are_upgraded_in_place(say, tmp_path):
    """A distribution that was replaced since the process started is refused, before and after its version is read."""
    for name in ("acme", "other"):
        folder = tmp_path / f"{name}_ops-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}-ops\nVersion: 1.0\n")
        (folder / "RECORD").write_text(f"{name}_ops.py,,\n")
    said = say("""
print(distribution_versions(["acme_ops"]))
print(refused(check_distributions, ["acme-ops", "python"]))
Path("acme_ops-1.0.dist-info").rename("acme_ops-2.0.dist-info")
print(refused(check_distributions, ["acme-ops"]))
print(refused(check_distributions, ["other-ops", "later"]))
""")
    assert said[0] == "{'acme-ops': '1.0'}"
    assert "not refused" in said[1]
    assert "acme_ops was changed since this process started" in said[2]
    assert "not refused" in said[3]
