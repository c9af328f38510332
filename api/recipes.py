"""The caller's recipe, in any of its forms, checked and with its targets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ..configs.nodes import FieldPath, format_field
from ..configs.places import HOST
from ..configs.recipe import Recipe
from ..configs.recipe_lookup import LoadedRecipe, call_recipe, load_preset, load_recipe, recipe_of_fields
from ..configs.verification import ERROR_BOUNDS, resolve_gate
from ..errors import ConfigError
from ..tasks.engine.keys.search import ModuleSearch
from ..tasks.lowering.model import ErrorAt, PlannedRecipe, errors_at, plan_recipe

if TYPE_CHECKING:
    from executorch.export import ExportRecipe, RecipeType

    from .executorch.recipe import Translated

RecipeLike: TypeAlias = "str | Path | Mapping[str, Any] | Recipe | ExportRecipe | RecipeType"
"""A shipped recipe's name, ``package.module:name`` of a function that returns a recipe, a YAML file's path, a mapping
with the content of one, a recipe, or an ExportRecipe or recipe type of `executorch.export`."""

_UNNAMED = "recipe"


@dataclass(frozen=True, slots=True)
class FoundRecipe:
    """A recipe with its targets, and the settings of an ExportRecipe that no recipe has: see `Translated`."""

    planned: PlannedRecipe
    strict: bool = False
    calibration: Callable[[], Iterable[Any]] | None = None


def recipe_from_executorch(given: ExportRecipe | RecipeType) -> Recipe:
    """Translates an `executorch.export.ExportRecipe`, or one of its recipe types.

    Raises ConfigError, which names the field, for functions and objects without an equivalent.
    """
    translated = _translated(given)
    if translated.calibration:
        raise ConfigError(
            "has no equivalent in a recipe, which fits many models: a model has its samples, under `calibration`",
            field="ExportRecipe.quantization_recipe.calibration_inputs_fn",
        )
    return translated.recipe


def find_recipe(given: RecipeLike) -> FoundRecipe:
    """Finds and checks a recipe; raises InputError if it is missing or invalid, or a target is not available here."""
    if isinstance(given, str) and given.endswith((".yaml", ".yml")):
        given = Path(given)
    match given:
        case Recipe():
            return _named(_planned(_UNNAMED, given, _error_at))
        case Mapping():
            return _named(_loaded(recipe_of_fields(_UNNAMED, given)), str(given.get("extends", "")))
        case Path():
            return FoundRecipe(_loaded(load_recipe(given)))
        case str() if ":" in given:
            try:
                recipe = call_recipe(given, {})
            except ValueError as error:
                raise ConfigError(str(error), field=_UNNAMED) from error
            return FoundRecipe(_planned(given.rpartition(":")[2], recipe, _error_at))
        case str():
            return FoundRecipe(_loaded(load_preset(given)))
    translated = _translated(given)
    planned = replace(_planned(translated.name, translated.recipe, _error_at), until=translated.until)
    return FoundRecipe(planned, translated.strict, translated.calibration)


def _named(planned: PlannedRecipe, extends: str = "") -> FoundRecipe:
    """The recipe, named by what it extends, or by its targets.

    Two of them for one model have one name, so that `Exported.why` says what changed from one to the other.
    """
    base = extends or "-".join(payload.target for payload in planned.recipe.specializations)
    return FoundRecipe(replace(planned, name=f"{base}-own"))


def _error_at(problem: str, where: FieldPath) -> ConfigError:
    return ConfigError(problem, field=format_field((_UNNAMED, *where)))


def _loaded(loaded: LoadedRecipe) -> PlannedRecipe:
    bounded = any(loaded.locations.is_the_users(("verify", bound)) for bound in ERROR_BOUNDS)
    return _planned(loaded.name, loaded.recipe, loaded.locations.error, bounded=bounded)


def _translated(given: object) -> Translated:
    if any(kind.__module__.startswith("executorch.") for kind in type(given).__mro__):  # saves the import otherwise
        from executorch.export import ExportRecipe, RecipeType  # noqa: PLC0415 - takes seconds

        from .executorch.recipe import translate, translate_type  # noqa: PLC0415 - takes seconds

        if isinstance(given, ExportRecipe):
            return translate(given)
        if isinstance(given, RecipeType):
            return translate_type(given)
    raise ConfigError(
        f"is a {type(given).__name__}; give the name of a shipped recipe, the path of a YAML file, a mapping "
        "with the content of one, a pteforge.configs.Recipe, or an ExportRecipe or recipe type of executorch.export",
        field=_UNNAMED,
    )


def _planned(name: str, recipe: Recipe, error_at: ErrorAt, *, bounded: bool | None = None) -> PlannedRecipe:
    """Plans a recipe whose bounds the user has chosen, if it has some; or else as `bounded` says."""
    if others := [place for place in recipe.verify.on if place != HOST]:
        raise error_at(f"{others[0]!r} is a place of a zoo; give `places` to pteforge.export", ("verify", "on"))
    with errors_at(error_at, ("accuracy",)):
        gate = resolve_gate(recipe.accuracy, None, recipe.bounds_of_search)
    if bounded is None:
        bounded = bool(recipe.verify.model_fields_set.intersection(ERROR_BOUNDS))
    return plan_recipe(name, recipe, recipe.verify, ModuleSearch(), error_at, gate, bounded=bounded)
