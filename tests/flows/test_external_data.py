"""Plain files with their weights in a sibling `.ptd`: made, kept, verified again, run, and removed again."""

from __future__ import annotations

import hashlib
import json

import pytest


def recipes(*, external_data=True):
    """A plain recipe for kernels, and one for XNNPACK; the ladder and a gate run the files, too."""
    return {
        target: {
            "output": {"external_data": external_data},
            "specializations": [{"target": target}],
            "verify": {"ladder": True},
            "accuracy": {"evaluator": "scoring:finite", "floor": 0.5},
        }
        for target in ("portable", "xnnpack")
    }


@pytest.fixture(scope="module")
def lowered(lower_project):
    return lower_project({"net": "nets:linear"}, ("portable", "xnnpack"), recipes())


def test_outcome_and_provenance(lowered):
    """The outcome has both files and the sum of their sizes, provenance the digest and size of the `.ptd`."""
    project, run = lowered
    (model,) = run.outcome.models
    for recipe in model.recipes:
        data = recipe.path.with_suffix(".ptd")
        assert recipe.data == data
        assert recipe.size == recipe.path.stat().st_size + data.stat().st_size
        written = json.loads(recipe.path.with_suffix(".json").read_text())["data"]
        assert written == {"sha256": hashlib.sha256(data.read_bytes()).hexdigest(), "size": data.stat().st_size}
        assert [(rung.label, rung.problem) for rung in recipe.ladder.rungs][-1] == ("payload", "")
        assert recipe.value("score") == 1.0
    written = run.outcome.to_json()["models"]["net"]
    assert written["xnnpack"]["data"] == str(project.out / "net" / "xnnpack.ptd")


@pytest.mark.parametrize("target", ["portable", "xnnpack"])
def test_verify_and_run(target, made, pteforge):
    """`verify` and `run` take the `.ptd` next to the file, and report another one or a missing one."""
    file, data = f"out/net/{target}.pte", made.out / "net" / f"{target}.ptd"
    assert pteforge(made, "verify", file, "--json").code == 0
    changed = bytearray(data.read_bytes())
    changed[-1] ^= 1
    data.write_bytes(changed)
    for command in ("verify", "run"):
        pteforge(made, command, file).refused(f"{target}.ptd is not the one that was made with {file}", "SHA-256")
    assert pteforge(made, "run", file, "--data", str(data)).code == 0
    data.unlink()
    pteforge(made, "verify", file).refused(f"{target}.ptd, which has the weights of {file}", "cannot be read")


def test_weights_go_back_inside(made, lower):
    """A run after the `.ptd` was lost restores it without work; a run without the option removes it."""
    data = made.out / "net" / "portable.ptd"
    content = data.read_bytes()
    data.unlink()
    assert lower(made).ran("net") == set()
    assert data.read_bytes() == content
    made.write_zoo({"net": "nets:linear"}, ("portable", "xnnpack"), recipes(external_data=False))
    ran = lower(made).ran("net")
    assert not data.exists()
    stages = {"compile", "ladder", "serialize", "verify", "evaluate", "report"}
    assert {name.partition("/")[0] for name in ran} == stages
