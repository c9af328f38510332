"""Runs on a Prefect server: recorded whole, also where everything was cached; judged by what was made."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_cached_run_is_recorded(warm, recorded, on_server):
    """With a server, a run in which nothing has to be done is recorded too: a completed flow, every model `Cached`."""
    done = warm.export("--json", "--out", str(warm.out), env=on_server)
    assert done.code == 0, done.err
    assert done.json["stages"] == {"ran": 0, "cached": 26}
    known = recorded(warm)
    run = known.flow_run()
    assert (run.name, run.state.name) == ("export zoo.yaml", "Completed")
    models = known.task_runs(2)
    assert {name: model.state.name for name, model in models.items()} == {
        "model linear": "Cached",
        "model conv": "Cached",
    }
    assert models["model conv"].tags == ["model:conv"]


def test_model_without_a_recipe_is_recorded(warm, recorded, on_server):
    """A model that none of its recipes applies to is a completed task run of its own name, which says why."""
    recipes = {
        name: {"extends": name, "not_for": {"linear": f"not {name}"}} for name in ("portable-fp32", "xnnpack-fp32")
    }
    warm.zoo({"linear": "nets:linear", "conv": "nets:conv"}, own=recipes)
    done = warm.export("--json", "--out", str(warm.out), env=on_server)
    assert done.code == 0, done.err
    models = recorded(warm).task_runs(2)
    assert {name: model.state.name for name, model in models.items()} == {
        "model linear": "NotApplicable",
        "model conv": "Cached",
    }
    assert "xnnpack-fp32 does not apply: not xnnpack-fp32" in models["model linear"].state.message


def test_stages_are_recorded(warm, recorded, on_server):
    """Stages that ran and stages that were found are task runs with names, tags and states; a failure is the flow's."""
    warm.write(
        "more.yaml",
        "version: 1\ninclude: [zoo.yaml]\nmodels:\n  bad: {source: 'faulty:crashes', recipes: [portable-fp32]}\n",
    )
    done = warm.run(
        "export", "more.yaml", "--set", "models.conv.verify={min_sqnr_db: 90}", "--out", str(warm.out), env=on_server
    )
    assert done.code == 1
    assert not any("prefect" in line.lower() or "|" in line for line in done.err.splitlines())
    known = recorded(warm)
    run = known.flow_run()
    assert (run.name, run.state.name) == ("export more.yaml", "Failed")
    assert "1 of the files" in run.state.message
    tasks = known.task_runs(3 + 13 + 1)
    states = {name: task.state.name for name, task in tasks.items()}
    assert states["model linear"] == "Cached"
    assert states["model conv"] == "Completed"
    assert states["model bad"] == states["bad export"] == "Failed"
    assert states["conv export"] == states["conv compile/xnnpack-fp32"] == "Cached"
    assert states["conv verify/xnnpack-fp32"] == states["conv report/xnnpack-fp32"] == "Completed"
    assert "killed by SIGSEGV" in tasks["bad export"].state.message
    assert set(tasks["conv compile/xnnpack-fp32"].tags) == {"stage:compile", "model:conv", "recipe:xnnpack-fp32"}
    assert set(tasks["conv export"].tags) == {
        "stage:export",
        "model:conv",
        "recipe:portable-fp32",
        "recipe:xnnpack-fp32",
    }


def test_stages_of_a_model_that_fails_stay_what_they_are(room, recorded, on_server):
    """What was made or found before a stage failed is kept, and shows as completed or cached, not as rolled back."""
    gate = {"evaluator": "scoring:finite", "floor": 1.5}
    room.zoo({"net": "nets:linear"}, ("scored",), {"scored": {"extends": "portable-fp32", "accuracy": gate}})
    made = room.export("--out", str(room.out), env=on_server)
    states = {name: task.state.name for name, task in recorded(room).task_runs(8).items()}
    assert made.code == 1, made.err
    assert states.pop("model net") == states.pop("net gate/scored") == "Failed"
    assert set(states.values()) == {"Completed"}

    found = room.export("--out", str(room.out), env=on_server)
    assert found.code == 1, found.err
    states = {name: task.state.name for name, task in recorded(room).task_runs(8).items()}
    assert states.pop("model net") == states.pop("net gate/scored") == "Failed"
    assert set(states.values()) == {"Cached"}


def test_scores_are_a_table(warm, recorded, on_server):
    """What files scored is an artifact of the model's task run: a table with a row for each."""
    gate = {"evaluator": "scoring:finite", "floor": 0.5}
    warm.zoo({"Small_net": "nets:linear"}, ("scored",), {"scored": {"extends": "portable-fp32", "accuracy": gate}})
    done = warm.export("--out", str(warm.out), env=on_server)
    assert done.code == 0, done.err
    table = recorded(warm).table("accuracy-small-net")
    assert [(row["recipe"], row["score"], row["floor"], row["eager"]) for row in table] == [("scored", 1.0, 0.5, None)]


def test_numerics_are_tables(warm, recorded, on_server):
    """A ladder is a table of the model's task run; what bisect finds is a page and a plot on the server, too."""
    laddered = {"extends": "portable-fp32", "verify": {"ladder": True}}
    warm.zoo({"conv": "nets:conv"}, ("laddered",), {"laddered": laddered})
    done = warm.export("--out", str(warm.out), env=on_server)
    assert done.code == 0, done.err
    table = recorded(warm).table("numerics-conv")
    assert {row["recipe"] for row in table} == {"laddered"}
    assert table[0]["SQNR"] == "exact"
    assert [row["rung"] for row in table] == ["exported", "edge", "payload"]

    looked = warm.run("bisect", "zoo.yaml", "conv/laddered", env=on_server)
    assert (looked.code, looked.err) == (0, "")
    known = recorded(warm)
    page = known.artifact("bisect-conv-laddered")
    assert "# conv/laddered" in page
    assert "| exported | forward | 0 | 0 | exact |" in page
    assert known.artifact("bisect-conv-laddered-plot").startswith("data:image/png;base64,iVBOR")


@pytest.mark.parametrize(
    ("entrypoint", "parameters", "models"),
    [
        ("pteforge.flows.export_zoo:export_zoo", {"models": "*"}, {"linear", "conv"}),
        ("pteforge.flows.export_model:export_model", {"model": "conv"}, {"conv"}),
    ],
)
def test_entrypoints(warm, server, recorded, entrypoint, parameters, models):
    """Deployments load the flows by entrypoint and run them with parameters that are plain JSON."""
    program = f"""
import json, sys
from prefect.flows import load_flow_from_entrypoint
flow = load_flow_from_entrypoint({entrypoint!r})
parameters = flow.validate_parameters(json.loads(sys.argv[1]))
state = flow(**parameters, return_state=True)
print(json.dumps([state.name, state.result()]))
"""
    given = {
        "zoo": str(warm.folder / "zoo.yaml"),
        "store": str(warm.store),
        "out": str(warm.out),
        "overrides": ["models.conv.seed=0"],
        "jobs": 1,
        **parameters,
    }
    done = run_python(warm.folder, program, given, {"PREFECT_API_URL": server})
    name, result = done
    assert name == "Completed"
    assert set(result["models"]) == models
    assert result["exit_code"] == 0
    states = {task.state.name for task in recorded(warm).task_runs(len(models)).values()}
    assert states == {"Cached"}


def test_failed_flow_raises_where_it_is_called(warm, server, recorded):
    """A flow that is called from Python raises if a file could not be made, and what could be made is there."""
    warm.edit("zoo.yaml", "nets:conv", "faulty:misunderstood")
    program = """
import json, sys
from pteforge.flows.export_zoo import export_zoo
try:
    export_zoo(**json.loads(sys.argv[1]))
except Exception as error:
    print(json.dumps(str(error)))
"""
    (warm.out / "linear" / "portable-fp32.pte").unlink()
    given = {"zoo": str(warm.folder / "zoo.yaml"), "store": str(warm.store), "out": str(warm.out)}
    message = run_python(warm.folder, program, given, {"PREFECT_API_URL": server})
    assert "2 of the files were not made" in message
    assert (warm.out / "linear" / "portable-fp32.pte").exists()
    assert recorded(warm).flow_run().state.name == "Failed"


def test_interrupted_run_is_recorded(room, recorded, on_server):
    """Ctrl-C of a run is told to the server: its flow run does not look as if it went on."""
    room.zoo({"patient": "waiting:patient"}, ("portable-fp32",))
    os.mkfifo(room.folder / "running")
    os.mkfifo(room.folder / "proceed")
    with room.start("export", "zoo.yaml", "--out", str(room.out), env=on_server) as process:
        assert (room.folder / "running").read_text()
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(60) == 130
    assert recorded(room).flow_run().state.name == "Crashed"


def run_python(folder: Path, program: str, argument: Any, environment: dict[str, str]) -> Any:
    """The last line that a Python program prints, as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps(argument)],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
