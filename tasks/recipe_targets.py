"""From a recipe as written to one whose targets are made and checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pydantic import JsonValue

from ..configs.recipe import Recipe, Specialization
from ..configs.verify_bounds import VerifyBounds
from ..errors import InputError, TargetError
from .model import PlannedRecipe, PlannedSpecialization
from .params import TargetParams
from .targets import Target
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
        made = _find_specialization(specialization, ("specializations", position), complain)
        if missing := _missing(made):
            field, reason = missing
            if specialization.required:
                raise complain(reason, ("specializations", position, *field))
            unavailable[specialization.payload] = reason.partition(" is ")[2]
        else:
            planned.append(made)
    if recipe.output.form == "fat" and planned[-1].backends:
        raise complain(
            f"{planned[-1].name!r} needs {', '.join(planned[-1].backends)}: the last specialization of a fat "
            "file is what every device falls back to, so it must need no backend; add `- target: portable`",
            ("specializations",),
        )
    return PlannedRecipe(name, recipe, tuple(planned), bounds, _find_quantizers(recipe, complain), unavailable)


def _find_specialization(
    specialization: Specialization, where: tuple[str | int, ...], complain: Complain
) -> PlannedSpecialization:
    def find(name: str, options: Mapping[str, JsonValue], field: tuple[str | int, ...]) -> Target:
        try:
            return find_target(name, dict(options))
        except TargetError as error:
            raise complain(str(error), (*where, *field)) from error

    others = {}
    for method, differing in specialization.methods.items():
        name, own = differing.target or specialization.target, differing.options
        if own is None and name == specialization.target:
            continue
        others[method] = find(name, own or {}, ("methods", method, "options" if differing.target is None else "target"))
    return PlannedSpecialization(
        specialization.payload,
        find(specialization.target, specialization.options, ("target",)),
        specialization.required,
        others,
        specialization.methods,
    )


def _missing(planned: PlannedSpecialization) -> tuple[tuple[str, ...], str] | None:
    """The field of the first target that this machine does not have, and why not."""
    fields = [("target",), *(("methods", method, "target") for method in planned.method_targets)]
    for field, target in zip(fields, planned.targets, strict=True):
        if reason := target.available():
            return field, f"target {target.name!r} is not available here: {reason}"
    return None


def _find_quantizers(recipe: Recipe, complain: Complain) -> tuple[TargetParams, ...]:
    try:
        return check_quantizers(recipe.quantize)
    except TargetError as error:
        raise complain(str(error), ("quantize",)) from error
