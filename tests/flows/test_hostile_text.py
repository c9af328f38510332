"""Text that is not pteforge's own: no command lets it control a terminal, or reads it as markup."""

from __future__ import annotations

import ast
import json
import logging
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pteforge as package
import pytest
import typer
from pteforge.artifacts.runs import FieldChange, ReleaseOutcome
from pteforge.artifacts.store import open_store
from pteforge.errors import printable
from pteforge.flows.cli.examine import _print_diagnoses as print_diagnoses
from pteforge.flows.cli.main import app
from pteforge.flows.cli.progress import Failures, print_failures, print_summary
from pteforge.flows.cli.terminal import guarded_streams, open_console
from pteforge.flows.prefect.pages import _diagnosis, _summary
from pteforge.flows.run.examine import ModelDiagnosis
from pteforge.flows.run.outcome import ModelOutcome, ZooOutcome
from pteforge.tasks.results.delivered import Delivered, Failure
from pteforge.tasks.results.diagnosis import Cause, Diagnosis, Trace
from pteforge.tests.flows.conftest import open_run

HOSTILE = "x[/b]y\x1b]0;title\x07\x1b[2J\u202eevil\u2066\u200b\x9b\rz"
FORBIDDEN = {"\x07", "\u202e", "\u2066", "\u200b", "\x9b"}
FILE = f"{HOSTILE}.pte"
RELEASES = f"releases {HOSTILE}"
BUILDER = f"""
import sys

def fails():
    print({HOSTILE!r}, file=sys.stderr)
    raise RuntimeError({HOSTILE!r})
"""

COMMANDS = {
    "export": [
        ["zoo.yaml", "--dry-run"],
        [HOSTILE],
        ["zoo.yaml", "--until", HOSTILE],
        ["zoo.yaml", "--jobs", HOSTILE],
        ["zoo.yaml", "--metrics", HOSTILE],
        ["zoo.yaml", "--log-format", HOSTILE],
    ],
    "plan": [["zoo.yaml"], ["zoo.yaml", "--set", HOSTILE], ["zoo.yaml", "--model", HOSTILE]],
    "init": [[HOSTILE], [f"hostile:{HOSTILE}"], ["--example", HOSTILE], ["--example", "starter", f"new {HOSTILE}"]],
    "inspect": [[FILE], [HOSTILE]],
    "metadata": [[FILE], [HOSTILE]],
    "contract": [[FILE], [HOSTILE], [FILE, "--yaml"], [FILE, "--cmake"], ["--diff", FILE, HOSTILE]],
    "check": [[FILE, "--runtime", "1.4"], [FILE, "--runtime", HOSTILE], [HOSTILE, "--runtime", "1.4"]],
    "generate": [[FILE, HOSTILE], [HOSTILE, "prompt"]],
    "run": [[FILE], [FILE, "--method", HOSTILE]],
    "verify": [[FILE], [HOSTILE], [FILE, "--place", HOSTILE]],
    "bench": [[FILE, "--seconds", "0.01"], [HOSTILE], [FILE, "--place", HOSTILE], [FILE, "--against", HOSTILE]],
    "runtime install": [[HOSTILE]],
    "thin": [[FILE, "--keep", HOSTILE, "--out", FILE]],
    "extract": [[FILE, HOSTILE, "--out", "other.pte"]],
    "merge": [[FILE, "--out", "other.pte"], [f"portable={FILE}", "--out", f"fat {FILE}"]],
    "bisect": [["zoo.yaml", f"linear/{HOSTILE}"], [HOSTILE, "linear/portable-fp32"]],
    "doctor": [[HOSTILE], ["zoo.yaml", "--model", HOSTILE], ["zoo.yaml", "--set", HOSTILE]],
    "publish": [["out", "--to", RELEASES], [HOSTILE, "--to", RELEASES], ["out", "--to", RELEASES, "--gate", HOSTILE]],
    "release list": [[RELEASES], [HOSTILE]],
    "release promote": [[RELEASES, HOSTILE], [RELEASES, "latest"]],
    "release rollback": [[RELEASES, "--channel", HOSTILE]],
    "release fetch": [[RELEASES, HOSTILE], [RELEASES, "*", "--out", f"fetched {HOSTILE}"]],
    "reproduce": [[RELEASES, HOSTILE], [HOSTILE, "linear/portable-fp32"]],
    "deploy": [["zoo.yaml", f"--{HOSTILE}"]],
    "serve": [[f"--{HOSTILE}"]],
    "runs": [[], ["--limit", HOSTILE]],
    "why": [[HOSTILE], ["linear"], ["bad"], [f"{HOSTILE}/{HOSTILE}"], [HOSTILE, "--run", HOSTILE]],
    "upgrade": [["zoo.yaml", "--to", HOSTILE], ["zoo.yaml", "--to", f"./{HOSTILE}"], [HOSTILE, "--to", "next"]],
    "diff": [[FILE, "out"], [FILE, "out", "--markdown"], ["forged", "out"], [HOSTILE, "out"]],
    "schema": [[]],
    "store ls": [[], ["--store", HOSTILE]],
    "store verify": [[], ["--store", HOSTILE]],
    "store gc": [["--dry-run"], ["--older-than", HOSTILE]],
    "store push": [[HOSTILE]],
    "store pull": [[f"{HOSTILE} missing"]],
    "store rekey": [["--store", HOSTILE]],
}


def commands(group: typer.core.TyperGroup, prefix: str = "") -> Iterator[str]:
    """The names of all commands, those of groups with the group's."""
    for name, command in group.commands.items():
        if isinstance(command, typer.core.TyperGroup):
            yield from commands(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}"


@pytest.fixture(scope="module")
def make_hostile(make_project):
    """Makes a project with one good and one hostile model."""

    def make(folder):
        project = make_project(folder)
        project.write("hostile.py", BUILDER)
        recipe = {"recipes": ["portable-fp32"]}
        models = {"linear": {"source": "nets:linear", **recipe}, "bad": {"source": "hostile:fails", **recipe}}
        project.write("zoo.yaml", json.dumps({"version": 1, "name": HOSTILE, "models": models}))
        return project

    return make


@pytest.fixture(scope="module")
def lowered(tmp_path_factory, make_hostile, lower):
    """Such a project after its first run, with a hostile file, and the record of a run that somebody forged."""
    project = make_hostile(tmp_path_factory.mktemp("hostile") / "project")
    outcome = lower(project).outcome
    for suffix in (".pte", ".json"):
        copy = (project.folder / FILE).with_suffix(suffix)
        copy.parent.mkdir(exist_ok=True)
        shutil.copyfile((project.out / "linear/portable-fp32.pte").with_suffix(suffix), copy)
    with open_store(str(project.store)) as store:
        record = next(iter(store.runs))
        stages = tuple(
            replace(
                stage,
                slot=f"{HOSTILE}/{HOSTILE}",
                recipes=(HOSTILE,),
                message=HOSTILE,
                status=status,
                differs=(FieldChange(HOSTILE, HOSTILE, HOSTILE),),
            )
            for stage, status in zip(record.models["linear"], ("ran", "failed", "cached"), strict=False)
        )
        entry = record.files["linear"]["portable-fp32"]
        kept = {"operator": HOSTILE, "why": HOSTILE, "calls": 1, "operations": 1, "kept_on_cpu": True}
        work = {"payload": HOSTILE, "method": HOSTILE, "delegated": 0, "outside": [kept]}
        forged = replace(
            record,
            id="forged",
            zoo=HOSTILE,
            host=HOSTILE,
            commit=HOSTILE,
            version=HOSTILE,
            models={HOSTILE: stages, **record.models},
            files={
                HOSTILE: {HOSTILE: {**entry, "left_out": {HOSTILE: HOSTILE}, "findings": {"delegation": [work]}}},
                **record.files,
            },
        )
        store.runs.write(forged)
    return project, outcome


def check(text: str) -> None:
    """Nothing in it controls a terminal, other than Rich's colours and cursor."""
    assert not FORBIDDEN & set(text)
    assert "\x1b]" not in text
    assert "\x1b[2J" not in text


def test_every_command_has_cases():
    """A new command needs an entry in `COMMANDS`."""
    assert COMMANDS.keys() == set(commands(typer.main.get_command(app)))


COLOURED = ("plan", "inspect", "doctor", "release list", "runs", "why", "diff", "store ls")  # those that print tables


@pytest.mark.parametrize(
    ("command", "colours"), [*((name, False) for name in COMMANDS), *((name, True) for name in COLOURED)]
)
def test_commands(lowered, pteforge, monkeypatch, command, colours):
    """Names, messages and records from outside are escaped in tables, lines, errors and JSON; none is markup."""
    if colours:
        monkeypatch.setenv("FORCE_COLOR", "1")
    shown = ""
    for args in COMMANDS[command]:
        said = pteforge(lowered[0], *command.split(), *args)
        assert said.code in (0, 1, 2, 3), said.err
        shown += said.out + said.err
    check(shown)
    assert colours or "\x1b" not in shown
    assert colours or command == "schema" or "x[/b]y\\x1b]0;" in re.sub(r"[\s│]", "", shown)


def test_outcome(lowered, capfd):
    """What an export prints at its end, and a warning of the log, have a builder's exception and log escaped."""
    with guarded_streams():
        logging.StreamHandler().handle(logging.makeLogRecord({"msg": HOSTILE}))
        print_failures(lowered[1], Failures())
        print_summary(lowered[1])
    said = capfd.readouterr()
    check(said.out + said.err)
    assert "\x1b" not in said.out + said.err
    assert f"RuntimeError: {printable(HOSTILE)}" in said.err


def test_prefects_page(lowered, workers):
    """Prefect's page about a zoo has text of others as text, as the page in the folder of results has."""
    project, outcome = lowered
    with open_run(project, workers) as session:
        session.progress.outcomes |= {model.model: model for model in outcome.models}
        session.recording.release = ReleaseOutcome(HOSTILE, HOSTILE, HOSTILE, (HOSTILE,), held_back=True)
        text = "\n".join(_summary(session))
    check(text)
    assert "\x1b" not in text
    assert r"x\[/b\]y\\x1b\]0;title" in text


def test_findings(capfd):
    """Lines of a model's code, and messages of torch about it, are text wherever findings are shown."""
    finding = Cause("known cause", HOSTILE, (HOSTILE,), where=HOSTILE, code=HOSTILE)
    attempts = Trace(strict=False, problem=HOSTILE), Trace(strict=True)
    diagnosis = Diagnosis(HOSTILE, (HOSTILE,), False, attempts, (finding, replace(finding, only="strict")))
    failure = Failure(HOSTILE, HOSTILE, HOSTILE, bad_input=False, findings=(finding,))
    outcome = ModelOutcome(HOSTILE, (Delivered(HOSTILE, HOSTILE, "failed", failure=failure),))
    print_failures(ZooOutcome(HOSTILE, (outcome,), 1.0), Failures())
    with guarded_streams():
        print_diagnoses(open_console(), (ModelDiagnosis(HOSTILE, {HOSTILE: diagnosis, "": failure}),))
    said = capfd.readouterr()
    page = "\n".join(_diagnosis(HOSTILE, {HOSTILE: failure}))
    for text in (said.out, said.err, page):
        check(text)
        assert "\x1b" not in text
    assert r"x\[/b\]y\\x1b\]0;title" in page
    assert "x[/b]y\\x1b]0;title" in said.err


@pytest.mark.slow
def test_export_in_a_terminal(tmp_path, make_hostile):
    """Rich's own sequences for colours and the progress bar reach a terminal, those of a builder do not."""
    code, shown = make_hostile(tmp_path / "project").in_terminal("export", "zoo.yaml")
    assert code == 1, shown
    check(shown)
    assert "\x1b[2K" in shown
    assert f"RuntimeError: {printable(HOSTILE)}" in shown.replace("\r\n", "")


def test_one_place_opens_consoles():
    """Commands open Rich's consoles by `open_console`, where text is no markup."""
    opening = set()
    for path in (Path(package.__file__).parent / "flows").rglob("*.py"):
        calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
        if any(isinstance(call.func, ast.Name) and call.func.id == "Console" for call in calls):
            opening.add(path.name)
    assert opening == {"terminal.py"}
