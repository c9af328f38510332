"""What a builder reads without declaring it: a change is noticed, and nothing else costs a run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from pteforge.flows.run.request import ExportRequest
from pteforge.flows.run.session import open_session
from safetensors.torch import save_file

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")

MANY = 300


@pytest.fixture
def reading(project):
    """A project whose builder reads files in many ways, one of them outside, where an argument names it."""
    project.write("size.json", "5")
    for name in ("checkpoint.pt", "mapped.pt"):
        torch.save({"x": torch.ones(3)}, project.folder / name)
    save_file({"x": torch.ones(3)}, project.folder / "weights.safetensors")
    torch.jit.script(torch.nn.ReLU()).save(project.folder / "script.ts")
    for name in ("table.bin", *(f"many/{number}.bin" for number in range(MANY)), "../outside.bin"):
        project.write(name, "1")
    source = {"builder": "reading:everything", "kwargs": {"outside": "../outside.bin"}}
    project.write_zoo({"net": {"source": source}}, ("portable-fp32",))
    return project


def holding(project):
    """Names of models that a run would answer from their records."""
    asked = ExportRequest(zoo=project.folder / "zoo.yaml", store=str(project.store), out=project.out)
    with open_session(asked) as session:
        return {model.name for model in session.models if session.whole_models.find(model)}


CHANGES = (
    *("size.json", "checkpoint.pt", "mapped.pt", "weights.safetensors", "table.bin", "script.ts", "../outside.bin"),
    *("cache.bin", "many/7.bin", "many/new.bin", "override.bin"),
)


@pytest.mark.slow
def test_whatever_is_read_is_watched(reading, lower, pteforge):
    """A run with nothing to do needs one record. Each changed, added or removed file makes `export` run, named by why.

    A file that the builder writes first is none of its inputs.
    """
    first = lower(reading)
    assert first.outcome.exit_code == 0, first.outcome.failures
    assert not first.outcome.models[0].unwatched
    assert holding(reading) == {"net"}
    assert lower(reading).ran("net") == set()
    for name in CHANGES:
        _change(reading.folder / name)
        assert holding(reading) == set(), name
        assert lower(reading).ran("net") == {"export", "report/portable-fp32"}, name  # provenance names what was read
        assert f"read.{Path(name).name if name.startswith('..') else name}" in pteforge(reading, "why", "net").out
        assert holding(reading) == {"net"}, name
    (reading.folder / "override.bin").unlink()
    assert lower(reading).ran("net") == set()  # what was made without it
    reading.write("scratch.bin", "9")
    assert holding(reading) == {"net"}


def _change(path):
    """Writes other content that the builder can read, too."""
    if path.suffix == ".pt":
        torch.save({"x": torch.zeros(3)}, path)
    elif path.suffix == ".safetensors":
        save_file({"x": torch.zeros(3)}, path)
    elif path.suffix == ".ts":
        torch.jit.script(torch.nn.Sigmoid()).save(path)
    else:
        path.write_text("7")


@pytest.mark.slow
def test_variables_and_files_elsewhere(project, tmp_path):
    """A variable that is looked up is an input, and `why` names it; a file elsewhere is told by the run that read it.

    Its value is not in the store.
    """
    (tmp_path / "elsewhere.bin").write_bytes(b"1")
    env = {"ITS_OWN_FILE": str(tmp_path / "elsewhere.bin"), "WIDTH": "0000000000003"}
    project.write_zoo({"net": "reading:variable"}, ("portable-fp32",))
    project.write("size.json", "5")
    first = project.export("--json", env=env)
    assert first.code == 0, first.err
    assert first.json["unwatched"] == {"net": [env["ITS_OWN_FILE"]]}
    assert project.export("--json", env=env).json["stages"]["ran"] == 0
    assert project.run("plan", "zoo.yaml", env=env).code == 0
    changed = project.export(env={**env, "WIDTH": "2"})
    assert changed.code == 0, changed.err
    assert "elsewhere.bin" in changed.err + changed.out
    assert "environment.WIDTH" in project.run("why", "net").out
    assert project.export("--json", env=env).json["stages"]["ran"] == 0
    stored = [path.read_bytes() for path in (project.store / "ledger").rglob("*") if path.is_file()]
    assert not any(env["WIDTH"].encode() in content for content in stored)
