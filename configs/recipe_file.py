"""Recipes by themselves, outside of a zoo: shipped ones by name, and YAML files that hold one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..errors import ConfigError, Location
from .extends import Recipes
from .includes import read_tree
from .locations import Locations
from .nodes import Node
from .problems import check, raise_all
from .recipe import Recipe


@dataclass(frozen=True, slots=True)
class LoadedRecipe:
    """A recipe, and where it was written.

    Attributes:
        name: what it is called.
        recipe: the recipe, `extends` worked in.
        locations: finds the file, line and column of any value in it.
    """

    name: str
    recipe: Recipe
    locations: Locations


def load_preset(name: str) -> LoadedRecipe:
    """A shipped recipe; raises ConfigError, with the names there are, where there is none of that name."""
    return _resolve(name, Recipes({}), Node(name, Location("recipe")))


def load_recipe(path: Path) -> LoadedRecipe:
    """Reads a YAML file that is one recipe: what stands under a recipe's name in a zoo. It is called as the file is.

    Raises:
        ConfigError: anything that is wrong with the file; a line for each problem.
    """
    tree = read_tree(path, str(path))
    if not isinstance(tree.value, dict):
        raise ConfigError("a recipe is a mapping, with `specializations` or `extends`", location=tree.location)
    return _resolve(path.stem, Recipes({path.stem: tree}, python_path=(path.absolute().parent,)), tree)


def _resolve(name: str, recipes: Recipes, asked_by: Node) -> LoadedRecipe:
    tree = recipes.resolve(name, asked_by)
    recipe, problems = check(Recipe, tree)
    raise_all(problems)
    assert recipe is not None  # noqa: S101 - there are problems otherwise
    return LoadedRecipe(name, recipe, Locations(tree))
