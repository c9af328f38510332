"""What a caller names as a recipe, turned into one whose targets are made."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from ..configs.accuracy import resolve_gate
from ..configs.fields import format_field
from ..configs.recipe import Recipe
from ..configs.recipe_file import load_preset, load_recipe
from ..errors import ConfigError
from ..tasks.keys.search import ModuleSearch
from ..tasks.model import PlannedRecipe
from ..tasks.recipe_targets import Complain, find_targets
from ..tasks.source_transforms import check_source_transforms

RecipeLike: TypeAlias = str | Path | Recipe
"""Name of a shipped recipe, path of a YAML file with one recipe, or a recipe."""

_UNNAMED = "recipe"


def planned_recipe(given: RecipeLike) -> PlannedRecipe:
    """The recipe with its targets.

    Raises:
        InputError: there is no such recipe or file, something is wrong in it, or a target is not available here.
    """
    if isinstance(given, Recipe):
        return _planned(
            _UNNAMED, given, lambda problem, where: ConfigError(problem, field=format_field((_UNNAMED, *where)))
        )
    if not isinstance(given, str | Path):
        raise ConfigError(
            f"is a {type(given).__name__}; give the name of a shipped recipe, the path of a YAML file, "
            "or a pteforge.configs.Recipe",
            field=_UNNAMED,
        )
    is_file = isinstance(given, Path) or given.endswith((".yaml", ".yml"))
    loaded = load_recipe(Path(given)) if is_file else load_preset(str(given))
    return _planned(loaded.name, loaded.recipe, loaded.locations.error)


def _planned(name: str, recipe: Recipe, complain: Complain) -> PlannedRecipe:
    check_source_transforms(recipe, ModuleSearch(), complain)
    try:
        gate = resolve_gate(recipe.accuracy, None)
    except ValueError as error:
        raise complain(str(error), ("accuracy",)) from error
    if gate and gate.max_drop is not None:
        problem = "compares with the model as its builder makes it, and here is none; export a zoo, or set a `floor`"
        raise complain(problem, ("accuracy", "max_drop"))
    return replace(find_targets(name, recipe, recipe.verify, complain), gate=gate)
