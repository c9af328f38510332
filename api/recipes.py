"""What a caller names as a recipe, turned into one whose targets are made."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

from ..configs.fields import format_field
from ..configs.recipe import Recipe
from ..configs.recipe_file import load_preset, load_recipe
from ..errors import ConfigError
from ..tasks.model import PlannedRecipe
from ..tasks.recipe_targets import find_targets

RecipeLike: TypeAlias = str | Path | Recipe
"""Name of a shipped recipe, path of a YAML file with one recipe, or a recipe."""

_UNNAMED = "recipe"


def planned_recipe(given: RecipeLike) -> PlannedRecipe:
    """The recipe with its targets.

    Raises:
        InputError: there is no such recipe or file, something is wrong in it, or a target is not available here.
    """
    if isinstance(given, Recipe):
        return find_targets(
            _UNNAMED,
            given,
            given.verify,
            lambda problem, where: ConfigError(problem, field=format_field((_UNNAMED, *where))),
        )
    if not isinstance(given, str | Path):
        raise ConfigError(
            f"is a {type(given).__name__}; give the name of a shipped recipe, the path of a YAML file, "
            "or a pteforge.configs.Recipe",
            field=_UNNAMED,
        )
    is_file = isinstance(given, Path) or given.endswith((".yaml", ".yml"))
    loaded = load_recipe(Path(given)) if is_file else load_preset(str(given))
    return find_targets(loaded.name, loaded.recipe, loaded.recipe.verify, loaded.locations.error)
