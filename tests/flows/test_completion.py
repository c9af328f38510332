"""What the shell completes at TAB, and what that may import."""

from __future__ import annotations

import os
import sys
import typing
from pathlib import Path

import pytest
from pteforge.artifacts.files import LocalFiles
from pteforge.artifacts.runs import RunRecord, Runs, StageOutcome
from pteforge.configs.presets import preset_names
from pteforge.configs.zoo import RunConfig
from pteforge.flows.run import request
from pteforge.tasks.lowering.graph import STAGES
from pteforge.tests.conftest import run_process

PLACES = typing.get_args(RunConfig.model_fields["on"].annotation)
COMMANDS = ["export", "plan", "init", "inspect", "metadata", "contract", "check", "run", "generate"]
COMMANDS += ["verify", "bench", "thin", "extract", "merge", "bisect", "doctor", "publish", "reproduce", "deploy"]
COMMANDS += ["serve", "runs", "why", "diff", "upgrade"]
COMMANDS += ["schema", "release", "store"]
COMMANDS += ["runtime"]
BIN = Path(sys.executable).parent
HEAVY = {"executorch", "fsspec", "numpy", "prefect", "rich", "torch"}

ZOO = """\
version: 1
include: [more/others.yaml]
defaults: {recipes: [portable-fp32, mine]}
models:
  keywords: {source: nets:keywords}
  "$(touch made)": {source: nets:hostile}
recipes:
  mine: {extends: xnnpack-fp32}
"""
OTHERS = """\
include: [../zoo.yaml]
models:
  resnet8: {source: nets:resnet, recipes: [xnnpack-fp32]}
  resnet18: {source: nets:resnet}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A folder with a zoo of two files that include each other, broken zoos, releases, and a store with a run."""
    (tmp_path / "more").mkdir()
    contents = {"zoo": ZOO, "more/others": OTHERS, "broken": "models: [", "list": "- models", "odd": "models: 3"}
    for name, content in contents.items():
        (tmp_path / f"{name}.yaml").write_text(content, encoding="utf-8")
    for name in ("channels/stable", "channels/latest", "releases/20260101T000000-abc"):
        path = tmp_path / "released" / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    outcome = StageOutcome("lstm/export/forward", "export", "forward", ("xnnpack-fp32",), "cached", None)
    run = RunRecord("0123456789abcdef", "zoo", "2026-01-01T00:00:00.000+00:00", 1.0, {"lstm": (outcome,)})
    Runs(LocalFiles(tmp_path / "store")).write(run)
    (tmp_path / "store" / "runs" / "99990101T000000.000000-ff.json").write_text("damaged", encoding="utf-8")
    monkeypatch.setenv("PTEFORGE_STORE", str(tmp_path / "store"))
    return tmp_path


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", COMMANDS),
        ("ex", ["export", "extract"]),
        ("store ", ["ls", "verify", "push", "pull", "rekey", "gc"]),
        ("export zoo.yaml --ref", ["--refresh"]),
        ("export zoo.yaml --on ", list(PLACES)),
        ("export zoo.yaml --until ", sorted(stage.name for stage in STAGES)),
        ("export zoo.yaml --model ", ["keywords", "resnet8", "resnet18"]),
        ("plan zoo.yaml --json --model res", ["resnet8", "resnet18"]),
        ("export zoo.yaml --model keywords,resnet1", ["keywords,resnet18"]),
        ("export zoo.yaml --recipe ", ["portable-fp32", "mine", "xnnpack-fp32"]),
        ("export nets:linear --recipe ", list(preset_names())),
        ("init nets:linear --recipe portable", ["portable-fp32"]),
        ("bisect zoo.yaml resnet8", ["resnet8/xnnpack-fp32"]),
        ("bisect zoo.yaml keywords/", ["keywords/portable-fp32", "keywords/mine"]),
        ("why ", ["lstm", "lstm/xnnpack-fp32"]),
        ("why lstm --run ", ["01234567"]),
        ("diff 01", ["01234567"]),
        ("diff ", []),  # bash offers files
        ("release promote released ", ["latest", "stable", "20260101T000000-abc"]),
        ("release rollback released --channel s", ["stable"]),
    ],
)
def test_values(folder, complete, line, expected):
    """Commands, options and values are offered: of the zoo, with its includes, of the store and of the releases."""
    assert complete(folder, line) == expected
    assert not (folder / "made").exists()


@pytest.mark.parametrize("zoo", ["missing.yaml", "broken.yaml", "list.yaml", "odd.yaml", "more"])
def test_nothing_without_a_zoo(folder, complete, zoo):
    """A zoo that cannot be read completes nothing, and says nothing."""
    assert complete(folder, f"export {zoo} --model ") == []


def test_places_are_those_of_zoos():
    """`--on` takes what a zoo file takes in `run.on`."""
    assert typing.get_args(request.RunsOn) == PLACES


@pytest.mark.parametrize("words", ["pteforge export zoo.yaml --model ", "pteforge diff --", "pteforge store gc --"])
def test_what_completion_imports(folder, words):
    """No completion of names in a zoo and of options imports what takes long."""
    env = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    program = "import sys; from pteforge.tests.command import run_command; run_command(); print(*sys.modules)"
    env = {**os.environ, **env, "_PTEFORGE_COMPLETE": "complete_bash"}
    done = run_process(sys.executable, "-c", program, cwd=folder, env=env)
    assert done.returncode == 0, done.stderr
    *offered, modules = done.stdout.splitlines()
    assert offered
    loaded = set(modules.split())
    assert HEAVY.isdisjoint(loaded)
    own = {name.removeprefix("pteforge.") for name in loaded}
    assert {
        "configs",
        "flows.run.session",
        "tasks.engine.executor",
        "tasks.engine.stage",
        "tasks.lowering",
        "tasks.backend",
    }.isdisjoint(own)


def test_bash(folder):
    """`--install-completion` makes a real bash complete, without a message where there is nothing to offer."""
    env = {**os.environ, "HOME": str(folder), "PATH": f"{BIN}:{os.environ['PATH']}"}

    def bash(program: str) -> str:
        # not the last command, for which bash would replace itself
        done = run_process("bash", "--norc", "-c", f"{program}; exit $?", cwd=folder, env=env)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    assert "bash completion installed" in bash("pteforge --install-completion")
    offered = bash(
        "source ~/.bashrc\n"
        'words() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _pteforge_completion pteforge; echo ${COMPREPLY[*]}; }\n'
        "words pteforge why ls\n"
        "words pteforge export zoo.yaml --model resnet\n"
        "words pteforge export broken.yaml --model ''"
    )
    assert offered.splitlines() == ["lstm lstm/xnnpack-fp32", "resnet8 resnet18", ""]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells(folder, shell):
    """Zsh and fish get the values as well; the real shells are not needed for it."""
    env = {"_TYPER_COMPLETE_ARGS": "pteforge export zoo.yaml --model k", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    done = run_process(
        BIN / "pteforge", cwd=folder, env={**os.environ, **env, "_PTEFORGE_COMPLETE": f"complete_{shell}"}
    )
    assert done.returncode == 0
    assert "keywords" in done.stdout
    assert "resnet8" not in done.stdout
