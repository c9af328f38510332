"""Damage in the store: found before it is used, moved aside, made again with the same bytes, and told."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pteforge.artifacts.records import StageRecord
from pteforge.artifacts.store import open_store
from pteforge.flows.cli.main import app
from typer.testing import CliRunner

pytestmark = pytest.mark.timeout(600)

STEPS = 13  # of a model of one method with both recipes


@pytest.fixture(scope="module")
def pristine(tmp_path_factory, make_room, lower):
    """A room in which one model was lowered. Tests take copies of it."""
    room = make_room(tmp_path_factory.mktemp("damage") / "room")
    room.zoo({"linear": "nets:linear"})
    assert lower(room).outcome.exit_code == 0
    return room


@pytest.fixture
def made(pristine, tmp_path):
    """A copy that a test may damage."""
    return pristine.copy(tmp_path / "made")


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    """The command line sets logging up for a process of its own; here it is put back."""
    log = logging.getLogger("pteforge")
    before = log.handlers[:], log.level, log.propagate
    yield
    log.handlers[:], log.level, log.propagate = before


def change(path: Path, content: bytes) -> None:
    """Writes other bytes, as a disk or a person does: over the write protection, and the time of change tells."""
    path.chmod(0o644)
    path.write_bytes(content)


def flip(path: Path) -> None:
    """One bit in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    change(path, bytes(content))


def truncate(path: Path) -> None:
    """The second half is gone."""
    change(path, path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    """All bytes are gone."""
    change(path, b"")


DAMAGES: list[Callable[[Path], None]] = [flip, truncate, empty, Path.unlink]
OUTPUTS = [
    ("export", "program"),
    ("export", "examples"),
    ("edge", "program"),
    ("preprocess", "delegates"),
    ("serialize", "file"),
    ("report", "provenance"),
]


@dataclass(frozen=True)
class Victim:
    """An object of the store.

    Attributes:
        digest: its name.
        path: its file.
        makers: stages that have it as an output: `serialize` may pass on what `compile` made.
    """

    digest: str
    path: Path
    makers: frozenset[str]


def root_of(room, stage: str, role: str) -> Victim:
    """The first object of an output of a finished stage."""
    with open_store(str(room.store)) as store:
        records = list(store.ledger)
    digest = min(record.outputs[role].root.digest for record in records if _is_of(record, stage, role))
    makers = {
        record.fields["stage"] for record in records if digest in {ref.root.digest for ref in record.outputs.values()}
    }
    return Victim(digest, room.store / "objects" / digest[:2] / digest, frozenset(makers))


def _is_of(record: StageRecord, stage: str, role: str) -> bool:
    return record.fields["stage"] == stage and role in record.outputs


def quarantined(room) -> set[str]:
    """Digests of the objects that were moved aside."""
    return {path.name.partition(".")[0] for path in (room.store / "quarantine").iterdir()}


def verify(room, *args: str):
    """`pteforge store verify`."""
    return CliRunner().invoke(app, ["store", "verify", "--store", str(room.store), *args])


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize(("stage", "role"), OUTPUTS, ids=map("-".join, OUTPUTS))
def test_what_is_damaged_is_made_again(made, lower, stage, role, damage):
    """A damaged object is never used: it is moved aside, its stage runs again, and all files have the same bytes.

    What was delivered is deleted first, so that it has to come from the store.
    """
    before = made.files()
    victim = root_of(made, stage, role)
    damage(victim.path)
    shutil.rmtree(made.out)
    again = lower(made)
    assert again.outcome.exit_code == 0
    ran = {name.partition("/")[0] for name in again.ran("linear")}
    assert ran & victim.makers
    assert len(again.ran("linear")) < STEPS
    assert programs(made.files()) == programs(before)
    assert set(made.files()) == set(before)
    assert quarantined(made) == (set() if damage is Path.unlink else {victim.digest})
    assert verify(made).exit_code == 0
    assert lower(made).ran("linear") == set()


def programs(files: dict[str, bytes]) -> dict[str, bytes]:
    """The `.pte` files."""
    return {name: content for name, content in files.items() if name.endswith(".pte")}


def test_damage_everywhere(made, lower):
    """Where every object is damaged everything is made again, to the same files.

    But for `serialize`, whose record names what `compile` has made again by then.
    """
    before = made.files()
    for path in (made.store / "objects").glob("*/*"):
        flip(path) if path.stat().st_size else change(path, b"x")
    shutil.rmtree(made.out)
    again = lower(made)
    assert again.outcome.exit_code == 0
    assert not any(name.startswith("serialize/") for name in again.ran("linear"))
    assert len(again.ran("linear")) == STEPS - 2
    assert programs(made.files()) == programs(before)


@pytest.mark.parametrize(
    "garble",
    [flip, truncate, empty, lambda path: change(path, b"[]"), lambda path: change(path, b"\xff" * 40), Path.unlink],
    ids=["flip", "truncate", "empty", "other JSON", "no text", "unlink"],
)
def test_garbled_records(made, lower, caplog, garble):
    """A record of the ledger that cannot be read is a miss with a warning: the stages run again, to the same files."""
    before = made.files()
    records = sorted((made.store / "ledger" / "stages").glob("*/*"))
    assert len(records) == STEPS
    for path in records:
        garble(path)
    shutil.rmtree(made.out)
    again = lower(made)
    assert again.outcome.exit_code == 0
    assert len(again.ran("linear")) == STEPS
    assert programs(made.files()) == programs(before)
    assert ("is not used" in caplog.text) == (garble is not Path.unlink)
    assert lower(made).ran("linear") == set()


def test_one_garbled_record(made, lower):
    """Of one stage whose record is garbled, that stage alone runs again: what it makes is what was there."""
    with open_store(str(made.store)) as store:
        (key,) = (record.key for record in store.ledger if record.fields["stage"] == "export")
    truncate(made.store / "ledger" / "stages" / key[:2] / key)
    assert lower(made).ran("linear") == {"export"}


def test_garbled_notes(made, lower):
    """Notes of the last keys, of watched modules and of runs are no ground for failing, nor for running anything."""
    for path in [*(made.store / "ledger" / "slots").iterdir(), *(made.store / "runs").iterdir()]:
        change(path, b"{")
    again = lower(made)
    assert again.outcome.exit_code == 0
    assert again.ran("linear") == set()


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_store_verify_finds_damage(made, damage):
    """`store verify` names what is damaged and ends with 1 that once; what is only gone is told, and is no damage."""
    victim = root_of(made, "export", "program")
    damage(victim.path)
    said = verify(made, "--json")
    report = json.loads(said.stdout)
    gone = damage is Path.unlink
    assert said.exit_code == (0 if gone else 1)
    assert report["damaged"] == ([] if gone else [victim.digest])
    assert len(report["incomplete"]) == 1
    assert quarantined(made) == (set() if gone else {victim.digest})
    after = verify(made)
    assert after.exit_code == 0
    assert ": 0 damaged" in after.stdout
    assert "1 stages will run again" in after.stdout


def test_store_verify_reads_bytes_whose_time_was_set_back(made):
    """Even a change that hides behind the mark of verified objects is found, since every object is read."""
    victim = root_of(made, "export", "program")
    status = victim.path.stat()
    flip(victim.path)
    victim.path.chmod(status.st_mode)
    os.utime(victim.path, ns=(status.st_atime_ns, status.st_mtime_ns))
    said = verify(made)
    assert said.exit_code == 1
    assert f"damaged, moved aside: {victim.digest}" in said.stdout
