"""Code that is edited while a run goes on: no stage is recorded under a key of code that has not run."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pteforge.tests.flows.conftest import Project

# The module's loading waits at a pair of named pipes, if they are there.
WAITING = """
from pathlib import Path
if Path({running!r}).exists():
    Path({running!r}).write_text("")
    Path({proceed!r}).read_text()
VALUE = 1
"""
MODULES = {
    "builder": "import torch\ndef make():\n    return torch.nn.Linear(4, 2), (torch.ones(1, 4) * VALUE,)\n",
    "commented": "import torch\ndef make():\n    return torch.nn.Linear(4, 3), (torch.ones(1, 4) * VALUE,)\n",
    "helper": "SIZE = 5 + VALUE\n",
    "transform": "def keep(module):\n    return module\n",
    "evaluator": "def score(predict):\n    return float(VALUE)\n",
    "dataset": "import torch\ndef batches():\n    return [(torch.ones(2, 4) * VALUE,)] * 3\n",
    "quantize_pass": "def keep(module):\n    return module\n",
    "edge_pass": "from executorch.exir.pass_base import ExportPass\nclass Idle(ExportPass):\n    pass\n",
}
LOADS_HELPER = (
    "import importlib, torch\ndef make():\n    size = importlib.import_module('hel' + 'per').SIZE\n"
    "    return torch.nn.Linear(4, size), (torch.ones(1, 4),)\n"
)
INT8 = {"quantizer": "xnnpack"}
XNNPACK = {"specializations": [{"target": "xnnpack"}], "verify": {"min_sqnr_db": None}}
OWN = {
    "transformed": XNNPACK | {"source_transforms": [{"callable": "transform:keep"}]},
    "judged": XNNPACK | {"accuracy": {"evaluator": "evaluator:score", "floor": 0.5}},
    "calibrated": XNNPACK | {"quantize": INT8},
    "passed": XNNPACK | {"quantize": INT8 | {"pre_prepare_passes": [{"callable": "quantize_pass:keep"}]}},
    "edged": XNNPACK | {"edge": {"passes": [{"callable": "edge_pass:Idle"}]}},
}
STAGES = {  # by the module that is edited: the model, and the stage that runs it
    "builder": ("builder", "export"),
    "helper": ("helper", "export"),
    "transform": ("transformed", "source_transform/forward/transformed"),
    "evaluator": ("judged", "evaluate/judged"),
    "dataset": ("calibrated", "calibration/forward/calibrated"),
    "quantize_pass": ("passed", "quantize/forward/passed"),
    "edge_pass": ("edged", "edge/forward/edged"),
}


@pytest.mark.slow
def test_edits_of_user_code_in_the_middle(project, lower):
    """A stage whose code was edited after it was loaded is not recorded, of any kind; one with a new comment is."""
    pipes = {name: [str(project.folder / f"{end}-{name}") for end in ("running", "proceed")] for name in MODULES}
    for name, text in MODULES.items():
        running, proceed = pipes[name]
        project.write(f"{name}.py", WAITING.format(running=running, proceed=proceed) + text)
        os.mkfifo(running)
        os.mkfifo(proceed)
    project.write("loads_helper.py", LOADS_HELPER)
    linear = {"source": {"builder": "nets:linear", "kwargs": {"width": 8}}}
    models = {name: linear | {"recipes": [name]} for name in OWN}
    models["calibrated"] |= {"calibration": {"forward": {"dataset": "dataset:batches"}}}
    models |= {name: {"source": f"{name}:make"} for name in ("builder", "commented")}
    project.write_zoo(models | {"helper": "loads_helper:make"}, ("portable-fp32",), OWN)

    def edit(name: str) -> None:
        Path(pipes[name][0]).read_text()
        Path(pipes[name][0]).unlink()  # it may be loaded again, by another stage
        project.edit(f"{name}.py", "VALUE = 1\n", "VALUE = 1  # one\n" if name == "commented" else "VALUE = 2\n")
        Path(pipes[name][1]).write_text("")

    with ThreadPoolExecutor(len(pipes)) as pool:
        edited = [pool.submit(edit, name) for name in pipes]
        run = lower(project)
        assert all(each.done() and not each.exception() for each in edited)
    recipes = [recipe for model in run.outcome.models for recipe in model.recipes if recipe.failure]
    problems = {recipe.model: recipe.failure.problem for recipe in recipes}
    assert set(problems) == {model for model, _ in STAGES.values()}
    assert all("changed" in problem and "again" in problem for problem in problems.values()), problems
    again = lower(project)
    assert again.outcome.exit_code == 0, again.outcome.failures
    assert all(stage in again.ran(model) for model, stage in STAGES.values())
    assert again.ran("commented") == set()


def due(project: Project, environment: dict[str, str]) -> set[str]:
    """Names of the stages that a plan says will run, whose inputs are known."""
    plan = project.run("plan", "zoo.yaml", "--json", env=environment)
    return {stage["stage"].partition(" ")[2] for stage in plan.json["stages"] if stage["runs"] == "yes"}


@pytest.mark.slow
def test_another_checkout_in_the_middle(project, package):
    """The run ends well, with records of the code that it has loaded; other code finds nothing that it has not made."""
    environment = {"PYTHONPATH": str(package.parent)}
    project.write_zoo({"patient": "waiting:patient"}, ("portable-fp32",))
    project.make_pipes()
    files = [
        package / "tasks" / room / "stages" / f"{stage}.py"
        for room, stage in (("export", "export"), ("backend", "compile"), ("file", "serialize"), ("file", "report"))
    ]
    before = {path: path.read_text() for path in files}
    with project.start("export", "zoo.yaml", env=environment) as run:
        (project.folder / "running").read_text()
        for path, text in before.items():
            head, found, tail = text.partition(") -> Outputs:\n")
            assert found
            path.write_text(f"{head}{found}        raise NotImplementedError\n{tail}")
        (project.folder / "proceed").write_text("")
        _, said = run.communicate(timeout=project.limit)
    assert run.returncode == 0, said
    for pipe in ("running", "proceed"):
        (project.folder / pipe).unlink()
    assert due(project, environment) >= {"export"}
    for path in files[:2]:
        path.write_text(before[path])
    assert due(project, environment) == {"serialize/portable-fp32"}
    for path in files[2:]:
        path.write_text(before[path])
    assert due(project, environment) == set()
