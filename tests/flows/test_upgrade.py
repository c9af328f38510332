"""`pteforge upgrade`: what another toolchain changes in every file of a zoo.

The other toolchain is this environment with something planted: a name of ExecuTorch that is missing.
"""

import json
import sys

import pytest
from pteforge.tasks.upstream.compat import WITHOUT

ZOO = """
version: 1
models:
  net: {source: models:net}
  wide: {source: models:wide}
recipes:
  portable: {specializations: [{target: portable}]}
  xnnpack: {specializations: [{target: xnnpack}]}
defaults: {recipes: [portable, xnnpack]}
"""
FILES = ("net/portable", "net/xnnpack", "wide/portable", "wide/xnnpack")
NEEDED = "executorch.exir.program._program.transform_op_to_aten_op"  # for all files
SCALARS = "executorch.exir.passes.scalar_to_tensor_pass.ScalarToTensorPass.call_operator"  # by a patch alone
MODELS = """
import torch

def net():
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Hardsigmoid()), (torch.ones(1, 4),)

def wide():
    return torch.nn.Linear(4, 16), (torch.ones(1, 4),)
"""


@pytest.fixture
def zoo(project):
    project.write("zoo.yaml", ZOO)
    project.write("models.py", MODELS)
    return project


def planted(zoo, name):
    """The Python of this environment, whose ExecuTorch lacks a name."""
    python = zoo.write(name, f'#!/bin/sh\n{WITHOUT}={name} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return str(python)


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_a_planted_difference(zoo):
    """A patch that cannot be applied changes the files that it is for, and no others; both stay in one store."""
    python = planted(zoo, SCALARS)
    done = zoo.run("upgrade", "zoo.yaml", "--to", python, "--fail-on", "delegation", "--json")
    told = done.json
    assert done.code == 1, done.err
    assert {file["name"]: file["status"] for file in told["files"]} == {
        "net/portable": "changed",
        "net/xnnpack": "changed",
        "wide/portable": "equal",
        "wide/xnnpack": "equal",
    }
    assert [sentence.partition(":")[0] for sentence in told["regressions"]] == ["net/portable", "net/xnnpack"]
    assert "not mended any more: integers next to floating point tensors" in done.err
    page = (zoo.folder / "upgrade/index.html").read_text(encoding="utf-8")
    assert "not mended any more: integers next to floating point tensors" in page
    assert "net/xnnpack" in page


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_files_that_are_not_made_any_more(zoo):
    """They are told with the reason, and are a failure without limits, too; other files are compared."""
    done = zoo.run("upgrade", "zoo.yaml", "--model", "net", "--to", planted(zoo, NEEDED))
    assert done.code == 1
    assert "net/xnnpack: removed" in done.out
    assert NEEDED in done.out


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_toolchains_of_recipes(zoo):
    """A recipe is lowered with its toolchain, next to others; `--toolchain` is for all. No stage is taken for another.

    What a toolchain does not make fails, with its reason. A plan says which recipes are not planned.
    """
    changed = f"toolchains: {{lacking: {{python: {planted(zoo, SCALARS)}}}}}\n"
    zoo.write("zoo.yaml", ZOO.replace("portable: {", "portable: {toolchain: lacking, ") + changed)

    def export(*more):
        done = zoo.run("export", "zoo.yaml", "--out", "out", "--json", *more)
        models = done.json["models"].items()
        return done.json["stages"], {f"{m}/{r}": entry for m, recipes in models for r, entry in recipes.items()}

    first, files = export()
    assert {name: entry["status"] for name, entry in files.items()} == dict.fromkeys(FILES, "made")
    runs = {name: json.loads((zoo.out / f"{name}.json").read_bytes())["run"] for name in FILES}
    assert [name for name, run in runs.items() if "unmended" in run] == ["net/portable", "wide/portable"]
    assert len({run["id"] for run in runs.values()}) == 1
    assert export()[0] == {"ran": 0, "cached": first["ran"]}
    plan = zoo.run("plan", "zoo.yaml")
    assert "net/portable is left to its toolchain, 'lacking'" in plan.out
    _, files = export("--toolchain", planted(zoo, NEEDED))
    assert all(NEEDED in files[name]["problem"] for name in FILES)
    assert export()[0]["ran"] == 0
    assert len(zoo.run("runs", "--json").json["runs"]) == 4


@pytest.mark.parametrize(
    ("to", "problem"),
    [
        ("next", "the zoo has no toolchain 'next'"),
        ("nexxt", "the zoo has no toolchain 'nexxt'; did you mean 'nightly'"),
        ("./absent/python", "does not exist"),
        ("./zoo.yaml", "cannot be run"),
    ],
)
def test_bad_input(zoo, to, problem):
    """A toolchain that does not exist is refused before anything runs."""
    zoo.write("zoo.yaml", ZOO + "toolchains: {nightly: {python: ~/none}}\n")
    for command in (("upgrade", "zoo.yaml", "--to", to), ("export", "zoo.yaml", "--toolchain", to)):
        done = zoo.run(*command)
        assert done.code == 2
        assert problem.partition(";")[0] in done.err
    zoo.write("zoo.yaml", ZOO.replace("portable: {", f"portable: {{toolchain: {to}, "))
    done = zoo.export()
    assert done.code == 2
    assert "zoo.yaml:7:14: recipes.portable.toolchain: " in done.err
