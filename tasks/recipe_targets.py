"""From a recipe as written to one whose targets are made and checked."""

from __future__ import annotations

from collections.abc import Callable

from ..configs.recipe import Recipe
from ..configs.verify_bounds import VerifyBounds
from ..errors import InputError, TargetError
from .model import PlannedRecipe, PlannedSpecialization
from .params import TargetParams
from .targets.find import find_target
from .targets.quantizers import check_quantizers

Complain = Callable[[str, tuple[str | int, ...]], InputError]
"""Makes the error for a problem, given the path of the field within the recipe."""


def find_targets(name: str, recipe: Recipe, bounds: VerifyBounds, complain: Complain) -> PlannedRecipe:
    """Makes a recipe's targets.

    Args:
        name: of the recipe.
        recipe: as written.
        bounds: to verify with.
        complain: makes errors that say where in the user's files, or arguments, the field stands.

    Raises:
        InputError: a target is unknown, not available or does not take its options.
    """
    planned, unavailable = [], {}
    for position, specialization in enumerate(recipe.specializations):
        where = ("specializations", position, "target")
        try:
            target = find_target(specialization.target, dict(specialization.options))
        except TargetError as error:
            raise complain(str(error), where) from error
        if reason := target.available():
            if specialization.required:
                raise complain(f"target {target.name!r} is not available here: {reason}", where)
            unavailable[specialization.payload] = f"not available here: {reason}"
        else:
            planned.append(PlannedSpecialization(specialization.payload, target, specialization.required))
    if recipe.output.form == "fat" and planned[-1].target.backends:
        raise complain(
            f"{planned[-1].name!r} needs {', '.join(planned[-1].target.backends)}: the last specialization of a fat "
            "file is what every device falls back to, so it must need no backend; add `- target: portable`",
            ("specializations",),
        )
    return PlannedRecipe(name, recipe, tuple(planned), bounds, _find_quantizers(recipe, complain), unavailable)


def _find_quantizers(recipe: Recipe, complain: Complain) -> tuple[TargetParams, ...]:
    try:
        return check_quantizers(recipe.quantize)
    except TargetError as error:
        raise complain(str(error), ("quantize",)) from error
