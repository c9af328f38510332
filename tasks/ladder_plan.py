"""Which programs of a recipe are rungs of its ladder of numerics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .catalog import StageName
from .keys.versions import host_capability
from .model import PlannedRecipe
from .numerics import RungName
from .numerics_params import LadderParams, RungParams
from .steps import Output

_CHANGES_NUMERICS: tuple[tuple[StageName, RungName], ...] = (
    (StageName.SOURCE_TRANSFORM, "transformed"),
    (StageName.QUANTIZE, "quantized"),
)
"""Stages that are meant to change what a model computes, and what the ladder calls their programs."""


@dataclass(frozen=True)
class LadderPlan:
    """The step that makes a ladder: its params, its inputs by role, and the roles that it can do without."""

    params: LadderParams
    inputs: Mapping[str, Output]
    optional: frozenset[str]


def has_ladder(recipe: PlannedRecipe, parts: Mapping[str, str]) -> bool:
    """Whether a recipe has a ladder whenever it is run: if it changes numerics on purpose, or asks for one.

    Args:
        recipe: the recipe.
        parts: what is done for it to the step that does it, see `tasks.recipe_plan`.
    """
    changing = {stage.value for stage, _ in _CHANGES_NUMERICS}
    return recipe.recipe.verify.ladder or any(part.partition("/")[0] in changing for part in parts)


def plan_ladder(recipe: PlannedRecipe, exports: Mapping[str, str], parts: Mapping[str, str]) -> LadderPlan:
    """Plans the ladder of a recipe.

    Args:
        recipe: the recipe.
        exports: method name to the step that exports it.
        parts: as in `has_ladder`.
    """
    rungs, inputs = [], {f"examples/{method}": Output(step, "examples") for method, step in exports.items()}
    needed = frozenset(inputs)
    for rung, outputs in _rungs(recipe, exports, parts):
        rungs.append(rung)
        inputs |= {rung.role(method): output for method, output in outputs.items()}
    if recipe.recipe.output.payload_is_split:
        inputs["data"] = Output(parts[StageName.COMPILE.value], "data")
    params = LadderParams(
        rungs=tuple(rungs),
        methods=tuple(exports),
        drawn_inputs=recipe.bounds.drawn_inputs,
        host=host_capability(),
    )
    return LadderPlan(params, inputs, frozenset(inputs) - needed)


def _rungs(
    recipe: PlannedRecipe, exports: Mapping[str, str], parts: Mapping[str, str]
) -> Iterator[tuple[RungParams, Mapping[str, Output]]]:
    """Each rung with its programs by method."""
    yield RungParams(name="exported"), {method: Output(step, "program") for method, step in exports.items()}
    for stage, rung in _CHANGES_NUMERICS:
        made = {method: parts.get(f"{stage.value}/{method}") for method in exports}
        if outputs := {method: Output(step, "program") for method, step in made.items() if step}:
            yield RungParams(name=rung), outputs
    fat = recipe.recipe.output.form == "fat"
    names = [each.name for each in recipe.specializations] if fat else [""]
    sharing: dict[tuple[str, ...], list[str]] = {}
    for name in names:
        steps = tuple(parts[_part(f"{StageName.EDGE.value}/{method}", name)] for method in exports)
        sharing.setdefault(steps, []).append(name)
    for steps, together in sharing.items():
        programs = {method: Output(step, "program") for method, step in zip(exports, steps, strict=True)}
        yield RungParams(name="edge", specializations=tuple(filter(None, together))), programs
    for name in names:
        payload = Output(parts[_part(StageName.COMPILE.value, name)], "payload")
        yield RungParams(name="payload", specializations=(name,) if name else ()), dict.fromkeys(exports, payload)


def _part(part: str, specialization: str) -> str:
    return f"{part}.{specialization}" if specialization else part
