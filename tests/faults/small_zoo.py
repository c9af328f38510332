"""A lowered zoo of one small model, with a signed store that others can write to: hostile campaigns start from it."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from pteforge.artifacts.store import Store, open_store
from pteforge.flows.run.outcome import ZooOutcome
from pteforge.tasks.engine.executor import Executor
from pteforge.tasks.engine.workers import InProcess, Workers
from pteforge.tests.flows.conftest import Project, lower_zoo

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
