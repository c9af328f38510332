"""The path from a command or a call to a stage's body is short: functions of ours are counted on a real stack."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pteforge
import pytest
import torch

ROOT = Path(pteforge.__file__).parent

# A function that the body of `edge` calls: it writes down the stack that it is called from, and waits until it may end.
USER_CODE = """
import json, os, pathlib, sys, time

def frames(frame):
    found = []
    while frame:
        found.append([frame.f_code.co_filename, frame.f_code.co_qualname])
        frame = frame.f_back
    return found[::-1]

def passes():
    folder = pathlib.Path(os.environ["PATH_TEST"])
    (folder / "new").write_text(json.dumps(frames(sys._getframe())))
    (folder / "new").rename(folder / "body")
    while not (folder / "seen").exists():
        time.sleep(0.05)
    return []
"""

# Runs the command line. While the body waits, takes the stacks of all threads and tasks a few times.
COMMAND = """
import asyncio, gc, json, os, pathlib, sys, threading, time
sys.path.insert(0, "")
from own import frames
from pteforge.flows.cli import main

def awaited(task):
    found, coroutine = [], task.get_coro()
    while frame := getattr(coroutine, "cr_frame", None):
        found.append([frame.f_code.co_filename, frame.f_code.co_qualname])
        coroutine = coroutine.cr_await
    return found

def watch():
    folder = pathlib.Path(os.environ["PATH_TEST"])
    while not (folder / "body").exists():
        time.sleep(0.05)
    samples = []
    for _ in range(5):
        stacks = [json.loads((folder / "body").read_text()), *map(frames, sys._current_frames().values())]
        stacks += [awaited(each) for each in gc.get_objects() if isinstance(each, asyncio.Task) and not each.done()]
        samples.append(stacks)
        time.sleep(0.1)
    (folder / "samples").write_text(json.dumps(samples))
    (folder / "seen").touch()

threading.Thread(target=watch, daemon=True).start()
main()
"""

RECIPE = {"edge": {"passes": [{"callable": "own:passes"}]}}

# What else runs: Prefect's server, the worker server's watcher, the record and the progress.
ELSEWHERE = {
    "flows/prefect/embedded_server.py",
    "flows/prefect/pages.py",
    "tasks/engine/workers/warm_server.py",
    "flows/run/recording.py",
    "flows/run/session.py",
}


def ours(stack: list[list[str]]) -> list[str]:
    """The functions of pteforge on a stack, as far as the body of a stage."""
    found = []
    for file, function in stack:
        if Path(file).is_relative_to(ROOT) and not Path(file).is_relative_to(ROOT / "tests"):
            found.append(f"{Path(file).relative_to(ROOT)}:{function}")
            if "/stages/" in found[-1]:
                break
    return found


def calling(samples: str) -> list[str]:
    """The functions that wait for the body: those on a stack of each sample."""
    names = [[name for stack in sample for name in ours(stack)] for sample in json.loads(samples)]
    common = set(names[0]).intersection(*names)
    return [name for name in dict.fromkeys(names[0]) if name in common and name.partition(":")[0] not in ELSEWHERE]


@pytest.fixture
def traced(project, monkeypatch):
    """A project with a recipe whose passes write down where they are called from."""
    project.write("own.py", USER_CODE)
    project.write_zoo({"linear": "nets:linear"}, ("traced",), {"traced": {"extends": "xnnpack-fp32", **RECIPE}})
    monkeypatch.setenv("PATH_TEST", str(project.folder))
    return project


@pytest.mark.slow
def test_from_the_command_line(traced):
    """From `pteforge export` to the body of `edge`, through Prefect and a worker process."""
    command = [sys.executable, "-c", COMMAND, "export", "zoo.yaml", "--store", "store"]
    environment = traced.environment({})
    done = subprocess.run(command, cwd=traced.folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    path = calling((traced.folder / "samples").read_text())
    assert {
        "flows/cli/export.py:export",
        "tasks/engine/executor.py:run_stage",
        "tasks/backend/stages/edge.py:Edge.run",
    } <= set(path)
    assert len(path) <= 27, "\n".join(path)
    files = {name.partition(":")[0] for name in path}
    assert len(files) <= 13, "\n".join(sorted(files))


@pytest.mark.slow
def test_from_python(traced, monkeypatch):
    """From `pteforge.export` to the body of `edge`, in the same process."""
    (traced.folder / "seen").touch()
    monkeypatch.syspath_prepend(traced.folder)
    recipe = pteforge.configs.Recipe.model_validate(RECIPE | {"specializations": [{"target": "xnnpack"}]})
    module = torch.nn.Linear(5, 2)
    pteforge.export(module, (torch.ones(1, 5),), recipe=recipe, until="edge", store=traced.store)
    path = ours(json.loads((traced.folder / "body").read_text()))
    assert (path[0], path[-1]) == ("api/export.py:export", "tasks/backend/stages/edge.py:Edge.run")
    assert len(dict.fromkeys(path)) <= 16, "\n".join(path)
