"""The in-process API and the Prefect flow make the same bytes and share one cache."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pteforge
import pytest
import yaml
from pteforge.artifacts.store import open_store
from pteforge.configs.load import load_zoo
from pteforge.tests.conftest import run_process
from pteforge.tests.lowering import ZOO

RESNET8 = "executorch.examples.models.mlperf_tiny.resnet8:ResNet8Model"
TRANSFORMED = {
    "specializations": [{"target": "xnnpack"}],
    "source_transforms": [{"torchao": "int8_weight_only", "filter": ["0"]}],
    "verify": {"min_sqnr_db": 20},
}
ENCODING = {"extends": "xnnpack-int8-dynamic", "quantize": {"methods": ["encode"]}}
FAT = {"output": {"form": "fat"}, "specializations": [{"target": "xnnpack"}, {"target": "portable"}]}


def built(builder: str, **arguments):
    """Builds a model as a worker does, from the same seed."""
    from pteforge.tasks.usercode.model_source import build, seed_everything

    seed_everything(0)
    return build(builder, arguments).definition


def exported(folder, store):
    """Exports the zoo in a folder by the command line."""
    program = Path(sys.executable).with_name("pteforge")
    return run_process(program, "export", "zoo.yaml", "--json", "--store", store, cwd=folder)


@pytest.mark.slow
def test_each_finds_what_the_other_made(tmp_path, ran):
    """A model that the API exported is a hit for the flow and vice versa, and the files are byte-identical.

    Only stages that need the module run, `export` and source transforms, and `report`, which has the export's key.
    The recipes quantize, transform and make fat files; the models have several methods, dynamic sizes and constants.
    """
    shutil.copytree(ZOO, tmp_path, dirs_exist_ok=True)
    zoo = {
        "version": 1,
        "models": {
            "resnet8": {"source": RESNET8, "recipes": ["xnnpack-fp32"]},
            "net": {"source": "builders:mlp", "recipes": ["fat", "xnnpack-int8-dynamic", "transformed"]},
            "two": {"source": "builders:two_methods", "recipes": ["fat", "encoding"]},
        },
        "recipes": {"fat": FAT, "transformed": TRANSFORMED, "encoding": ENCODING},
    }
    (tmp_path / "zoo.yaml").write_text(yaml.safe_dump(zoo))
    store = tmp_path / "store"
    mine = pteforge.export(built(RESNET8), recipe="xnnpack-fp32", name="mine", store=store)
    done = exported(tmp_path, store)
    assert done.returncode == 0, done.stderr
    models = json.loads(done.stdout)["models"]
    assert models["resnet8"]["xnnpack-fp32"]["sha256"] == mine.sha256
    assert (tmp_path / "out" / "resnet8" / "xnnpack-fp32.pte").read_bytes() == mine.pte
    with open_store(str(store)) as opened:
        stages = next(run for run in opened.runs if "resnet8" in run.models).models["resnet8"]
    assert {stage.stage for stage in stages if stage.status == "ran"} == {"export", "report"}

    recipes = load_zoo(tmp_path / "zoo.yaml").zoo.recipes
    for model, builder in (("net", "builders:mlp"), ("two", "builders:two_methods")):
        for name in zoo["models"][model]["recipes"]:
            theirs = pteforge.export(built(builder), recipe=recipes[name], name=model, store=store)
            assert (tmp_path / "out" / model / f"{name}.pte").read_bytes() == theirs.pte
            live = {"export", "report"} | ({"source_transform"} if name == "transformed" else set())
            assert ran(theirs) == live, (name, theirs.why())

    recipe = recipes["fat"]
    theirs = pteforge.export(built("builders:mlp"), recipe=recipe, name="net", store=store)
    alone = pteforge.export(built("builders:mlp"), recipe=recipe, name="net", store=tmp_path / "another store")
    assert ran(alone) == {stage.stage for stage in alone.stages}
    assert alone.pte == theirs.pte


INT8 = {"specializations": [{"target": "xnnpack"}], "quantize": {"quantizer": "xnnpack"}}


@pytest.mark.slow
def test_each_says_the_same_of_failures(tmp_path):
    """What the command line says of a stage's failure are notes of the exception, and `findings`, whichever stage."""
    shutil.copytree(ZOO, tmp_path, dirs_exist_ok=True)
    failures = {"branches": "export", "complex": "edge", "nothing": "compile", "sorts": "verify", "each": "quantize"}
    models = {
        name: {
            "source": {"builder": "refused:model", "kwargs": {"name": name}},
            "recipes": ["int8" if stage == "quantize" else "portable-fp32"],
        }
        for name, stage in failures.items()
    }
    (tmp_path / "zoo.yaml").write_text(yaml.safe_dump({"version": 1, "models": models, "recipes": {"int8": INT8}}))
    done = exported(tmp_path, tmp_path / "store")
    assert done.returncode == 1, done.stderr
    told = json.loads(done.stdout)["models"]
    recipes = load_zoo(tmp_path / "zoo.yaml").zoo.recipes
    for name, stage in failures.items():
        ((recipe, outcome),) = told[name].items()
        with pytest.raises(pteforge.errors.PteforgeError) as caught:
            pteforge.export(
                built("refused:model", name=name), recipe=recipes.get(recipe, recipe), store=tmp_path / "store"
            )
        assert outcome["step"].partition("/")[0] == stage
        assert outcome["findings"], name
        assert [finding.remedies for finding in caught.value.findings] == [
            tuple(finding["remedies"]) for finding in outcome["findings"]
        ]
        for finding in outcome["findings"]:
            assert all(f"- {remedy}" in "\n".join(caught.value.__notes__) for remedy in finding["remedies"])
