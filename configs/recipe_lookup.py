"""Finds recipes (presets, a zoo's own, YAML files and Python functions) and merges ``extends``."""

from __future__ import annotations

import importlib
import json
import pkgutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import ConfigError, Location
from .base import check_object_reference, did_you_mean
from .nodes import Locations, Node, deep_merge, located, parse_yaml, plain, read_yaml
from .presets import RECIPE_TYPES, preset_names, preset_text
from .problems import checked
from .recipe import Recipe


@dataclass(frozen=True, slots=True)
class LoadedRecipe:
    """A recipe with ``extends`` merged, and where its values were written."""

    name: str
    recipe: Recipe
    locations: Locations


def load_preset(name: str) -> LoadedRecipe:
    """A shipped recipe. Raises ConfigError, with the names that exist, if there is none of that name."""
    return _resolve(name, RecipeLookup({}), Node(name, Location("recipe")))


def load_recipe(path: Path) -> LoadedRecipe:
    """Reads a YAML file with one recipe, named after the file; raises ConfigError with a line for each problem."""
    tree = read_yaml(path, str(path))
    if not isinstance(tree.value, dict):
        raise ConfigError("a recipe is a mapping, with `specializations` or `extends`", location=tree.location)
    return _resolve(path.stem, RecipeLookup({path.stem: tree}, python_path=(path.absolute().parent,)), tree)


def recipe_of_fields(name: str, fields: Mapping[str, Any]) -> LoadedRecipe:
    """A recipe that was written as a mapping, as in a zoo. Raises ConfigError, with a line for each problem."""
    try:
        tree = located(json.loads(json.dumps(fields)), Node(None, Location(name)), as_written=True)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"a recipe has texts, numbers, lists and mappings as in YAML: {error}", field=name) from error
    return _resolve(name, RecipeLookup({name: tree}), tree)


def _resolve(name: str, lookup: RecipeLookup, asked_by: Node) -> LoadedRecipe:
    tree = lookup.resolve(name, asked_by)
    return LoadedRecipe(name, checked(Recipe, tree), Locations(tree))


def read_preset(name: str) -> Node | None:
    """The shipped recipe of that name, or of that recipe type of ExecuTorch's, as written; None if there is none."""
    name = RECIPE_TYPES.get(name, name)
    if name not in preset_names():
        return None
    return parse_yaml(preset_text(name), f"<preset {name}>", at=("recipes", name))


@dataclass
class RecipeLookup:
    """Looks recipes up by name, and merges each over the function and the recipe that it starts from."""

    own: Mapping[str, Node]
    python_path: tuple[Path, ...] = ()  # folders that functions are imported from
    resolved: dict[str, Node] = field(default_factory=dict)
    bases: set[str] = field(default_factory=set)  # own recipes that others extend; they may be incomplete
    circular: dict[str, ConfigError] = field(default_factory=dict)  # so that each circle is reported once

    def resolve(self, name: str, asked_by: Node) -> Node:
        """Raises ConfigError at `asked_by`, or at the ``extends`` that names no recipe or closes a circle."""
        if name in self.circular:
            raise self.circular[name]
        if name not in self.resolved:
            self.resolved[name] = self._merged(name, asked_by, ())
        return self.resolved[name]

    def _merged(self, name: str, asked_by: Node, trail: tuple[str, ...]) -> Node:
        # a recipe may extend the preset that it is named after, so presets have names of their own in the trail
        preset = name not in self.own or trail[-1:] == (name,)
        step = f"preset {name}" if preset else name
        if step in trail:
            error = asked_by.error(f"recipes extend each other in a circle: {' -> '.join((*trail, step))}")
            self.circular |= dict.fromkeys(trail, error)
            raise error
        recipe = read_preset(name) if preset else self.own[name]
        if recipe is None:
            known = tuple(dict.fromkeys((*self.own, *preset_names())))
            raise asked_by.error(f"there is no recipe {name!r}{did_you_mean(name, known)}")
        recipe = self._over_function(recipe)
        parent = recipe.child("extends")
        if parent is None:
            return recipe
        if not isinstance(parent.value, str):
            raise parent.error("must be the name of one recipe")
        if parent.value in self.own and parent.value != name:
            self.bases.add(parent.value)
        return deep_merge(self._merged(parent.value, parent, (*trail, step)), recipe).without("extends")

    def _over_function(self, recipe: Node) -> Node:
        function, kwargs = recipe.child("function"), recipe.child("kwargs")
        if function is None:
            return recipe
        if not isinstance(function.value, str):
            raise function.error("must be package.module:name of a function that returns a recipe")
        arguments = plain(kwargs) if kwargs else {}
        if not isinstance(arguments, dict):
            raise (kwargs or function).error("must be a mapping")
        try:
            returned = call_recipe(function.value, arguments, self.python_path)
        except ValueError as error:
            raise function.error(str(error)) from error
        fields = returned.model_dump(mode="json", exclude_unset=True)
        return deep_merge(located(fields, function), recipe.without("function", "kwargs"))


def call_recipe(function: str, kwargs: Mapping[str, Any], python_path: Sequence[Path] = ()) -> Recipe:
    """Calls a user's function (``package.module:name``) in this process; its imports should be light.

    Modules from the folders in `python_path` come first, and are imported again for each call. Cache keys do not
    include the function's code, since they include the recipe that it returns. What it prints goes to stderr: stdout
    may be JSON. Raises ValueError if it cannot be imported, raises, or returns no Recipe.
    """
    check_object_reference(function)
    with _importing_from(python_path), redirect_stdout(sys.stderr):
        try:
            resolved: Any = pkgutil.resolve_name(function)
        except Exception as error:
            raise ValueError(f"{function} cannot be imported: {type(error).__name__}: {error}") from error
        try:
            recipe = resolved(**kwargs)
        except Exception as error:
            raise ValueError(f"{function} failed: {type(error).__name__}: {error}") from error
    if not isinstance(recipe, Recipe):
        problem = (
            f"{function} returned {type(recipe).__name__}; it must return a pteforge.configs.Recipe "
            "(pteforge.recipe_from_executorch makes one of an ExportRecipe)"
        )
        raise ValueError(problem)  # noqa: TRY004 - the function's result is a value here
    return recipe


@contextmanager
def _importing_from(folders: Sequence[Path]) -> Iterator[None]:
    """Finds modules in these folders first, and forgets them at the end: another zoo may have others of the name."""
    before = set(sys.modules)
    sys.path[:0] = map(str, folders)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        del sys.path[: len(folders)]
        for name in set(sys.modules) - before:
            file = getattr(sys.modules[name], "__file__", None)
            if file and any(Path(file).is_relative_to(folder) for folder in folders):
                del sys.modules[name]
