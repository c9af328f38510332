"""Finds a stage's artifacts in a run, and loads artifacts of any kind."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from ..artifacts.local_store import LocalStore
from ..artifacts.ref import ArtifactRef
from ..errors import InputError
from ..tasks.codecs.delegates import load_delegates
from ..tasks.codecs.payload import load_assets, read_payload
from ..tasks.codecs.program import load_program
from ..tasks.codecs.values import load_value, load_values
from ..tasks.engine.runner import Done, StageId
from ..tasks.lowering.graph import check_stage
from ..tasks.lowering.runs import RecipeRun
from ..tasks.stages.export import Export

_MAIN_ROLES = ("program", "file", "payload")


def find_step(run: RecipeRun, first_method: str, stage: str, method: str, specialization: str) -> Done:
    """The result of one of a recipe's stage calls; an empty `method` or `specialization` matches all of them.

    Raises InputError if no call matches, or several do, or the call failed.
    """
    check_stage(stage)
    steps = [*run.done, *run.failed]
    of_stage = [step for step in steps if step.stage == stage]
    if not of_stage:
        stages = dict.fromkeys(step.stage for step in steps)
        raise InputError(f"there is no stage {stage!r} in this run; it has {', '.join(stages)}")
    matching = [
        step
        for step in of_stage
        if method in ("", _method_of(step, first_method)) and specialization in ("", step.payload)
    ]
    if len(matching) != 1:
        choices = ", ".join(_describe(step, first_method) for step in of_stage)
        problem = "say which" if matching else "there is no such call"
        raise InputError(f"stage {stage!r}: {problem}; there are {choices}")
    (step,) = matching
    if step in run.failed:
        raise InputError(f"{step} was not made: {run.failed[step]}")
    return run.done[step]


def _method_of(step: StageId, first_method: str) -> str:
    return first_method if step.stage == Export.name and not step.method else step.method


def _describe(step: StageId, first_method: str) -> str:
    named = {"method": _method_of(step, first_method), "specialization": step.payload}
    return " ".join(f"{key}={value!r}" for key, value in named.items() if value) or "one for all"


def output_of(result: Done, role: str) -> ArtifactRef:
    """One output of a stage; for an empty role its program or file, or the only one. Raises InputError."""
    outputs = result.roles
    mains = [main for main in _MAIN_ROLES if main in outputs] or (list(outputs) if len(outputs) == 1 else [])
    chosen = role or next(iter(mains), "")
    if chosen not in outputs:
        raise InputError(f"stage {result.call.stage.name!r} returns {', '.join(outputs)}; name one of them as `role`")
    return outputs[chosen]


def load_artifact(ref: ArtifactRef, store: LocalStore) -> Any:
    """Loads an artifact by its kind.

    Returns:
        An ExportedProgram for programs; `Delegates`; a tree of tensors and plain values for examples and constants, an
        iterator of them for samples; bytes by name for assets; the value of JSON for reports; bytes for files and
        everything else.
    """
    load = _LOADERS.get(ref.kind) or _LOADERS.get(ref.kind.partition("/")[0])
    return load(ref, store) if load else store.read_artifact(ref)


def _read_json(ref: ArtifactRef, store: LocalStore) -> Any:
    return json.loads(store.read_artifact(ref))


_LOADERS: dict[str, Callable[[ArtifactRef, LocalStore], Any]] = {
    "program": load_program,
    "program/state": _read_json,
    "delegates": load_delegates,
    "payload": read_payload,
    "examples": load_value,
    "model/constants": load_value,
    "model/assets": load_assets,
    "samples": load_values,
    "model": _read_json,
    "report": _read_json,
    "debug": _read_json,
    "debug/etrecord": lambda ref, store: store.read_artifact(ref),
}
