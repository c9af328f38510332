"""Fat files made by the command line run with the library, in the plain host and in the Python host."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from pteforge.formats.nfat.container import open_fat
from pteforge.formats.pte.reader import open_pte
from pteforge.runtime import load

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(1800),  # the first test builds the library and lowers the zoo
    # torchao imports libraries that this torch does not have, when torch.load finds it.
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

_HERE = Path(__file__).parent
_ZOOS = _HERE.parents[1] / "examples" / "zoo"
_RECIPE = {"specializations": [{"target": "mlx"}, {"target": "xnnpack"}, {"target": "portable"}]}


def _zoo(folder: Path) -> Mapping[str, Any]:
    """All models of the example zoos, as fat files that hold their weights; one also with external weights."""
    models = {}
    for name in ("starter", "fat"):
        for model, config in yaml.safe_load((_ZOOS / f"{name}.yaml").read_text())["models"].items():
            models[model] = {"source": config["source"]}
            models[model] |= {"recipes": ["fat", "external"]} if model == "transformer_block" else {}
            models[model] |= {"verify": {"min_sqnr_db": 50}} if model == "sdpa" else {}
    return {
        "version": 1,
        "python_path": [os.path.relpath(_ZOOS, folder)],
        "defaults": {"recipes": ["fat"]},
        "models": models,
        "recipes": {
            "fat": {"output": {"form": "fat"}, **_RECIPE},
            "external": {"output": {"form": "fat", "external_data": True}, **_RECIPE},
        },
    }


@pytest.fixture(scope="module")
def lowered(tmp_path_factory) -> Path:
    """The zoo, lowered by the command line into `out`; `programs` has the fat files as programs/run.py takes them."""
    import torch

    folder = tmp_path_factory.mktemp("zoo")
    (folder / "zoo.yaml").write_text(json.dumps(_zoo(folder)))
    command = [Path(sys.executable).with_name("pteforge"), "export", "zoo.yaml", "--store", "store"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    programs = folder / "programs"
    programs.mkdir()
    names = []
    torch.manual_seed(0)
    for file in sorted(folder.glob("out/*/fat.pte")):
        name = file.parent.name
        names.append(name)
        container = open_fat(file).container
        container.write(container.payload("xnnpack"), programs / f"{name}.payload")
        (programs / f"{name}.pte").symlink_to(file)
        calls = {
            method.name: [tuple(torch.randn(spec.shape).to(getattr(torch, spec.dtype)) for spec in method.inputs)]  # type: ignore[union-attr]  # tensors all
            for method in open_pte(file).methods
            if not method.constant
        }
        torch.save(calls, programs / f"{name}.calls.pt")
    (programs / "programs.json").write_text(json.dumps(names))
    return folder


def test_every_host_makes_the_same_choice(run_all, check_host, lowered):
    """Every model runs its XNNPACK payload, after the one for MLX is passed over, with that payload's outputs.

    So it does in Python with the library, in a C++ program that links it, and in the Python host; without XNNPACK that
    takes portable.
    """
    import torch

    programs = lowered / "programs"
    ran = run_all(programs)
    assert len(ran) == 8
    for name, outcome in ran.items():
        assert (outcome.error, outcome.equal) == ("", True), name
        assert outcome.report[-1].startswith("xnnpack: chosen"), name
        assert outcome.report[0].startswith("mlx: passed over"), name
        check_host(programs, name)
        program = load(programs / f"{name}.pte")
        assert program.payload == "xnnpack"
        calls = torch.load(programs / f"{name}.calls.pt")
        outputs = [output for method, (inputs,) in calls.items() for output in program.run(method, inputs)]
        assert all(map(torch.equal, outputs, torch.load(programs / f"{name}.outputs.pt"))), name
        assert load(programs / f"{name}.pte", exclude=["xnnpack"]).payload == "portable"


def test_external_weights(lowered):
    """A fat file with external weights has the same outputs as the one that holds them."""
    import torch

    folder = lowered / "out" / "transformer_block"
    tokens = torch.randn(1, 32, 512)
    (internal,) = load(folder / "fat.pte").run("forward", [tokens])
    (external,) = load(folder / "external.pte", data_files=[folder / "external.ptd"]).run("forward", [tokens])
    assert torch.equal(internal, external)
    assert (folder / "external.pte").stat().st_size < 100_000
