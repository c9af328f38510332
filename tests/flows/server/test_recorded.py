"""Runs on a Prefect server: recorded completely, even when all is cached; their state depends on the files."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal

import pytest
from pteforge.tests.faults.faulty_files import small_disk
from pteforge.tests.flows.server.conftest import eventually, run_python

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_cached_run_is_recorded(warm, recorded, on_server):
    """With a server, a run without work is recorded too: the flow and every model are `Cached`."""
    done = warm.export("--json", "--out", str(warm.out), env=on_server)
    assert done.code == 0, done.err
    assert done.json["stages"] == {"ran": 0, "cached": 26}
    known = recorded(warm)
    run = known.flow_run()
    assert (run.name, run.state.name, run.tags) == ("export zoo.yaml", "Cached", ["zoo:zoo"])
    assert run.state.message == "4 files verified; 0 stages run, 26 cached"
    page = known.artifact("zoo-zoo").splitlines()
    assert "| model | portable-fp32 | xnnpack-fp32 |" in page
    assert any(re.fullmatch(r"\| conv \| (cached, [\d.]+ KiB, [\d.]+ dB \| ){2}", f"{line} ") for line in page)
    assert known.artifact("progress-zoo") == 100
    models = known.task_runs(2)
    assert {name: model.state.name for name, model in models.items()} == {
        "model linear": "Cached",
        "model conv": "Cached",
    }
    assert models["model conv"].tags == ["model:conv"]


# A run whose server takes its progress so slowly that no update is done at the end.
SLOW = """
import asyncio, json, sys
from pteforge.flows.prefect import pages, zoo_flow
pages.acreate_progress_artifact, pages._PATIENCE = lambda *_, **__: asyncio.sleep(3600), 0.1
state = asyncio.run(zoo_flow.export_zoo(**json.loads(sys.argv[1]), return_state=True))
print(json.dumps(state.name))
"""


def test_log_has_every_model(warm, recorded, on_server):
    """The run's log has a line for each model before its last one, however slowly the server takes the progress."""
    warm.edit("zoo.yaml", "nets:conv", "faulty:misunderstood")
    assert run_python(warm.folder, SLOW, parameters(warm), on_server) == ["Failed"]
    known = recorded(warm)
    eventually(lambda: "Finished in state Failed" in known.logged()[-1])
    lines = [line for line in known.logged() if re.match("[12]/2 (linear|conv) ", line)]
    assert [line.split()[:2] for line in lines] == [["1/2", "linear"], ["2/2", "conv"]]


def test_model_without_a_recipe_is_recorded(warm, recorded, on_server):
    """A model without an applicable recipe is a completed task run of its own, which says why."""
    recipes = {
        name: {"extends": name, "not_for": {"linear": f"not {name}"}} for name in ("portable-fp32", "xnnpack-fp32")
    }
    warm.write_zoo({"linear": "nets:linear", "conv": "nets:conv"}, own=recipes)
    done = warm.export("--json", "--out", str(warm.out), env=on_server)
    assert done.code == 0, done.err
    models = recorded(warm).task_runs(2)
    assert {name: model.state.name for name, model in models.items()} == {
        "model linear": "NotApplicable",
        "model conv": "Cached",
    }
    assert "xnnpack-fp32 does not apply: not xnnpack-fp32" in models["model linear"].state.message


def test_stages_are_recorded(warm, recorded, on_server):
    """Stages that ran and cached stages are task runs with names, tags and states; a failed stage fails the flow."""
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
    page = known.artifact("zoo-more")
    assert "| bad | failed at export |" in page
    assert "- bad export: " in page
    tasks = known.task_runs(3 + 13 + 1)
    states = {name: task.state.name for name, task in tasks.items()}
    assert states["model linear"] == "Cached"
    assert states["model conv"] == "Completed"
    assert states["model bad"] == states["bad export"] == "Failed"
    assert states["conv export"] == states["conv compile/xnnpack-fp32"] == "Cached"
    assert states["conv verify/xnnpack-fp32"] == states["conv report/xnnpack-fp32"] == "Completed"
    assert re.fullmatch(r"ran [\d.]+ s, peak memory .+B, outputs .+B", tasks["conv verify/xnnpack-fp32"].state.message)
    assert "killed by SIGSEGV" in tasks["bad export"].state.message
    assert set(tasks["conv compile/xnnpack-fp32"].tags) == {"stage:compile", "model:conv", "recipe:xnnpack-fp32"}
    assert set(tasks["conv export"].tags) == {
        "stage:export",
        "model:conv",
        "recipe:portable-fp32",
        "recipe:xnnpack-fp32",
    }


def test_limited_stages_wait(project, on_server, recorded, prefect):
    """With a concurrency limit on a stage's tag, its runs follow one another; those of other stages do not wait."""
    project.write_zoo({f"net{seed}": {"source": "nets:linear", "seed": seed} for seed in range(3)}, ("portable-fp32",))
    prefect("concurrency-limit", "create", "stage:export", "1")
    try:
        done = project.export("--jobs", "3", "--out", str(project.out), env=on_server)
    finally:
        prefect("concurrency-limit", "delete", "stage:export")
    assert done.code == 0, done.err
    tasks = recorded(project).task_runs(19).values()  # the models have one `edge`, since their graphs are equal
    runs = sorted((task.start_time, task.end_time) for task in tasks if "stage:export" in task.tags)
    assert len(runs) == 3
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(runs))


def test_parameters_are_recorded(warm, on_server, recorded):
    """What the command line chose are the flow run's parameters, so that a copy of the run does the same."""
    chosen = ("--model", "conv", "--recipe", "port*", "--set", "models.conv.seed=0", "--jobs", "1", "--until", "edge")
    done = warm.export(*chosen, "--out", "out", env=on_server)
    assert done.code == 0, done.err
    run = recorded(warm).flow_run()
    assert run.name == "export zoo.yaml conv port*"
    assert run.parameters == {
        "zoo": str(warm.folder / "zoo.yaml"),
        "models": "conv",
        "recipes": "port*",
        "store": str(warm.store),
        "out": str(warm.out),
        "overrides": ["models.conv.seed=0"],
        "places": [],
        "jobs": 1,
        "until": "edge",
        "debug": False,
        "on": None,
        "toolchain": None,
        "publish": None,
        "refresh": False,
    }
    (known,) = warm.run("runs", "--json", "--limit", "1").json["runs"]
    assert known["parameters"] == run.parameters


# A flow whose first attempt fails, since its builder does, and how it ended: state, attempts, stages that ran.
RETRIED = """
import asyncio, json, pathlib, sys
from pteforge.flows.prefect import zoo_flow
attempts, lower = [], zoo_flow.find_models
zoo_flow.find_models = lambda session: attempts.append(lower(session))
flow = zoo_flow.export_zoo.with_options(retries=1, retry_delay_seconds=0)
state = asyncio.run(flow(**json.loads(sys.argv[1]), return_state=True))
stages = state.result()["stages"] if state.is_completed() else str(state.message)
print(json.dumps([state.name, len(attempts), stages]))
"""


def test_retries(project, on_server):
    """Prefect's retries of the flow go on from what is cached. Failures that are due to the input are not tried again.

    The builder `once` crashes as long as there is no file `crashed`, which it makes.
    """
    project.write("once.py", ONCE)
    project.write_zoo({"steady": "nets:linear", "once": "once:once"}, ("portable-fp32",))
    given = parameters(project)
    assert run_python(project.folder, RETRIED, given, on_server) == [["Completed", 2, {"ran": 6, "cached": 6}]]
    project.edit("zoo.yaml", "once:once", "faulty:misunderstood")
    ((name, attempts, message),) = run_python(project.folder, RETRIED, given, on_server)
    assert (name, attempts) == ("Failed", 1)
    assert "1 of the files were not made" in message
    assert "\n" not in message


# The same, where somebody cancels the run of the model `steady` on a work pool during the first attempt.
CANCELS = RETRIED.replace(
    "flow = ",
    """
from types import SimpleNamespace
from prefect.states import Cancelled
from pteforge.flows.prefect.pool import _Pool

async def cancel(session):
    run = SimpleNamespace(name="export zoo.yaml steady", state=Cancelled(message="by hand"))
    models = [model for model in session.models if model.name == "steady" and len(attempts) == 1]
    await _Pool(session, "forge")._conclude(models, run, None, ended=True)

zoo_flow.lower_in_pool = cancel
flow = """,
)


def test_retries_leave_out_what_was_cancelled(project, on_server, recorded):
    """A model whose run on a work pool was cancelled by hand waits for the next run; another failure is tried again."""
    project.write("once.py", ONCE)
    project.write_zoo({"steady": "nets:linear", "once": "once:once"}, ("portable-fp32",))
    given = parameters(project, on="pool", overrides=["run.pool=forge"])
    ((name, attempts, message),) = run_python(project.folder, CANCELS, given, on_server)
    assert (name, attempts) == ("Failed", 2)
    reason = "its run 'export zoo.yaml steady' was cancelled; the next run of the zoo lowers it"
    assert message.endswith(f"1 of the files were not made: {reason}")
    last, first = project.run("runs", "--json").json["runs"]
    assert {run["files"]["steady"]["portable-fp32"]["problem"] for run in (first, last)} == {reason}
    assert [run["models"]["steady"] for run in (first, last)] == [{}, {}]
    assert [run["files"]["once"]["portable-fp32"]["status"] for run in (first, last)] == ["failed", "made"]
    models = recorded(project).task_runs(11)
    assert models["model steady"].state.type.value == "CANCELLED"
    assert project.export("--out", str(project.out), env=on_server).code == 0


ONCE = """
import os, pathlib, torch

def once():
    if not pathlib.Path("crashed").exists():
        pathlib.Path("crashed").touch()
        os.kill(os.getpid(), 11)
    return torch.nn.Linear(5, 2), (torch.ones(1, 5),)
"""


# The first call leaves no space in the store; each attempt of a run makes room before it.
FILLS = """
import pathlib, torch

def fills():
    if pathlib.Path("filled").exists():
        return torch.nn.Linear(5, 2), (torch.ones(1, 5),)
    pathlib.Path("filled").touch()
    with open("store/filler", "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
"""
MAKES_ROOM = RETRIED.replace("lambda session: ", "lambda session: pathlib.Path('store/filler').unlink(True) or ")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
def test_full_disks(project, on_server):
    """A run whose disk was full is tried again: also where a builder has met that first. Each attempt is recorded."""
    project.write("full.py", FILLS)
    project.write_zoo({"full": "full:fills", "steady": "nets:linear"}, ("portable-fp32",))
    project.store.mkdir(mode=0o700)
    with small_disk(project.store, 24 << 20):
        ((name, attempts, stages),) = run_python(project.folder, MAKES_ROOM, parameters(project, jobs=1), on_server)
        assert (name, attempts, stages["ran"] + stages["cached"]) == ("Completed", 2, 12)
        runs = project.run("runs", "--json").json["runs"]
        assert [(run["attempt"], run["status"]) for run in runs] == [(2, "completed"), (1, "failed")]
        problem = runs[1]["files"]["full"]["portable-fp32"]
        assert (problem["bad_input"], problem["findings"][0]["problem"]) == (False, "a disk is full")


def test_earlier_stages_of_a_failed_model(project, recorded, on_server):
    """Stages that ended before another one failed stay completed or cached, and are not rolled back."""
    gate = {"evaluator": "scoring:finite", "floor": 1.5}
    project.write_zoo({"net": "nets:linear"}, ("scored",), {"scored": {"extends": "portable-fp32", "accuracy": gate}})
    for state in ("Completed", "Cached"):
        done = project.export("--out", str(project.out), env=on_server)
        assert done.code == 1, done.err
        states = {name: task.state.name for name, task in recorded(project).task_runs(8).items()}
        assert states.pop("model net") == states.pop("net gate/scored") == "Failed"
        assert set(states.values()) == {state}


def test_text_of_others_is_escaped(project, recorded, on_server):
    """A zoo's name and file name, a builder's exception and its log show as text: on pages, in states and in logs."""
    hostile = "x[b](http://evil)\x1b]0;title\x07\u202e<b>"
    program = (
        f"import sys\ndef fails():\n    print({hostile!r}, file=sys.stderr)\n    raise RuntimeError({hostile!r})\n"
    )
    project.write("hostile.py", program)
    models = {"bad": {"source": "hostile:fails", "recipes": ["portable-fp32"]}}
    zoo = project.write("\u202ezoo.yaml", json.dumps({"version": 1, "name": hostile, "models": models}))
    done = project.run("export", zoo.name, "--out", str(project.out), env=on_server)
    assert done.code == 1, done.err
    known = recorded(project)
    run, tasks = known.flow_run(), known.task_runs(2)
    page, logs = known.artifact("zoo-x-b-http-evil-0-title-b"), known.logged()
    assert run.name == "export \\u202ezoo.yaml"
    texts = [run.name, *run.tags, page, *logs, *(each.state.message for each in (run, *tasks.values()))]
    assert all(line.isprintable() or line == "" for text in texts for line in text.replace("\t", "").split("\n"))
    assert r"# x\[b\](http://evil)\\x1b\]0;title\\x07\\u202e\<b\>" in page.splitlines()
    assert sum(r"x[b](http://evil)\x1b]0;title\x07\u202e<b>" in text for text in texts) >= 5


def test_figures_are_tables(warm, recorded, on_server):
    """Facts and ladders are tables of the model's task run, with a row for each."""
    gate = {"evaluator": "scoring:finite", "floor": 0.5}
    recipes = {
        "scored": {"extends": "portable-fp32", "accuracy": gate},
        "laddered": {"extends": "portable-fp32", "verify": {"ladder": True}},
    }
    models = {"Small_net": ("nets:linear", "scored"), "conv": ("nets:conv", "laddered")}
    warm.write_zoo({name: {"source": source, "recipes": [own]} for name, (source, own) in models.items()}, own=recipes)
    done = warm.export("--out", str(warm.out), env=on_server)
    assert done.code == 0, done.err
    known = recorded(warm)
    facts = {row["name"]: row["value"] for row in known.table("facts-small-net") if row["about"] == "accuracy"}
    assert facts == {"score": "1", "floor": "0.5"}
    table = known.table("numerics-conv")
    assert {row["recipe"] for row in table} == {"laddered"}
    assert table[0]["SQNR"] == "exact"
    assert [row["rung"] for row in table] == ["exported", "edge", "payload"]

    done = warm.run("bisect", "zoo.yaml", "conv/laddered", env=on_server)
    assert (done.code, done.err) == (0, "")
    known = recorded(warm)
    page = known.artifact("bisect-conv-laddered")
    assert "# conv/laddered" in page
    assert "| exported | 0 | 0 | exact |" in page
    assert known.artifact("bisect-conv-laddered-plot").startswith("data:image/png;base64,iVBOR")


def parameters(project, **more):
    """Parameters of a flow, which are plain JSON."""
    return {
        "zoo": str(project.folder / "zoo.yaml"),
        "store": str(project.store),
        "out": str(project.out),
        **more,
    }


BY_ENTRYPOINT = """
import asyncio, json, sys
from prefect.flows import load_flow_from_entrypoint
flow = load_flow_from_entrypoint("pteforge.flows.prefect.zoo_flow:export_model")
parameters = flow.validate_parameters(json.loads(sys.argv[1]))
state = asyncio.run(flow(**parameters, return_state=True))
print(json.dumps([state.name, state.result()]))
"""


def test_entrypoint_of_a_model(warm, on_server, recorded):
    """Work pools load the flow of a model by entrypoint, and run it with parameters that are plain JSON."""
    given = parameters(warm, models="conv", overrides=["models.conv.seed=0"], jobs=1)
    ((name, result),) = run_python(warm.folder, BY_ENTRYPOINT, given, on_server)
    assert (name, set(result["models"]), result["exit_code"]) == ("Cached", {"conv"}, 0)
    assert {task.state.name for task in recorded(warm).task_runs(1).values()} == {"Cached"}


# Two runs at once in one process, and which models each session heard of.
TWO = """
import asyncio, json, sys
from pteforge.flows.run import progress
from pteforge.flows.prefect import zoo_flow
heard = {}
progress.Progress.finished = lambda self, done: heard.setdefault(id(self), set()).add(done.call.model)
async def both(given):
    runs = (zoo_flow.export_zoo(models=model, **given, return_state=True) for model in ("linear", "conv"))
    return await asyncio.gather(*runs)
states = asyncio.run(both(json.loads(sys.argv[1])))
print(json.dumps([[state.name for state in states], sorted(map(sorted, heard.values()))]))
"""


def test_two_runs_at_once_in_one_process(project, on_server):
    """With one store and as many jobs, each run's stages are its own."""
    project.write_zoo({"linear": "nets:linear", "conv": "nets:conv"}, ("portable-fp32",))
    (ended,) = run_python(project.folder, TWO, parameters(project, jobs=1), on_server)
    assert ended == [["Completed", "Completed"], [["conv"], ["linear"]]]


def test_failed_flow_raises_where_it_is_called(warm, on_server, recorded):
    """A flow that is called from Python raises if a file could not be made; the other files are made."""
    warm.edit("zoo.yaml", "nets:conv", "faulty:misunderstood")
    program = """
import asyncio, json, sys
from pteforge.flows.prefect.zoo_flow import export_zoo
try:
    asyncio.run(export_zoo(**json.loads(sys.argv[1])))
except Exception as error:
    print(json.dumps(str(error)))
"""
    (warm.out / "linear" / "portable-fp32.pte").unlink()
    (message,) = run_python(warm.folder, program, parameters(warm), on_server)
    assert "2 of the files were not made" in message
    assert (warm.out / "linear" / "portable-fp32.pte").exists()
    assert recorded(warm).flow_run().state.name == "Failed"


def test_interrupted_run_is_recorded(project, recorded, on_server):
    """After Ctrl-C nothing is still running on the server, and no stage has failed; the run's record says so, too."""
    project.write_zoo({"patient": "waiting:patient"}, ("portable-fp32",))
    project.make_pipes()
    with project.start("export", "zoo.yaml", "--out", str(project.out), env=on_server) as process:
        assert (project.folder / "running").read_text()
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(60) == 130
    known = recorded(project)
    assert known.flow_run().state.name == "Crashed"
    assert not any(task.state.is_failed() for task in known.task_runs(2).values())
    (run,) = project.run("runs", "--json").json["runs"]
    assert run["status"] == "interrupted"
