"""The small zoos that are lowered under faults, and all that must be the same afterwards as without any."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pteforge.artifacts.gc import collect, verify_store
from pteforge.artifacts.ledger import StageRecord
from pteforge.artifacts.store import Store, open_store
from pteforge.flows.run.outcome import ZooOutcome
from pteforge.tasks.engine.executor import Executor
from pteforge.tasks.engine.workers import InProcess, Workers
from pteforge.tests.flows.conftest import ZOO, Project, lower_zoo

STAGES = 12  # of its two models
_PROGRAMS = ("program/", "graph/")


def make_project(folder: Path) -> Project:
    """Two models that are lowered in seconds, for portable kernels, and no store yet."""
    shutil.copytree(ZOO, folder, ignore=shutil.ignore_patterns("__pycache__"))
    project = Project(folder)
    project.write_zoo({"linear": "nets:linear", "conv": "nets:conv"}, ("portable-fp32",))
    return project


def make_two_models(folder: Path) -> Project:
    """The same with weights that are objects of their own, a `.ptd`, and a module that has to be watched."""
    shutil.copytree(Path(__file__).parent / "models", folder, ignore=shutil.ignore_patterns("__pycache__"))
    return Project(folder)


@dataclass(frozen=True)
class Made:
    """What runs of the zoo have made, without what measures a run: times, memory, logs, records of runs and the page.

    Attributes:
        files: bytes by path.
        stages: what each record says, by stage key. A program is named by its identity: the bytes of two exports of one
            model may differ where that means nothing.
        objects: digests of the objects of all results but programs.
        slots: the key that each slot had last, and its fields.
    """

    files: dict[str, bytes]
    stages: dict[str, Any]
    objects: set[str]
    slots: dict[str, Any]

    @classmethod
    def of(cls, project: Project, store: Store) -> Made:
        records = list(store.ledger)
        refs = [ref for record in records for ref in record.outputs.values() if not ref.kind.startswith(_PROGRAMS)]
        return cls(
            files=project.files(),
            stages={record.key: _said(record) for record in records},
            objects=set().union(*map(store.known_objects, refs)),
            slots={record.slot: (record.key, record.fields) for record in store.ledger.slots()},
        )

    def differences(self, expected: Made) -> list[str]:
        """Names of what is not as expected."""
        pairs = [(f, getattr(self, f), getattr(expected, f)) for f in ("files", "stages", "slots")]
        differing = [
            f"{what} {name}"
            for what, ours, theirs in pairs
            for name in sorted({*ours, *theirs})
            if ours.get(name) != theirs.get(name)
        ]
        return differing + [f"object {digest}" for digest in sorted(self.objects ^ expected.objects)]


def _said(record: StageRecord) -> Any:
    return record.fields, {role: (ref.kind, ref.identity) for role, ref in record.outputs.items()}


def check_store(store: Store) -> None:
    """Every object is good and every record complete; `gc` leaves exactly what the ledger needs, and no leftovers."""
    checked = verify_store(store)
    assert not checked.damaged, checked
    assert not checked.incomplete, checked
    collect(store, keep_newer_than=timedelta(0))
    needed = set().union(*(_needed(record, store) for record in store.ledger))
    kept = {stored.digest for stored in store.objects()}
    assert kept == needed, sorted(kept ^ needed)
    assert not (left := list(_leftovers(store))), left


def _needed(record: StageRecord, store: Store) -> set[str]:
    logs = {record.log.digest} if record.log else set()
    return logs.union(*map(store.known_objects, record.outputs.values()))


def _leftovers(store: Store) -> Iterator[Path]:
    for folder in ("tmp", "leases", "unfinished", "quarantine", "damaged", "publishing"):
        yield from (store.local.root / folder).glob("*")


SIGNING_KEY = "the key of everybody who uses the store"

BUILDER = """
import torch

def linear():
    model = torch.nn.Sequential(torch.nn.Linear(4, 256), torch.nn.ReLU(), torch.nn.Linear(256, 3))
    return model, (torch.randn(2, 4),)
"""
RECIPES = {
    "both": {"specializations": [{"target": "xnnpack"}, {"target": "portable"}], "output": {"form": "fat"}},
    "outside": {"specializations": [{"target": "xnnpack"}], "output": {"external_data": True}},
}


@dataclass(frozen=True)
class SmallZoo(Project):
    """A zoo of one model, in a folder with its results, a shared store that is a folder, and this machine's copies."""

    @property
    def shared(self) -> Path:
        return self.folder / "bucket" / "zoo"

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """Makes pteforge take the folder for a bucket: records are signed, objects are downloaded."""
        options = {"path": str(self.folder / "bucket"), "target_protocol": "file"}
        return {
            "PTEFORGE_STORE": "dir://zoo",
            "PTEFORGE_STORE_OPTIONS": json.dumps(options),
            "PTEFORGE_SIGNING_KEY": SIGNING_KEY,
            "PTEFORGE_CACHE": str(self.folder / "cache"),
            **(more or {}),
        }

    @contextlib.contextmanager
    def opened(self, more: Mapping[str, str] | None = None) -> Iterator[Store]:
        """The shared store, or the one that `more` sets, with the environment that names it."""
        with patch.dict(os.environ, self.environment(more)), open_store(os.environ["PTEFORGE_STORE"]) as store:
            yield store

    def lower(self, more: Mapping[str, str] | None = None) -> ZooOutcome:
        """Lowers the zoo as the command line does except for Prefect, with stages in this process."""
        if str(self.folder) not in sys.path:
            sys.path.insert(0, str(self.folder))
        try:
            with self.opened(more) as store, Workers(jobs=1) as workers:
                options = {"store": contextlib.nullcontext(store), "engine": lambda *_: Executor(store, InProcess())}
                return lower_zoo(self, workers, at_once=1, **options).outcome
        finally:
            sys.path.remove(str(self.folder))
            sys.modules.pop("small_builder", None)

    def copy(self, folder: Path) -> SmallZoo:
        return SmallZoo(super().copy(folder).folder)


def lower_small_zoo(folder: Path) -> SmallZoo:
    """Lowers the zoo in a new folder."""
    folder.mkdir()
    zoo = SmallZoo(folder)
    zoo.write("small_builder.py", BUILDER)
    zoo.write_zoo({"net": "small_builder:linear"}, tuple(RECIPES), RECIPES)
    outcome = zoo.lower()
    assert outcome.exit_code == 0, outcome.failures
    return zoo
