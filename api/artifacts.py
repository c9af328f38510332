"""Reading artifacts of any kind from a store, and finding a stage's among those of a run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..artifacts.local_store import LocalStore
from ..artifacts.programs.codec import load_program
from ..artifacts.programs.delegates import load_delegates
from ..artifacts.programs.values import load_value, load_values
from ..artifacts.pte.pieces import read_payload
from ..artifacts.ref import ArtifactRef
from ..errors import InputError
from ..tasks.catalog import StageName
from ..tasks.executor import StepResult

_MAIN_ROLES = ("program", "file", "payload")


@dataclass(frozen=True, slots=True)
class Part:
    """What one step does for a recipe.

    Attributes:
        stage: its stage.
        method: the method it is for; empty where it is for all.
        specialization: the payload it is for; empty where it is for all, or the recipe has one only.
    """

    stage: str
    method: str
    specialization: str

    @classmethod
    def named(cls, name: str, first_method: str) -> Part:
        """Reads the names that `tasks.recipe_plan.plan_recipe` gives: ``stage[/method][.specialization]``."""
        head, _, specialization = name.partition(".")
        stage, _, method = head.partition("/")
        if stage == StageName.EXPORT.value and not method:
            method = first_method
        return cls(stage, method, specialization)


def find_part(parts: Mapping[str, str], first_method: str, wanted: Part) -> str:
    """The step that does something for a recipe.

    Args:
        parts: see `ModelPlan.recipe_parts`.
        first_method: the model's first method.
        wanted: what to look for; an empty method or specialization stands for the only one there is.

    Raises:
        InputError: there is no such step, or several.
    """
    StageName.named(wanted.stage)
    known = {Part.named(name, first_method): step for name, step in parts.items()}
    of_stage = [part for part in known if part.stage == wanted.stage]
    if not of_stage:
        there = dict.fromkeys(part.stage for part in known)
        raise InputError(f"there is no stage {wanted.stage!r} in this run; it has {', '.join(there)}")
    fitting = [
        part
        for part in of_stage
        if wanted.method in ("", part.method) and wanted.specialization in ("", part.specialization)
    ]
    if len(fitting) == 1:
        return known[fitting[0]]
    choices = ", ".join(_shown(part) for part in of_stage)
    problem = "say which" if fitting else "there is no such one"
    raise InputError(f"stage {wanted.stage!r}: {problem}; there are {choices}")


def _shown(part: Part) -> str:
    named = {"method": part.method, "specialization": part.specialization}
    return " ".join(f"{key}={value!r}" for key, value in named.items() if value) or "one for all"


def output_of(result: StepResult, role: str) -> ArtifactRef:
    """One output of a step; with an empty role its program or file, or the only one.

    Raises:
        InputError: there is none of that role, or several to choose from.
    """
    outputs = result.outputs
    mains = [main for main in _MAIN_ROLES if main in outputs] or (list(outputs) if len(outputs) == 1 else [])
    chosen = role or next(iter(mains), "")
    if chosen not in outputs:
        raise InputError(f"stage {result.step.stage.value!r} gives {', '.join(outputs)}; name one of them as `role`")
    return outputs[chosen]


def load_artifact(ref: ArtifactRef, store: LocalStore) -> Any:
    """An artifact as Python has it, by its kind.

    Returns:
        An ExportedProgram for programs; `Delegates`; bytes for files; a tree of tensors and plain values for
        examples and constants; an iterator of such for samples; what JSON says for reports; else bytes.
    """
    load = _LOADERS.get(ref.kind) or _LOADERS.get(ref.kind.partition("/")[0], _read)
    return load(ref, store)


def _read(ref: ArtifactRef, store: LocalStore) -> bytes:
    return store.read_artifact(ref)


def _read_json(ref: ArtifactRef, store: LocalStore) -> Any:
    return json.loads(store.read_artifact(ref))


_LOADERS: dict[str, Callable[[ArtifactRef, LocalStore], Any]] = {
    "program": load_program,
    "program/state": _read_json,
    "delegates": load_delegates,
    "payload/pte": read_payload,
    "payload/ptd": read_payload,
    "examples": load_value,
    "model/constants": load_value,
    "samples": load_values,
    "model": _read_json,
    "report": _read_json,
    "debug/handles": _read_json,
    "debug/delegates": _read_json,
    "debug/sources": _read_json,
}
