"""What a caller names as a recipe, turned into one whose targets are made."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ..configs.accuracy import resolve_gate
from ..configs.fields import FieldPath, format_field
from ..configs.recipe import Recipe
from ..configs.recipe_file import LoadedRecipe, load_preset, load_recipe
from ..configs.recipe_function import call_recipe
from ..errors import ConfigError
from ..tasks.edge_passes import check_edge_passes
from ..tasks.keys.search import ModuleSearch
from ..tasks.model import PlannedRecipe
from ..tasks.recipe_targets import Complain, find_targets
from ..tasks.source_transforms import check_source_transforms

if TYPE_CHECKING:
    from executorch.export import ExportRecipe, RecipeType

    from .executorch.recipe import Translated

RecipeLike: TypeAlias = "str | Path | Recipe | ExportRecipe | RecipeType"
"""Name of a shipped recipe, ``package.module:name`` of a function that returns one, path of a YAML file with one, a
recipe, or what `executorch.export` takes."""

_UNNAMED = "recipe"


@dataclass(frozen=True, slots=True)
class AskedRecipe:
    """A recipe with its targets, and what an ExportRecipe says besides.

    Attributes:
        planned: the recipe.
        strict: trace in torch.export's strict mode.
        calibration: gives what quantizers observe, for each method; None for the example inputs.
    """

    planned: PlannedRecipe
    strict: bool = False
    calibration: Callable[[], Iterable[Any]] | None = None


def recipe_from_executorch(given: ExportRecipe | RecipeType) -> Recipe:
    """The recipe that says what an `executorch.export.ExportRecipe` says, or that one of its recipe types stands for.

    Raises:
        ConfigError: it holds what cannot be said: functions, or other objects than targets make. The field is named.
    """
    found = _translated(given)
    if found.calibration:
        raise ConfigError(
            "cannot be said in a recipe, which fits many models: samples are the model's, under `calibration`",
            field="ExportRecipe.quantization_recipe.calibration_inputs_fn",
        )
    return found.recipe


def asked_recipe(given: RecipeLike) -> AskedRecipe:
    """The recipe that a caller names.

    Raises:
        InputError: there is no such recipe, function or file, something is wrong in it, or a target is not available
            here.
    """
    match given:
        case Recipe():
            return AskedRecipe(_planned(_UNNAMED, given, _complain))
        case Path():
            return _loaded(load_recipe(given))
        case str() if given.endswith((".yaml", ".yml")):
            return _loaded(load_recipe(Path(given)))
        case str() if ":" in given:
            try:
                return AskedRecipe(_planned(given.rpartition(":")[2], call_recipe(given, {}), _complain))
            except ValueError as error:
                raise ConfigError(str(error), field=_UNNAMED) from error
        case str():
            return _loaded(load_preset(given))
    found = _translated(given)
    planned = replace(_planned(found.name, found.recipe, _complain), until=found.until)
    return AskedRecipe(planned, found.strict, found.calibration)


def _complain(problem: str, where: FieldPath) -> ConfigError:
    return ConfigError(problem, field=format_field((_UNNAMED, *where)))


def _loaded(loaded: LoadedRecipe) -> AskedRecipe:
    return AskedRecipe(_planned(loaded.name, loaded.recipe, loaded.locations.error))


def _translated(given: object) -> Translated:
    if any(kind.__module__.startswith("executorch.") for kind in type(given).__mro__):  # or it cannot be one of theirs
        from executorch.export import ExportRecipe, RecipeType  # noqa: PLC0415 - takes seconds

        from .executorch.recipe import translate, translate_type  # noqa: PLC0415 - takes seconds

        if isinstance(given, ExportRecipe):
            return translate(given)
        if isinstance(given, RecipeType):
            return translate_type(given)
    raise ConfigError(
        f"is a {type(given).__name__}; give the name of a shipped recipe, the path of a YAML file, "
        "a pteforge.configs.Recipe, or an ExportRecipe or recipe type of executorch.export",
        field=_UNNAMED,
    )


def _planned(name: str, recipe: Recipe, complain: Complain) -> PlannedRecipe:
    check_source_transforms(recipe, ModuleSearch(), complain)
    check_edge_passes(recipe, ModuleSearch(), complain)
    try:
        gate = resolve_gate(recipe.accuracy, None)
    except ValueError as error:
        raise complain(str(error), ("accuracy",)) from error
    return replace(find_targets(name, recipe, recipe.verify, complain), gate=gate)
