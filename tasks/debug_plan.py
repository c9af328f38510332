"""What debugging a file takes, and where it comes from."""

from __future__ import annotations

from collections.abc import Mapping

from .catalog import StageName
from .model import PlannedRecipe
from .steps import Output

DEBUG_ROLES = ("etrecord", "debug_handles", "delegate_map", "debug_sources")
"""Outputs of `compile` where it makes an ETRecord: see `tasks.stages.debugging`."""


def debug_outputs(recipe: PlannedRecipe, parts: Mapping[str, str]) -> Mapping[str, Output]:
    """What `report` reads so that it is written beside the file, by role; none where the recipe is not for debugging.

    Args:
        recipe: the recipe.
        parts: what is done so far to the step that does it (see `tasks.recipe_plan`).

    Returns:
        Roles are those of `compile`; in a fat file with the payload behind a slash, for example ``etrecord/xnnpack``.
    """
    if not recipe.recipe.compiling.generate_etrecord:
        return {}
    compile_part = StageName.COMPILE.value
    if recipe.recipe.output.form == "plain":
        return {role: Output(parts[compile_part], role) for role in DEBUG_ROLES}
    return {
        f"{role}/{each.name}": Output(parts[f"{compile_part}.{each.name}"], role)
        for each in recipe.specializations
        for role in DEBUG_ROLES
    }


def split_debug_role(role: str) -> tuple[str, str] | None:
    """The role and the payload (empty in a plain file) of an input of `report`, where it is for debugging."""
    name, _, payload = role.partition("/")
    return (name, payload) if name in DEBUG_ROLES else None
