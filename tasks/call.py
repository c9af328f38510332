"""One execution of a stage as a value: everything a worker process needs to run it, as JSON."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..artifacts.local_store import LocalStore
from ..artifacts.ref import ArtifactRef
from .catalog import StageName
from .params import Params
from .progress import reporter
from .stage import Stage, Workspace


@dataclass(frozen=True, slots=True)
class StageCall:
    """A stage with its inputs and params, and where it runs.

    Attributes:
        stage: which stage.
        inputs: role to artifact, all of it in the store at `store`.
        params: of the type that the stage's kind names.
        store: root of the local store.
        folder: see `Workspace`.
        python_path: see `Workspace`.
        program_file: see `Workspace`.
    """

    stage: StageName
    inputs: Mapping[str, ArtifactRef]
    params: Params
    store: Path
    folder: Path
    python_path: tuple[Path, ...] = ()
    program_file: Path | None = None

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {
            "stage": self.stage.value,
            "inputs": {role: ref.to_json() for role, ref in self.inputs.items()},
            "params": self.params.model_dump(mode="json"),
            "store": str(self.store),
            "folder": str(self.folder),
            "python_path": [str(folder) for folder in self.python_path],
            "program_file": self.program_file and str(self.program_file),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StageCall:
        """Inverse of `to_json`."""
        stage = StageName(value["stage"])
        return cls(
            stage=stage,
            inputs={role: ArtifactRef.from_json(ref) for role, ref in value["inputs"].items()},
            params=stage.kind.params.model_validate(value["params"]),
            store=Path(value["store"]),
            folder=Path(value["folder"]),
            python_path=tuple(map(Path, value["python_path"])),
            program_file=Path(value["program_file"]) if value["program_file"] else None,
        )


def run_call(call: StageCall) -> Mapping[str, ArtifactRef]:
    """Runs the stage's body in this process."""
    body: Stage[Params] = importlib.import_module(call.stage.kind.module).run
    store = LocalStore(call.store)
    with store.scratch() as scratch:
        work = Workspace(store, scratch, call.folder, call.python_path, call.program_file, reporter.get())
        return body(call.inputs, call.params, work)
