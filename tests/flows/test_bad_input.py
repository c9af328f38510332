"""Unusable input is reported in one message that says where and why, before any work where that is possible."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pteforge.tasks.engine.workers import pool

ZOO = """\
version: 1
defaults:
  recipes: [portable-fp32]
models:
  linear:
    source: nets:linear
"""

OWN_RECIPE = """\
version: 1
models:
  linear:
    source: nets:linear
    recipes: [mine]
recipes:
  mine:
    specializations:
      - target: xnnpack
        options: {}
"""


@pytest.fixture
def servers(monkeypatch) -> list[pool.WarmServer]:
    """Worker servers that this process starts during the test."""
    started: list[pool.WarmServer] = []

    class Counted(pool.WarmServer):
        def __init__(self, preload: tuple[str, ...]) -> None:
            super().__init__(preload)
            started.append(self)

    monkeypatch.setattr(pool, "WarmServer", Counted)
    return started


@pytest.fixture
def check_refused(project, pteforge, servers) -> Callable[..., None]:
    """Checks that a command ends with one error that has all parts, without a worker, a new file or a new folder."""

    def check(*args: str, parts: tuple[str, ...]) -> None:
        before = contents(project.folder)
        pteforge(project, *args).refused(*parts)
        assert contents(project.folder) == before
        assert servers == []

    return check


def contents(folder: Path) -> dict[Path, bytes | None]:
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


# One case for each place that is checked; tests/configs and tests/tasks have the others.
ZOOS = {
    "dataset": (
        ZOO + "    calibration: {forward: {dataset: 'nets:linea'}}\n",
        ("zoo.yaml:7:", "models.linear.calibration.forward.dataset", "nets.py binds no 'linea'"),
    ),
    "buckets": (
        ZOO + "    methods: {forward: {buckets: {batch: [4, 1]}}}\n",
        ("zoo.yaml:7:", "models.linear.methods.forward.buckets.batch", "ascending order"),
    ),
    "quantizer": (
        ZOO.replace("portable-fp32", "q")
        + "recipes:\n  q: {quantize: {quantizer: portable}, specializations: [{target: portable}]}\n",
        ("recipes.q.quantize", "target 'portable' has no quantizer", "xnnpack"),
    ),
    "arguments": (
        ZOO.replace("nets:linear", "{builder: 'nets:linear', kwargs: {widht: 8, dtype: float32}}"),
        ("zoo.yaml:6:", "models.linear.source.kwargs.widht", "no argument 'widht'; did you mean 'width'?"),
    ),
    "arguments of a dataset": (
        ZOO + "    calibration: {forward: {dataset: 'nets:conv', kwargs: {seed: 1}}}\n",
        ("zoo.yaml:7:", "models.linear.calibration.forward.kwargs.seed", "takes no argument 'seed'; it takes none"),
    ),
    "arguments of an evaluator": (
        ZOO + "    accuracy: {evaluator: 'scoring:finite', floor: 1,\n      kwargs: {predict: 1, scal: 2}}\n",
        (
            *("zoo.yaml:8:16: models.linear.accuracy.kwargs.predict", "gets 'predict' from pteforge"),
            *("zoo.yaml:8:28: models.linear.accuracy.kwargs.scal", "mean 'scale'"),
        ),
    ),
    "dataset of a shipped evaluator": (
        ZOO
        + "    accuracy: {evaluator: 'pteforge.evaluators:top_k', floor: 1,\n      kwargs: {dataset: 'nets:linea'}}\n",
        ("zoo.yaml:8:16: models.linear.accuracy.kwargs.dataset", "nets.py binds no 'linea'"),
    ),
    "argument of a shipped evaluator": (
        ZOO + "    accuracy: {evaluator: 'pteforge.evaluators:mean_iou', floor: 1,\n      kwargs: {fold: images}}\n",
        ("zoo.yaml:8:16: models.linear.accuracy.kwargs.fold", "did you mean 'folder'?"),
    ),
    "folder of a shipped evaluator": (
        ZOO + "    accuracy: {evaluator: 'pteforge.evaluators:mean_iou', floor: 1,\n      kwargs: {folder: images}}\n",
        ("zoo.yaml:7:", "models.linear.accuracy", "there is no file", "images"),
    ),
    "arguments of a transform": (
        OWN_RECIPE + "    source_transforms: [{callable: 'nets:linear', kwargs: {dtpye: float32}}]\n",
        ("recipes.mine.source_transforms[0].kwargs.dtpye", "did you mean 'dtype'?"),
    ),
    "builders of two models": (
        ZOO.replace("nets:linear", "nets:linaer") + "  other:\n    source: nest:conv\n",
        ("zoo.yaml:6:5: models.linear.source", "did you mean 'linear'", "zoo.yaml:8:5: models.other.source", "'nets'"),
    ),
    "targets that are not available": (
        OWN_RECIPE.replace("[mine]", "[mine, other]")
        .replace("specializations:", "output: {form: fat}\n    specializations:\n      - target: nxp")
        .replace("target: xnnpack", "target: samsung")
        + "      - target: portable\n  other: {specializations: [{target: samsung+nxp}]}\n",
        (
            "zoo.yaml:10:9: recipes.mine.specializations[0].target: target 'nxp' is not available here",
            "zoo.yaml:11:9: recipes.mine.specializations[1].target: target 'samsung' is not available here",
            *("zoo.yaml:14:30: recipes.other.specializations[0].target", "samsung: it needs", "; nxp: this machine"),
        ),
    ),
    "torchao config": (
        OWN_RECIPE + "    source_transforms: [{torchao: int8_weight_onl}]\n",
        ("recipes.mine.source_transforms[0]", "did you mean 'int8_weight_only'"),
    ),
    "transform": (
        OWN_RECIPE + "    source_transforms: [{callable: 'nets:nothing'}]\n",
        ("recipes.mine.source_transforms[0]", "nets.py binds no 'nothing'"),
    ),
    "file of a transform": (
        OWN_RECIPE + "    source_transforms: [{callable: 'nets:linear', files: [gone.txt]}]\n",
        ("recipes.mine.source_transforms[0].files[0]", "there is no file"),
    ),
    "rounding without samples": (
        OWN_RECIPE + "    quantize_layers: {linear: 8da4w, rounding: gptq}\n",
        ("zoo.yaml:3:3: models.linear: recipe 'mine' rounds weights by samples of the model: give it `calibration`",),
    ),
    "rounding of a changed model": (
        OWN_RECIPE + "    source_transforms:\n      - {callable: 'nets:linear'}\n"
        "      - {torchao: intx_weight_only, rounding: gptq}\n",
        ("recipes.mine", "`rounding: gptq` and `equalize: awq` observe the model itself, and functions among"),
    ),
    "YAML": ("models: [\n", ("zoo.yaml:2:1", "not valid YAML")),
}


@pytest.mark.parametrize(("zoo", "parts"), ZOOS.values(), ids=ZOOS)
def test_zoo_files(project, check_refused, zoo, parts):
    """An error in a zoo file has file, line, column, field, and what was probably meant."""
    project.write("zoo.yaml", zoo)
    check_refused("export", "zoo.yaml", parts=parts)


ARGUMENTS = {
    "no zoo file": (("nowhere.yaml",), ("nowhere.yaml", "No such file")),
    "a folder": (("folder",), ("folder", "Is a directory")),
    "no model": (("zoo.yaml", "--model", "liner*"), ("no model matches 'liner*'", "linear")),
    "no recipe": (("zoo.yaml", "--recipe", "x*"), ("matches 'x*'", "portable-fp32")),
    "out is a file": (("zoo.yaml", "--out", "file"), ("file is not a folder", "--out")),
    "out is below a file": (("zoo.yaml", "--out", "file/deep/down"), ("file is not a folder", "--out")),
    "out is a URL": (("zoo.yaml", "--out", "s3://bucket/out"), ("s3:/bucket/out is a URL", "choose a folder")),
    "set: unknown key": (("zoo.yaml", "--set", "models.linear.sed=3"), ("--set models.linear.sed", "mean 'seed'")),
    "store is a file": (("zoo.yaml", "--store", "file"), ("the store", "file", "cannot be opened", "--store")),
    "store is below a file": (("zoo.yaml", "--store", "file/deep"), ("the store", "Not a directory", "--store")),
    "store is something else": (("zoo.yaml", "--store", "folder"), ("neither empty nor a pteforge store", "unknown")),
    "store of others": (("zoo.yaml", "--store", "shared"), ("written by other users", "chmod")),
    "store is shared, no key": (("zoo.yaml", "--store", "s3://bucket/store"), ("PTEFORGE_SIGNING_KEY", "export")),
}


@pytest.mark.parametrize(("args", "parts"), ARGUMENTS.values(), ids=ARGUMENTS)
def test_arguments_of_export(project, check_refused, monkeypatch, args, parts):
    """Arguments are checked as the zoo file is."""
    monkeypatch.delenv("PTEFORGE_SIGNING_KEY", raising=False)
    project.write("zoo.yaml", ZOO)
    project.write("file", "")
    project.write("folder/unknown", "")
    (project.folder / "shared").mkdir()
    (project.folder / "shared").chmod(0o777)
    check_refused("export", *args, parts=parts)


@pytest.mark.parametrize("args", [("--jobs", "0"), ("--jobs", "two"), ("--modle", "x"), ("--json=3",)], ids=" ".join)
def test_unknown_options(project, pteforge, servers, args):
    """An option that does not exist, or does not take the value, ends with 2 and its name on standard error."""
    project.write("zoo.yaml", ZOO)
    said = pteforge(project, "export", "zoo.yaml", *args)
    assert (said.code, said.out, servers) == (2, "", [])
    assert args[0].partition("=")[0] in said.err


@pytest.mark.parametrize("option", ["--older-than", "--keep-newer-than"])
@pytest.mark.parametrize("age", ["", "2 weeks", "99999999999999w"])
def test_ages(project, pteforge, option, age):
    """An invalid age, or one that is too long, is an error with examples; nothing is collected."""
    pteforge(project, "store", "gc", option, age).refused(repr(age), "30d")


@pytest.mark.parametrize("size", ["", "much", "4GiB/s", "-1"])
def test_sizes(project, pteforge, size):
    """An invalid size is an error with examples; nothing is collected."""
    pteforge(project, "store", "gc", "--max-bytes", size).refused(repr(size), "4GiB")


@pytest.mark.parametrize("command", ["run", "inspect", "verify"])
def test_files_that_are_no_programs(project, check_refused, command):
    """`run`, `inspect` and `verify` report a file that is no .pte file by its name."""
    (project.folder / "folder.pte").mkdir()
    project.write("empty.pte", "")
    project.write("text.pte", "once upon a time there was a file that was no program")
    (project.folder / "short.pte").write_bytes(b"\x10\x00\x00\x00ET12" + bytes(100))
    for name in ("nothing.pte", "folder.pte", ".", "empty.pte", "text.pte", "short.pte"):
        check_refused(command, name, parts=(name,))


def test_missing_store(project, pteforge):
    """`why` and the store commands report a missing store, and do not make it."""
    for command in (("why", "linear"), ("store", "ls"), ("store", "verify"), ("store", "gc")):
        pteforge(project, *command).refused("there is no store at")


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> bytes:
    """Bytes of a `.pt2` file."""
    import torch

    path = tmp_path_factory.mktemp("program") / "linear.pt2"
    torch.export.save(torch.export.export(torch.nn.Linear(4, 2), (torch.ones(1, 4),)), path)
    return path.read_bytes()


def test_damaged_program(project, check_refused, program):
    """A damaged `.pt2` file is reported before any work starts, with its name and where the zoo names it."""
    weight = program.index(b"weights/") + 200
    flipped = program[:weight] + bytes([program[weight] ^ 1]) + program[weight + 1 :]
    for content in (flipped, program[: len(program) // 2]):
        (project.folder / "linear.pt2").write_bytes(content)
        project.write("zoo.yaml", ZOO.replace("nets:linear", "linear.pt2"))
        check_refused("export", "zoo.yaml", parts=("zoo.yaml:6:5: models.linear.source", "linear.pt2", "damaged"))


FOUND_BY_WORKERS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "shape": ("faulty:wrong_shape", ("does not take its own example inputs of method 'forward'", "(1, 3)")),
    "method": (
        {"source": "nets:linear", "dynamic_shapes": {"decode": [None]}},
        ("dynamic_shapes names the methods ['decode']", "['forward']"),
    ),
    "bucket": (
        {"source": "nets:linear", "methods": {"forward": {"buckets": {"batch": [2]}}}},
        ("buckets of method 'forward'", "no dynamic dimension 'batch'"),
    ),
    "nothing": ("faulty:misunderstood", ("faulty:misunderstood returned int", "example inputs")),
    "rewritten": ("rewritten.pt2", ("rewritten.pt2 is not a program that torch", "can load")),
}


def rewrite(program: bytes, path: Path) -> None:
    """Writes an undamaged archive whose program torch cannot load."""
    path.write_bytes(program)
    with zipfile.ZipFile(path) as archive:
        members = {member: archive.read(member) for member in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, b"{}" if name.endswith("models/model.json") else content)


@pytest.mark.slow
def test_found_by_a_worker(project, program):
    """Mistakes that only building the model reveals fail all its recipes at export, as bad input, without a traceback.

    The exit code is 2, and the messages have model and step.
    """
    rewrite(program, project.folder / "rewritten.pt2")
    project.write_zoo({name: source for name, (source, _) in FOUND_BY_WORKERS.items()})
    done = project.export()
    assert done.code == 2
    assert "Traceback" not in done.err
    assert not project.files()
    assert "0 files verified, 10 failed" in done.out
    for name, (_, parts) in FOUND_BY_WORKERS.items():
        assert f"{name} export" in done.err  # with the bucket, where the method has some
        for part in parts:
            assert part in done.err


@pytest.mark.slow
def test_unknown_operator(project):
    """Operator names are checked in a worker before any stage runs: exit code 2 and one message."""
    preserve = "    edge: {preserve_operators: [aten.linear.default, aten.no_such_thing.default]}\n"
    project.write("zoo.yaml", OWN_RECIPE + preserve)
    project.export().refused(
        "unknown operator 'aten.no_such_thing.default' in edge.preserve_operators", "aten.hardswish.default"
    )
    assert not project.out.exists()
    assert not list((project.store / "ledger" / "stages").rglob("*"))
