"""The in-process API and the Prefect flow are two ways to the same bytes, over one cache."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pteforge
import pytest
import yaml
from pteforge.artifacts.store import open_store
from pteforge.configs.load import load_zoo

RESNET8 = "executorch.examples.models.mlperf_tiny.resnet8:ResNet8Model"
TRANSFORMED = {
    "specializations": [{"target": "xnnpack"}],
    "source_transforms": [{"torchao": "int8_weight_only", "filter": ["first"]}],
    "verify": {"min_sqnr_db": 20},
}
DECODING = {"extends": "xnnpack-int8-dynamic", "quantize": {"methods": ["decode"]}}
FAT = {"output": {"form": "fat"}, "specializations": [{"target": "xnnpack"}, {"target": "portable"}]}


def built(builder: str):
    """A model as the flow's worker builds it, from the same seed."""
    from pteforge.tasks.stages.source import build, seed_everything

    seed_everything(0)
    return build(builder, {}).definition


def ran(stages):
    """Which stages of a result ran."""
    return {stage.stage for stage in stages if stage.status == "ran"}


@pytest.mark.slow
def test_each_finds_what_the_other_made(tmp_path, monkeypatch):
    """A starter model exported by the API is a hit for the flow, and what the flow has lowered is a hit for the API.

    Both ways the files are byte-identical, as is one that the API makes by itself. Only what needs the module runs,
    `export` and source transforms, which is how a live module is recognized, and `report`, which names the export's
    key. So it is with recipes that quantize, with fat files, with several methods, dynamic sizes and constants.
    """
    shutil.copytree(Path(__file__).parent / "zoo", tmp_path, dirs_exist_ok=True)
    zoo = {
        "version": 1,
        "models": {
            "resnet8": {"source": RESNET8, "recipes": ["xnnpack-fp32"]},
            "net": {"source": "live_nets:linear", "recipes": ["fat", "xnnpack-int8-dynamic", "transformed"]},
            "conversation": {"source": "live_nets:conversation", "recipes": ["fat", "decoding"]},
        },
        "recipes": {"fat": FAT, "transformed": TRANSFORMED, "decoding": DECODING},
    }
    (tmp_path / "zoo.yaml").write_text(yaml.safe_dump(zoo))
    store = tmp_path / "store"
    mine = pteforge.export(built(RESNET8), recipe="xnnpack-fp32", name="mine", store=store)
    done = subprocess.run(
        [str(Path(sys.executable).with_name("pteforge")), "export", "zoo.yaml", "--json", "--store", str(store)],
        cwd=tmp_path,
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    models = json.loads(done.stdout)["models"]
    assert models["resnet8"]["xnnpack-fp32"]["sha256"] == mine.sha256
    assert (tmp_path / "out" / "resnet8" / "xnnpack-fp32.pte").read_bytes() == mine.pte
    with open_store(str(store)) as opened:
        assert ran(opened.runs.latest("resnet8").models["resnet8"]) == {"export", "report"}

    monkeypatch.syspath_prepend(tmp_path)
    recipes = load_zoo(tmp_path / "zoo.yaml").zoo.recipes
    for model, builder in (("net", "live_nets:linear"), ("conversation", "live_nets:conversation")):
        for name in zoo["models"][model]["recipes"]:
            theirs = pteforge.export(built(builder), recipe=recipes[name], name=model, store=store)
            assert (tmp_path / "out" / model / f"{name}.pte").read_bytes() == theirs.pte
            live = {"export", "report"} | ({"source_transform"} if name == "transformed" else set())
            assert ran(theirs.stages) == live, name

    recipe = recipes["fat"]
    theirs = pteforge.export(built("live_nets:linear"), recipe=recipe, name="net", store=store)
    alone = pteforge.export(built("live_nets:linear"), recipe=recipe, name="net", store=tmp_path / "another store")
    assert ran(alone.stages) == {stage.stage for stage in alone.stages}
    assert alone.pte == theirs.pte
