"""What cannot be used is refused with one message that says where and why, before any work where that is possible."""

from __future__ import annotations

import signal
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pteforge.errors import TargetError
from pteforge.flows.session import open_session
from pteforge.tasks.workers import pool

pytestmark = pytest.mark.timeout(600)

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
def pteforge(room, monkeypatch, run_here) -> Callable[..., Any]:
    """Runs the command line in this process, in the room."""
    monkeypatch.setenv("PTEFORGE_STORE", str(room.store))
    return partial(run_here, room.folder)


@pytest.fixture
def servers(monkeypatch) -> list[pool.WarmServer]:
    """Worker servers that were started in this process during the test."""
    started: list[pool.WarmServer] = []

    class Counted(pool.WarmServer):
        def __init__(self, preload: tuple[str, ...]) -> None:
            super().__init__(preload)
            started.append(self)

    monkeypatch.setattr(pool, "WarmServer", Counted)
    return started


@pytest.fixture
def refused(room, pteforge, servers) -> Callable[..., None]:
    """Runs a command that must be refused before anything is begun: no worker, no file, no folder."""

    def run(*args: str, telling: tuple[str, ...]) -> None:
        before = contents(room.folder)
        pteforge(*args).refused(*telling)
        assert contents(room.folder) == before
        assert servers == []

    return run


def contents(folder: Path) -> dict[Path, bytes | None]:
    """All files and folders below a folder."""
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


ZOOS = {
    "no dataset": (
        ZOO + "    calibration: {forward: {dataset: 'nets:linea'}}\n",
        ("zoo.yaml:7:", "models.linear.calibration.forward.dataset", "nets.py binds no 'linea'"),
    ),
    "no quantizer": (
        ZOO.replace("portable-fp32", "q")
        + "recipes:\n  q: {quantize: {quantizer: portable}, specializations: [{target: portable}]}\n",
        ("recipes.q.quantize", "target 'portable' has no quantizer", "xnnpack"),
    ),
    "unknown key": (
        ZOO + "    sed: 3\n",
        ("zoo.yaml:7:5: models.linear.sed", "unknown key 'sed'", "did you mean 'seed'"),
    ),
    "two unknown keys": (
        ZOO + "    sed: 3\n    limit: {}\n",
        ("zoo.yaml:7:5: models.linear.sed", "zoo.yaml:8:5: models.linear.limit", "did you mean 'limits'"),
    ),
    "wrong type": (ZOO + "    seed: three\n", ("zoo.yaml:7:5: models.linear.seed", "whole number", "'three'")),
    "no such builder": (
        ZOO.replace("nets:linear", "nets:linaer"),
        ("zoo.yaml:6:5: models.linear.source", "nets.py binds no 'linaer'", "did you mean 'linear'"),
    ),
    "no such module": (
        ZOO.replace("nets:linear", "nest:linear"),
        ("zoo.yaml:6:5: models.linear.source", "no module 'nest'", "did you mean 'nets'"),
    ),
    "builders of two models": (
        ZOO.replace("nets:linear", "nets:linaer") + "  other:\n    source: nets:cnov\n",
        ("zoo.yaml:6:5: models.linear.source", "zoo.yaml:8:5: models.other.source", "did you mean 'conv'"),
    ),
    "no Python": (ZOO.replace("nets:linear", "broken:make"), ("models.linear.source", "broken.py:1:10", "syntax")),
    "no such program": (
        ZOO.replace("nets:linear", "nothing.pt2"),
        ("zoo.yaml:6:5: models.linear.source", "there is no program file", "nothing.pt2"),
    ),
    "shapes that contradict": (
        ZOO + "    dynamic_shapes: {forward: [{0: {min: 4, max: 1}}]}\n",
        ("zoo.yaml:7:33: models.linear.dynamic_shapes.forward[0].0", "min (4) is more than max (1)"),
    ),
    "no such recipe": (
        ZOO.replace("portable-fp32", "portable-fp23"),
        ("zoo.yaml:3:13: defaults.recipes[0]", "no recipe 'portable-fp23'", "did you mean 'portable-fp32'"),
    ),
    "no such target": (
        OWN_RECIPE.replace("xnnpack", "xnpack"),
        ("zoo.yaml:9:9: recipes.mine.specializations[0].target", "'xnpack'", "did you mean 'xnnpack'", "portable"),
    ),
    "no such option": (
        OWN_RECIPE.replace("{}", "{per_op: 1}"),
        ("zoo.yaml:9:9: recipes.mine.specializations[0].target", "'xnnpack'", "per_op", "per_operator"),
    ),
    "no YAML": ("models: [\n", ("zoo.yaml:2:1", "not valid YAML")),
    "nothing": ("", ("zoo.yaml:1:1", "empty", "models:")),
    "no models": ("version: 1\n", ("zoo.yaml:1:1", "no models")),
}


@pytest.mark.parametrize(("zoo", "telling"), ZOOS.values(), ids=ZOOS)
def test_zoo_files(room, refused, zoo, telling):
    """A zoo file that cannot be used is refused with file, line, column, field, and what was probably meant."""
    room.write("broken.py", "def make(:\n")
    room.write("zoo.yaml", zoo)
    refused("export", "zoo.yaml", telling=telling)


ARGUMENTS = {
    "no zoo file": (("nowhere.yaml",), ("nowhere.yaml", "No such file")),
    "a folder": (("folder",), ("folder", "Is a directory")),
    "no model": (("zoo.yaml", "--model", "liner*"), ("no model matches 'liner*'", "linear")),
    "no recipe": (("zoo.yaml", "--recipe", "x*"), ("matches 'x*'", "portable-fp32")),
    "out is a file": (("zoo.yaml", "--out", "file"), ("file is not a folder", "--out")),
    "out is below a file": (("zoo.yaml", "--out", "file/deep/down"), ("file is not a folder", "--out")),
    "set: no value": (("zoo.yaml", "--set", "seed"), ("--set seed", "KEY=VALUE")),
    "set: no key": (("zoo.yaml", "--set", "=3"), ("KEY=VALUE",)),
    "set: unknown key": (("zoo.yaml", "--set", "models.linear.sed=3"), ("--set models.linear.sed", "mean 'seed'")),
    "set: unknown model": (("zoo.yaml", "--set", "models.liner.seed=3"), ("no model 'liner'", "mean 'linear'")),
    "set: wrong type": (("zoo.yaml", "--set", "models.linear.seed=x"), ("--set models.linear.seed", "whole number")),
    "set: no YAML": (("zoo.yaml", "--set", "models.linear.seed=["), ("--set models.linear.seed", "not valid YAML")),
    "store is a file": (("zoo.yaml", "--store", "file"), ("the store", "file", "cannot be opened", "--store")),
    "store is below a file": (("zoo.yaml", "--store", "file/deep"), ("the store", "Not a directory", "--store")),
    "store is something else": (("zoo.yaml", "--store", "folder"), ("neither empty nor a pteforge store", "stranger")),
    "store of others": (("zoo.yaml", "--store", "shared"), ("written by other users", "chmod")),
    "store is shared, no key": (("zoo.yaml", "--store", "s3://bucket/store"), ("PTEFORGE_SIGNING_KEY", "export")),
}


@pytest.mark.parametrize(("args", "telling"), ARGUMENTS.values(), ids=ARGUMENTS)
def test_arguments_of_export(room, refused, monkeypatch, args, telling):
    """What is given on the command line is checked as the zoo file is."""
    monkeypatch.delenv("PTEFORGE_SIGNING_KEY", raising=False)
    room.write("zoo.yaml", ZOO)
    room.write("file", "")
    room.write("folder/stranger", "")
    (room.folder / "shared").mkdir()
    (room.folder / "shared").chmod(0o777)
    refused("export", *args, telling=telling)


@pytest.mark.parametrize("args", [("--jobs", "0"), ("--jobs", "two"), ("--modle", "x"), ("--json=3",)], ids=" ".join)
def test_options_that_are_none(room, pteforge, servers, args):
    """An option that does not exist, or takes no such value, ends with 2 and its name on standard error."""
    room.write("zoo.yaml", ZOO)
    said = pteforge("export", "zoo.yaml", *args)
    assert (said.code, said.out, servers) == (2, "", [])
    assert args[0].partition("=")[0] in said.err


@pytest.mark.parametrize("option", ["--older-than", "--keep-newer-than"])
@pytest.mark.parametrize("age", ["", "3", "d", "-1d", "1.5d", "2 weeks", "99999999999999w"])
def test_ages(pteforge, option, age):
    """Something that is not an age, or too long a one, is refused with examples; nothing is collected."""
    pteforge("store", "gc", option, age).refused(repr(age), "30d")


@pytest.mark.parametrize("command", ["run", "inspect", "verify"])
@pytest.mark.parametrize("name", ["nothing.pte", "folder.pte", ".", "empty.pte", "text.pte", "short.pte"])
def test_files_that_are_none(room, refused, command, name):
    """`run`, `inspect` and `verify` refuse what is no .pte file, with its name."""
    (room.folder / "folder.pte").mkdir()
    room.write("empty.pte", "")
    room.write("text.pte", "once upon a time there was a file that was no program")
    (room.folder / "short.pte").write_bytes(b"\x10\x00\x00\x00ET12" + bytes(100))
    refused(command, name, telling=(name,))


def test_store_that_is_not_there(pteforge):
    """`why` and the store commands refuse a store that is not there, and do not make it."""
    for command in (("why", "linear"), ("store", "ls"), ("store", "verify"), ("store", "gc")):
        pteforge(*command).refused("there is no store at")


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> bytes:
    """Bytes of a `.pt2` file."""
    import torch

    path = tmp_path_factory.mktemp("program") / "linear.pt2"
    torch.export.save(torch.export.export(torch.nn.Linear(4, 2), (torch.ones(1, 4),)), path)
    return path.read_bytes()


def flipped(content: bytes) -> bytes:
    """One bit is another, in the weights."""
    where = content.index(b"weights/")
    where = len(content) // 2 if where < 0 else where + 200
    return content[:where] + bytes([content[where] ^ 1]) + content[where + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "flipped": flipped,
    "truncated": lambda content: content[: len(content) // 2],
    "without end": lambda content: content[:-30],
    "empty": lambda _: b"",
    "text": lambda _: b"not a program",
    "something before it": lambda content: b"something" + content,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_programs(room, refused, program, damage):
    """A `.pt2` file that was damaged is refused before any work starts, with its name and where the zoo names it."""
    (room.folder / "linear.pt2").write_bytes(damage(program))
    room.write("zoo.yaml", ZOO.replace("nets:linear", "linear.pt2"))
    refused("export", "zoo.yaml", telling=("zoo.yaml:6:5: models.linear.source", "linear.pt2", "damaged"))


WRONG = """\
import os
import signal

import torch
from pteforge import MethodDefinition, ModelDefinition


def shape():
    return torch.nn.Linear(4, 2), (torch.ones(1, 3),)


def number():
    return torch.nn.Linear(4, 2), (torch.ones(1, 4), torch.ones(1, 4))


def second():
    return torch.nn.Linear(4, 2), [(torch.ones(1, 4),), (torch.ones(2, 4),)]


def dimensions():
    return torch.nn.Linear(4, 2), (torch.ones(1, 4),)


def nothing():
    return 3


def raising():
    raise RuntimeError("no weights today")


def good():
    return torch.nn.Linear(4, 2), (torch.ones(1, 4),)


def crashing():
    os.kill(os.getpid(), signal.SIGSEGV)
"""

WORKERS_FIND: dict[str, tuple[Any, tuple[str, ...]]] = {
    "shape": ("wrong:shape", ("does not take its own example inputs of method 'forward'", "(1, 3)")),
    "number": ("wrong:number", ("does not take its own example inputs of method 'forward'", "(1, 4), (1, 4)")),
    "second": ("wrong:second", ("example 1 of method 'forward'", "input 0 has size 2 in dimension 0", "takes 1")),
    "method": (
        {"source": "wrong:dimensions", "dynamic_shapes": {"decode": [None]}},
        ("dynamic_shapes names the methods ['decode']", "['forward']"),
    ),
    "dimensions": (
        {"source": "wrong:dimensions", "dynamic_shapes": {"forward": [{5: {"min": 1, "max": 4}}]}},
        ("'forward'", "5"),
    ),
    "nothing": ("wrong:nothing", ("wrong:nothing returned int", "example inputs")),
    "raising": ("wrong:raising", ("wrong:raising failed", "RuntimeError: no weights today")),
    "keyword": (
        {"source": {"builder": "wrong:shape", "kwargs": {"width": 3}}},
        ("wrong:shape failed", "unexpected keyword argument 'width'"),
    ),
    "rewritten": ("rewritten.pt2", ("rewritten.pt2 is not a program that torch", "can load")),
}


@pytest.fixture(scope="module")
def found_late(tmp_path_factory, make_room, lower, program):
    """A zoo of models each of which is wrong in a way that only a worker can find, lowered."""
    room = make_room(tmp_path_factory.mktemp("late") / "room")
    room.write("wrong.py", WRONG)
    rewrite(program, room.folder / "rewritten.pt2")
    room.zoo({name: source for name, (source, _) in WORKERS_FIND.items()})
    return room, lower(room)


def rewrite(program: bytes, path: Path) -> None:
    """An undamaged archive, whose program no torch can load."""
    path.write_bytes(program)
    with zipfile.ZipFile(path) as archive:
        members = {member: archive.read(member) for member in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, b"{}" if name.endswith("models/model.json") else content)


@pytest.mark.slow
@pytest.mark.parametrize("model", WORKERS_FIND)
def test_found_by_a_worker(found_late, model):
    """What only building the model tells fails all its recipes at export, as bad input, with a message that tells."""
    _, lowered = found_late
    (outcome,) = (each for each in lowered.outcome.models if each.model == model)
    assert [recipe.recipe for recipe in outcome.recipes] == ["portable-fp32", "xnnpack-fp32"]
    for recipe in outcome.recipes:
        assert recipe.failure is not None
        assert recipe.failure.bad_input
        assert recipe.failure.step == "export"
        for part in WORKERS_FIND[model][1]:
            assert part in recipe.failure.problem


@pytest.mark.slow
def test_only_bad_input(found_late):
    """A zoo in which all that fails is bad input exits with 2, and leaves nothing in the folder for results."""
    room, lowered = found_late
    assert lowered.outcome.exit_code == 2
    assert not room.out.exists() or not room.files()


@pytest.mark.slow
@pytest.mark.parametrize(("worse", "code"), [((), 2), (("crashing",), 1)], ids=["bad input", "and a crash"])
def test_bad_input_beside_others(room, lower, worse, code):
    """Models that are well are made beside bad input, which alone exits with 2, and with 1 beside a real failure."""
    room.write("wrong.py", WRONG)
    room.zoo({name: f"wrong:{name}" for name in ("shape", "good", *worse)}, ("portable-fp32",))
    lowered = lower(room)
    assert lowered.outcome.exit_code == code
    assert set(room.files()) == {"good/portable-fp32.pte", "good/portable-fp32.json"}
    problems = {
        model.model: [r.failure.problem for r in model.recipes if r.failure] for model in lowered.outcome.models
    }
    assert problems["good"] == []
    if worse:
        assert signal.Signals.SIGSEGV.name in problems["crashing"][0]


PRESERVE = OWN_RECIPE + "    edge: {preserve_operators: [aten.linear.default, aten.no_such_thing.default]}\n"


@pytest.mark.slow
def test_unknown_operator(room, servers, monkeypatch):
    """Names of operators are checked in a worker before any stage runs; the unknown one is told."""
    room.write("zoo.yaml", PRESERVE)
    monkeypatch.chdir(room.folder)
    with open_session(Path("zoo.yaml"), store=str(room.store), out=room.out) as session:
        assert not session.settle_from_ledger()
        with pytest.raises(TargetError, match=r"'aten\.no_such_thing\.default' in edge\.preserve_operators"):
            session.check_names()
    assert len(servers) == 1
    assert not list((room.store / "objects").rglob("*"))


@pytest.mark.slow
def test_unknown_operator_from_the_command_line(room, said):
    """It ends with 2 and the one message, and nothing was made."""
    room.write("zoo.yaml", PRESERVE)
    done = room.export()
    said(done.code, done.out, done.err).refused(
        "unknown operator 'aten.no_such_thing.default' in edge.preserve_operators", "aten.hardswish.default"
    )
    assert not room.out.exists()
    assert not list((room.store / "ledger" / "stages").rglob("*"))


@pytest.mark.slow
def test_wrong_shapes_from_the_command_line(room):
    """A model whose example inputs do not fit ends with 2; the message tells model, step and shapes, without a log."""
    room.write("wrong.py", WRONG)
    room.zoo({"shape": "wrong:shape"})
    done = room.export()
    assert done.code == 2
    assert "shape export: " in done.err
    assert "does not take its own example inputs of method 'forward': [(1, 3)]" in done.err
    assert "Traceback" not in done.err
    assert "0 files verified, 2 failed" in done.out
    assert not room.out.exists() or not room.files()
