"""Damage in the store is found before use, quarantined and repaired with the same bytes."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from itertools import cycle
from pathlib import Path

import pytest
from pteforge.artifacts.store import open_store
from pteforge.flows.run.zoo import lower_one
from pteforge.tasks.engine.executor import Executor, LocalRunner
from pteforge.tasks.programs.binding import weights_of
from pteforge.tests.flows.conftest import open_run

STEPS = 13  # of a model of one method with both recipes


@pytest.fixture(scope="module")
def lowered(lower_project):
    # wide enough for its weights to be objects of their own
    return lower_project({"linear": {"source": {"builder": "nets:linear", "kwargs": {"width": 256}}}})


def change(path: Path, content: bytes) -> None:
    """Overwrites a write-protected object, which also changes its modification time."""
    path.chmod(0o644)
    path.write_bytes(content)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    change(path, bytes(content))


def rot(path: Path) -> None:
    """Flips a bit as disks do: size, times and mode stay."""
    before = path.stat()
    flip(path)
    path.chmod(before.st_mode)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def truncate(path: Path) -> None:
    change(path, path.read_bytes()[: path.stat().st_size // 2])


OUTPUTS = [
    ("export", "program"),
    ("export", "examples"),
    ("edge", "program"),
    ("preprocess", "delegates"),
    ("serialize", "file"),
    ("report", "provenance"),
]


def root_of(project, stage: str, role: str) -> tuple[str, Path, set[str]]:
    """The first object of an output of a finished stage: its digest, its file, and all stages with that output."""
    with open_store(str(project.store)) as store:
        records = list(store.ledger)
    outputs = [record.outputs for record in records if record.fields["stage"] == stage]
    digest = min(refs[role].root.digest for refs in outputs if role in refs)
    makers = {
        record.fields["stage"] for record in records if digest in {ref.root.digest for ref in record.outputs.values()}
    }
    return digest, project.store / "objects" / digest[:2] / digest, makers


def made_from(project, digest: str) -> set[str]:
    """Names of the stages that read an object."""
    with open_store(str(project.store)) as store:
        return {record.fields["stage"] for record in store.ledger if digest in record.reads}


def quarantined(project) -> set[str]:
    """Digests of quarantined objects."""
    return {path.name.partition(".")[0] for path in (project.store / "quarantine").iterdir()}


def programs(project) -> dict[str, bytes]:
    return {name: content for name, content in project.files().items() if name.endswith(".pte")}


@pytest.fixture
def remake(lowered, made, lower):
    """Deletes the results, so that they have to come from the store, and makes the same again: names of what ran."""

    def run():
        shutil.rmtree(made.out)
        again = lower(made)
        assert again.outcome.exit_code == 0
        assert programs(made) == programs(lowered[0])
        return again.ran("linear")

    return run


@pytest.mark.parametrize(
    ("stage", "role", "damage"),
    [*((*output, flip) for output in OUTPUTS), *((*OUTPUTS[0], damage) for damage in (truncate, Path.unlink))],
)
def test_damaged_objects_are_made_again(made, remake, lower, pteforge, stage, role, damage):
    """A damaged object is never used: it is quarantined, its stage and those that read it run again, to the same files.

    One that is only gone was good: nothing else runs again.
    """
    names = set(made.files())
    digest, path, makers = root_of(made, stage, role)
    readers = made_from(made, digest) if damage is not Path.unlink else set()
    damage(path)
    ran = remake()
    assert {name.partition("/")[0] for name in ran} & makers
    assert {name.partition("/")[0] for name in ran} >= readers
    assert len(ran) < STEPS or readers
    assert set(made.files()) == names
    assert quarantined(made) == (set() if damage is Path.unlink else {digest})
    assert pteforge(made, "store", "verify").code == 0
    assert lower(made).ran("linear") == set()


def test_damage_everywhere(made, remake):
    """If every object is damaged, everything is made again, to the same files."""
    for path, damage in zip(sorted((made.store / "objects").glob("*/*")), cycle((flip, rot)), strict=False):
        damage(path) if path.stat().st_size else change(path, b"x")
    assert len(remake()) == STEPS


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


@pytest.mark.parametrize("replace", [loop, pipe])
def test_no_files_among_results(made, lowered, lower, replace):
    """Something else in the place of a result is replaced by the result; nothing runs, and nothing waits for a pipe."""
    for path in made.out.glob("*/*"):
        replace(path)
    assert lower(made).ran("linear") == set()
    assert made.files() == lowered[0].files()


def weight_of(project) -> Path:
    """The largest weight of the exported program."""
    with open_store(str(project.store)) as store:
        (program,) = {r.outputs["program"] for r in store.ledger if r.fields["stage"] == "export"}
        weights = weights_of(store.local.manifest(program))
    digest = max((weight.blob for weight in weights), key=lambda blob: blob.size).digest
    return project.store / "objects" / digest[:2] / digest


AFTER = ("preprocess", "compile", "serialize", "verify", "report")


def test_rot_never_becomes_a_result(made, lower, remake):
    """A weight whose bit flipped with the file's times kept is found by the stage that reads it.

    All that was made from it is made again, and has the bytes that it had. Edge programs do not hold weights, and stay.
    """
    rot(weight_of(made))
    with open_store(str(made.store)) as store:
        records = [record for record in store.ledger if record.fields["stage"] in AFTER]
        store.ledger.forget(*(record.key for record in records))
    ran = {name.partition("/")[0] for name in remake()}
    assert ran == {"export", *AFTER}
    assert quarantined(made) == {weight_of(made).name}
    assert lower(made).ran("linear") == set()


def test_rot_that_verify_finds(made, remake, pteforge):
    """What was made from an object that `store verify` finds damaged is not cached any more."""
    path = weight_of(made)
    rot(path)
    said = pteforge(made, "store", "verify", "--json")
    assert said.code == 1
    assert json.loads(said.out)["damaged"] == [path.name]
    assert {name.partition("/")[0] for name in remake()} == {"export", *AFTER}


def test_rot_of_a_published_file(made, remake):
    """A piece of a file that rotted is never put into `out`."""
    with open_store(str(made.store)) as store:
        file = next(r.outputs["file"] for r in store.ledger if r.fields["stage"] == "serialize")
        pieces = store.local.manifest(file).blobs
    rot(made.store / "objects" / pieces[0].digest[:2] / pieces[0].digest)
    assert "serialize" in {name.partition("/")[0] for name in remake()}
    assert quarantined(made) == {pieces[0].digest}


def test_garbled_records(made, remake, caplog):
    """An unreadable record of the ledger is a miss with a warning: the stages run again, to the same files."""
    records = sorted((made.store / "ledger" / "stages").glob("*/*"))
    assert len(records) == STEPS
    for path in records:
        flip(path)
    assert len(remake()) == STEPS
    assert "is not used" in caplog.text


def test_garbled_notes(made, lower):
    """Garbled notes of the last keys, of watched modules and of runs neither fail a run nor make a stage run."""
    for path in [*(made.store / "ledger" / "slots").iterdir(), *(made.store / "runs").iterdir()]:
        change(path, b"{")
    again = lower(made)
    assert again.outcome.exit_code == 0
    assert again.ran("linear") == set()


@pytest.mark.parametrize("damage", [flip, Path.unlink], ids=["flip", "unlink"])
def test_store_verify_finds_damage(made, pteforge, damage):
    """`store verify` names damaged objects and ends with 1 once; a missing object is reported, but is no damage."""
    digest, path, _ = root_of(made, "export", "program")
    damage(path)
    said = pteforge(made, "store", "verify", "--json")
    damaged = [] if damage is Path.unlink else [digest]
    assert said.code == len(damaged)
    report = json.loads(said.out)
    assert report["damaged"] == damaged
    again = 1 if damage is Path.unlink else 1 + 2 * len(["verify", "report"])  # of two recipes, which rest on it
    assert len(report["incomplete"]) == again
    assert all(digest in said.err for digest in damaged)
    assert quarantined(made) == set(damaged)
    after = pteforge(made, "store", "verify")
    assert after.code == 0
    assert ": 0 damaged" in after.out
    assert "1 stages will run again" in after.out


class Spoiling(Executor):
    """Damages an input of the compile stage before it runs, `times` times."""

    damage, times, spoils = None, 0, 0

    def run(self, call, *observing):
        if call.stage.name == "compile" and self.spoils < self.times:
            self.spoils += 1
            self.damage(self.store.local.path(self.store.objects_of(call.inputs["program/forward"])[-1]))
        return super().run(call, *observing)


@pytest.fixture
def spoiled(project, workers):
    """Lowers a model whose compile stage finds its input damaged, a number of times."""
    project.write_zoo({"net": "nets:linear"}, ("portable-fp32",))

    def run(damage, times):
        with open_run(project, workers, engine=Spoiling) as session:
            session.executor.damage, session.executor.times = damage, times
            outcome = asyncio.run(
                lower_one(session, *session.models, LocalRunner(session.executor, 4, session.progress))
            )
        assert session.executor.spoils == times
        return outcome

    return run


@pytest.mark.parametrize("damage", [flip, Path.unlink], ids=["flip", "delete"])
def test_lost_input_is_made_again_in_the_same_run(project, spoiled, damage):
    """An object that is damaged after it was made and before it is used is made again, and the run succeeds."""
    outcome = spoiled(damage, 1)
    assert [recipe.failure for recipe in outcome.recipes] == [None]
    assert set(project.files()) == {"net/portable-fp32.pte", "net/portable-fp32.json"}


def test_a_disk_that_loses_everything_is_given_up(project, spoiled):
    """If repaired objects are lost again and again, the model fails with a message instead of running for ever."""
    outcome = spoiled(Path.unlink, 3)
    (recipe,) = outcome.recipes
    assert recipe.failure is not None
    assert recipe.failure.step == "compile/portable-fp32"
    assert "has to run again" in recipe.failure.problem
    assert project.files() == {}
