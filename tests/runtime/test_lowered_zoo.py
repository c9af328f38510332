"""Fat files as the command line makes them: the library, the plain host and the Python host run what they hold."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from pteforge.artifacts.nfat.fat_file import open_fat
from pteforge.artifacts.pte.reader import open_pte
from pteforge.runtime import load

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),  # the first test builds the library and lowers the zoo
    # torchao imports libraries that this torch does not have, when torch.load finds it.
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

_HERE = Path(__file__).parent
_ZOOS = _HERE.parents[1] / "examples" / "zoo"
_RECIPE = {"specializations": [{"target": "mlx"}, {"target": "xnnpack"}, {"target": "portable"}]}


def _zoo(folder: Path) -> Mapping[str, Any]:
    """All models of the example zoos, as fat files with their weights inside, and one with them beside it."""
    models = {}
    for name in ("starter", "fat"):
        for model, config in yaml.safe_load((_ZOOS / f"{name}.yaml").read_text())["models"].items():
            models[model] = {"source": config["source"]}
            models[model] |= {"recipes": ["fat", "beside"]} if model == "transformer_block" else {}
            models[model] |= {"verify": {"min_sqnr_db": 50}} if model == "sdpa" else {}
    return {
        "version": 1,
        "python_path": [os.path.relpath(_ZOOS, folder)],
        "defaults": {"recipes": ["fat"]},
        "models": models,
        "recipes": {
            "fat": {"output": {"form": "fat"}, **_RECIPE},
            "beside": {"output": {"form": "fat", "external_data": True}, **_RECIPE},
        },
    }


@dataclass(frozen=True)
class Lowered:
    """What `pteforge export` made.

    Attributes:
        out: its folder.
        programs: the fat files as programs/run.py takes them, with inputs, and with the payload to compare with.
    """

    out: Path
    programs: Path


@pytest.fixture(scope="module")
def lowered(tmp_path_factory: pytest.TempPathFactory) -> Lowered:
    """The zoo, lowered by the command line."""
    import torch

    folder = tmp_path_factory.mktemp("zoo")
    (folder / "zoo.yaml").write_text(json.dumps(_zoo(folder)))
    done = subprocess.run(
        [Path(sys.executable).with_name("pteforge"), "export", "zoo.yaml", "--store", "store"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
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
    return Lowered(folder / "out", programs)


@pytest.fixture(scope="module")
def ran(build: Path, lowered: Lowered, python_path: Path) -> Mapping[str, Any]:
    """What became of each program in ExecuTorch's Python runtime with the library."""
    done = subprocess.run(
        [sys.executable, _HERE / "programs" / "run.py", build, lowered.programs],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(python_path)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: Mapping[str, Any] = json.loads((lowered.programs / "outcomes.json").read_text())
    return found


def test_library(ran: Mapping[str, Any]) -> None:
    """Every model runs its XNNPACK payload, past the one for MLX, and gives bit for bit what that payload gives."""
    assert len(ran) == 8
    for name, outcome in ran.items():
        assert (outcome["error"], outcome["equal"]) == ("", True), name
        assert outcome["report"][-1].startswith("xnnpack: chosen"), name
        assert outcome["report"][0].startswith("mlx: passed over"), name


@pytest.mark.usefixtures("ran")
def test_plain_host(build: Path, lowered: Lowered, tmp_path: Path) -> None:
    """A C++ program that links the library gives the same bytes, for every method."""
    import torch

    for name in json.loads((lowered.programs / "programs.json").read_text()):
        expected = torch.load(lowered.programs / f"{name}.outputs.pt")
        for method, (inputs,) in torch.load(lowered.programs / f"{name}.calls.pt").items():
            arguments = []
            for index, tensor in enumerate(inputs):
                path = tmp_path / f"{index}.bin"
                path.write_bytes(_bytes(tensor))
                arguments.append(f"{'x'.join(map(str, tensor.shape))}:{path}")
            done = subprocess.run(
                [build / "nfat_run", lowered.programs / f"{name}.pte", method, *arguments],
                capture_output=True,
                check=False,
            )
            assert done.returncode == 0, (name, done.stderr)
            outputs, expected = (
                expected[: _count(done.stdout, expected)],
                expected[_count(done.stdout, expected) :],
            )
            assert done.stdout == b"".join(map(_bytes, outputs)), name
        assert not expected


def _bytes(tensor: Any) -> bytes:
    """Of any dtype, also of those that numpy does not have."""
    import torch

    content: bytes = tensor.contiguous().view(torch.uint8).numpy().tobytes()
    return content


def _count(content: bytes, expected: list[Any]) -> int:
    """How many of the expected outputs so many bytes are."""
    size = count = 0
    while size < len(content):
        size += expected[count].nbytes
        count += 1
    return count


@pytest.mark.usefixtures("ran")
def test_python_host(lowered: Lowered) -> None:
    """Without the library, the same choice and the same outputs; without XNNPACK, portable."""
    import torch

    for name in json.loads((lowered.programs / "programs.json").read_text()):
        program = load(lowered.programs / f"{name}.pte")
        assert program.payload == "xnnpack"
        calls = torch.load(lowered.programs / f"{name}.calls.pt")
        outputs = [output for method, (inputs,) in calls.items() for output in program.run(method, inputs)]
        assert all(map(torch.equal, outputs, torch.load(lowered.programs / f"{name}.outputs.pt"))), name
        portable = load(lowered.programs / f"{name}.pte", exclude=["xnnpack"])
        assert portable.payload == "portable"


def test_weights_beside_the_file(lowered: Lowered) -> None:
    """With its `.ptd` file, a fat file without weights gives what the one with weights gives."""
    import torch

    folder = lowered.out / "transformer_block"
    tokens = torch.randn(1, 32, 512)
    inside = load(folder / "fat.pte").run("forward", [tokens])
    beside = load(folder / "beside.pte", data_files=[folder / "beside.ptd"]).run("forward", [tokens])
    assert torch.equal(inside[0], beside[0])
    assert (folder / "beside.pte").stat().st_size < 100_000
