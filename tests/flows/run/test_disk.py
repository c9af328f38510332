"""Space on disks, before a run: certain shortages end it before any work, probable ones are warnings."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from pteforge.artifacts.store import open_store
from pteforge.errors import InputError
from pteforge.flows.run.disk import check_space
from pteforge.flows.run.zoo import find_models
from pteforge.tests.flows.conftest import open_run

MIB = 1 << 20
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
BERT = {"architectures": ["BertModel"], "model_type": "bert"}


@pytest.fixture
def free(monkeypatch):
    """Makes every disk have so many bytes free."""

    def set_free(size: float) -> None:
        found = SimpleNamespace(f_bavail=int(size), f_frsize=1)
        monkeypatch.setattr(os, "statvfs", lambda _: found)

    return set_free


@pytest.fixture
def checked(project, free, caplog):
    """Checks the space for a project's zoo where so many bytes are free; returns the error or the warning, if any."""

    def check(size: float, **options: object) -> tuple[str, str]:
        caplog.clear()
        with open_run(project, SimpleNamespace(jobs=1), **options) as session:
            find_models(session)
            free(size)
            try:
                check_space(session)
            except InputError as error:
                return "error", str(error)
        warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
        return ("warning", *warnings) if warnings else ("", "")

    return check


def write_checkpoint(folder: Path, config: dict, shards: list[dict[str, int]], dtype: str = "BF16") -> None:
    """A folder whose weights are sparse files: tensors by name, and how many elements they have."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    for number, shard in enumerate(shards):
        header, end = {}, 0
        for name, count in shard.items():
            begin, end = end, end + 2 * count
            header[name] = {"dtype": dtype, "shape": [count // 64, 64], "data_offsets": [begin, end]}
        encoded = json.dumps(header).encode()
        with (folder / f"model-{number}.safetensors").open("wb") as file:
            file.write(len(encoded).to_bytes(8, "little") + encoded)
            file.truncate(file.tell() + end)
    files = {name: f"model-{number}.safetensors" for number, shard in enumerate(shards) for name in shard}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))


def write_large(project, config=LLAMA, **source):
    """A model of 4 Mi weights in bfloat16, in two files, besides those in another format."""
    write_checkpoint(project.folder / "large", config, [{"a": MIB, "b": MIB}, {"c": 2 * MIB}])
    (project.folder / "large" / "consolidated.safetensors").write_bytes(b"no header")
    return {"source": {"huggingface": "./large", **source}}


@pytest.mark.parametrize(
    ("recipe", "size", "expected"),
    [
        ("xnnpack-fp32", 40, ""),  # 16 MiB of weights that are widened to float32, and as many in the file
        ("xnnpack-fp32", 20, "warning"),
        ("xnnpack-fp32", 7.5, "error"),  # half of that in the file; the store may refer to the checkpoint
        ("xnnpack-llm-8da4w", 40, ""),
        ("xnnpack-llm-8da4w", 12, "warning"),
        ("xnnpack-llm-8da4w", 1.5, "error"),
    ],
)
def test_a_large_checkpoint(project, checked, monkeypatch, recipe, size, expected):
    """What is certain to be written has to fit; where only what is probable does not, there is a warning."""
    monkeypatch.chdir(project.folder)
    project.write_zoo({"large": write_large(project)}, (recipe,))
    kind, problem = checked(size * MIB)
    assert kind == expected
    if problem:
        assert f"has {size} MiB free" in problem.replace(".0 MiB", " MiB")
        assert str(project.store) in problem
        assert "weights of large: 16.0 MiB" in problem
        assert f"large {recipe}" in problem
        assert "--store" in problem


def test_finished_layers_need_no_space_again(project, checked, monkeypatch):
    """Where an interrupted run has left layers in the store, it is not certain that they have yet to be written."""
    monkeypatch.chdir(project.folder)
    project.write_zoo({"large": write_large(project)}, ("xnnpack-llm-8da4w",))
    assert checked(1.5 * MIB)[0] == "error"
    (project.store / "unfinished" / "0").mkdir(parents=True)
    assert checked(1.5 * MIB)[0] == "warning"


def test_parts_of_weights_are_uncertain(project, checked, monkeypatch):
    """A task that is named may use a part of the weights, and random weights are in no file."""
    monkeypatch.chdir(project.folder)
    project.write_zoo({"large": write_large(project, BERT, task="fill-mask")}, ("xnnpack-fp32",))
    assert checked(MIB)[0] == "warning"
    project.edit("zoo.yaml", "task: fill-mask", "config: {hidden_size: 64}")
    assert checked(0)[0] == ""


def test_casts_are_stored(project, checked, monkeypatch):
    """The store refers to weights that a checkpoint has, in any file; others have to fit, unless they may be there."""
    monkeypatch.chdir(project.folder)
    model = write_large(project, dtype="float16")
    project.write_zoo({"large": model, "again": model}, ("portable-fp32",))
    kind, problem = checked(15.5 * MIB)  # 8 MiB of weights once, and two files of at least 4 MiB
    assert kind == "error"
    assert "at least 16.0 MiB" in problem
    assert checked(16.5 * MIB)[0] == "warning"
    with open_store(str(project.store)) as store:
        for size in (2 * MIB, 4 * MIB):
            store.local.put_bytes(bytes(size))
    assert checked(15.5 * MIB)[0] == "warning"
    project.edit("zoo.yaml", "dtype: float16", "dtype: bfloat16")
    assert checked(16.5 * MIB)[0] == ""


def test_a_program_is_stored(project, checked):
    """Weights of a `.pt2` file are known by its archive, and are copied into the store."""
    net = torch.nn.Linear(1024, 1024)
    torch.export.save(torch.export.export(net, (torch.randn(1, 1024),)), project.folder / "net.pt2")
    project.write_zoo({"net": "net.pt2"}, ("portable-fp32",))
    assert checked(9 * MIB)[0] == ""
    assert checked(7 * MIB)[0] == "warning"
    assert checked(5.5 * MIB)[0] == "error"


def test_what_was_made_before_is_remembered(warm, free, caplog):
    """Stages whose code or inputs have changed probably write as much as they did; what is cached needs nothing."""
    with open_run(warm, SimpleNamespace(jobs=1)) as session:
        find_models(session)
        free(0)
        check_space(session)
    (warm.folder / "nets.py").write_text(
        (warm.folder / "nets.py").read_text().replace("width: int = 8", "width: int = 9")
    )
    with open_run(warm, SimpleNamespace(jobs=1)) as session:
        find_models(session)
        check_space(session)
    assert "has 0 B free" in caplog.text.replace("0.0 B", "0 B")


def test_the_command_ends_before_any_stage(project, free, pteforge, monkeypatch):
    """With code 2 and one message."""
    monkeypatch.chdir(project.folder)
    project.write_zoo({"large": write_large(project)}, ("portable-fp32",))
    free(MIB)
    pteforge(project, "export", "zoo.yaml").refused("has 1.0 MiB free", "at least 8.0 MiB", "pteforge store gc")
