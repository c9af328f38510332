"""`pteforge plan`: what an export would run, and why, found out without running anything."""

from __future__ import annotations

import pytest


def planned(run_here, folder, *args):
    """What the command says as JSON: its exit code, and stages that will run with the fields that changed."""
    done = run_here(folder.folder, "plan", "zoo.yaml", "--store", folder.store, "--json", *args)
    stages = done.json["stages"]
    return done.code, {stage["stage"]: stage["changed"] for stage in stages if stage["runs"] == "yes"}, done.json


def test_nothing_to_do(warm, run_here):
    """Where everything is cached it says so, exits with 0, and loads neither torch nor Prefect for it."""
    code, stages, said = planned(run_here, warm)
    assert (code, stages) == (0, {})
    assert said["cached"] > 10
    done = run_here(warm.folder, "plan", "zoo.yaml", "--store", warm.store)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("nothing to do: ")


def test_what_changed(warm, run_here):
    """It names the stage that an edit makes run and the field of its key, exits with 3, and changes nothing."""
    warm.edit("nets.py", "def conv", "EDITED = 1\n\n\ndef conv")
    code, stages, said = planned(run_here, warm)
    assert code == 3
    assert set(stages) == {"linear export", "conv export"}
    assert list(stages["conv export"]) == ["params.source.modules.nets"]
    assert {stage["stage"].partition(" ")[0] for stage in said["stages"] if stage["runs"] == "maybe"} == {
        "linear",
        "conv",
    }
    assert planned(run_here, warm)[0] == 3
    (export,) = (stage for stage in said["stages"] if stage["stage"] == "conv export")
    assert export["last_seconds"] > 0
    assert export["last_peak_memory"] > 0
    printed = run_here(warm.folder, "plan", "zoo.yaml", "--store", warm.store, "--model", "conv").out
    assert "will run conv export  changed:" in printed
    assert "params.source.modules.nets: " in printed
    assert "may run  conv: " in printed


@pytest.mark.parametrize("recipe", ["xnnpack-fp32", "portable-fp32"])
def test_a_new_recipe(warm, run_here, recipe):
    """Of a recipe that has not been made, what it shares with others is cached."""
    warm.write_zoo(
        {"conv": "nets:conv"}, ("stricter",), {"stricter": {"extends": recipe, "verify": {"min_sqnr_db": 90}}}
    )
    code, stages, _ = planned(run_here, warm)
    assert code == 3
    assert stages == {"conv verify/stricter": None}


def test_dry_run(warm, run_here):
    """`export --dry-run` is the plan of that export, with its options: it makes no file."""
    warm.edit("zoo.yaml", "nets:conv", "nets:linear")
    assert planned(run_here, warm)[0] == 3
    command = ("zoo.yaml", "--store", warm.store, "--until", "export", "--json")
    dry = run_here(warm.folder, "export", *command, "--dry-run", "--out", "elsewhere")
    assert (dry.code, dry.json) == (3, run_here(warm.folder, "plan", *command).json)
    assert not (warm.folder / "elsewhere").exists()
    assert [stage["stage"] for stage in dry.json["stages"]] == ["conv export"]


def test_methods_that_are_not_known_yet(project, run_here):
    """Until a model has run, a recipe and calibration data may name any of its methods."""
    project.write("data.py", "rows = []\ndef net(): ...\n")
    model = {"source": "data:net", "calibration": {"encode": {"dataset": "data:rows"}}}
    own = {"target": "xnnpack", "methods": {"decode": {"delegate": False}}}
    recipe = {"extends": "xnnpack-int8-static", "specializations": [own]}
    project.write_zoo({"net": model}, ("split",), {"split": recipe})
    code, stages, _ = planned(run_here, project)
    assert (code, [*stages]) == (3, ["net export"])
