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

    Both ways the files are byte-identical, as is one that the API makes by itself. Only `export` runs, which is how a
    live module is recognized, and `report`, which names the export's key.
    """
    shutil.copytree(Path(__file__).parent / "zoo", tmp_path, dirs_exist_ok=True)
    zoo = {
        "version": 1,
        "models": {
            "resnet8": {"source": RESNET8, "recipes": ["xnnpack-fp32"]},
            "net": {"source": "live_nets:linear", "recipes": ["fat"]},
        },
        "recipes": {"fat": FAT},
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
    recipe = load_zoo(tmp_path / "zoo.yaml").zoo.recipes["fat"]
    theirs = pteforge.export(built("live_nets:linear"), recipe=recipe, name="net", store=store)
    assert (tmp_path / "out" / "net" / "fat.pte").read_bytes() == theirs.pte
    assert ran(theirs.stages) == {"export", "report"}
    alone = pteforge.export(built("live_nets:linear"), recipe=recipe, name="net", store=tmp_path / "another store")
    assert ran(alone.stages) == {stage.stage for stage in alone.stages}
    assert alone.pte == theirs.pte
