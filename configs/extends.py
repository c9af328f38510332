"""Which recipes a zoo needs, ``extends`` and functions worked in and shipped presets pulled in on use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import ConfigError
from .fields import format_field
from .nodes import Node, deep_merge, located, plain
from .presets import preset_names, preset_text
from .presets.recipe_types import RECIPE_TYPES
from .recipe_function import call_recipe
from .suggestions import did_you_mean
from .yaml_nodes import parse_yaml

EXTENDS = "extends"
FUNCTION = "function"
KWARGS = "kwargs"


def read_preset(name: str) -> Node | None:
    """The shipped recipe of that name, or of that recipe type of ExecuTorch's, as written; None where there is none."""
    name = RECIPE_TYPES.get(name, name)
    if name not in preset_names():
        return None
    return parse_yaml(preset_text(name), f"<preset {name}>", at=("recipes", name))


@dataclass
class Recipes:
    """Looks recipes up by name and works ``extends`` in.

    Attributes:
        own: the zoo's recipes, as written.
        resolved: complete recipes, so far.
        bases: names of own recipes that another one extends. They need not be complete.
        circular: recipes that extend each other in a circle, so that each circle is reported once.
        python_path: folders that functions are imported from.
    """

    own: Mapping[str, Node]
    resolved: dict[str, Node] = field(default_factory=dict)
    bases: set[str] = field(default_factory=set)
    circular: dict[str, ConfigError] = field(default_factory=dict)
    python_path: tuple[Path, ...] = ()

    def resolve(self, name: str, asked_by: Node) -> Node:
        """The complete recipe of that name.

        Raises:
            ConfigError: at `asked_by`, or at the ``extends`` that is wrong: no such recipe, or a circle.
        """
        if name in self.circular:
            raise self.circular[name]
        if name not in self.resolved:
            self.resolved[name] = self._merged(name, asked_by, ())
        return self.resolved[name]

    def known(self) -> tuple[str, ...]:
        """Every name that a model may use."""
        return tuple(dict.fromkeys((*self.own, *preset_names())))

    def _merged(self, name: str, asked_by: Node, trail: tuple[str, ...]) -> Node:
        # a recipe may extend the preset that it is named after, so presets have names of their own in the trail
        preset = name not in self.own or trail[-1:] == (name,)
        step = f"preset {name}" if preset else name
        if step in trail:
            error = _error(f"recipes extend each other in a circle: {' -> '.join((*trail, step))}", asked_by)
            self.circular |= dict.fromkeys(trail, error)
            raise error
        recipe = read_preset(name) if preset else self.own[name]
        if recipe is None:
            raise _error(f"there is no recipe {name!r}{did_you_mean(name, self.known())}", asked_by)
        recipe = self._called(recipe)
        parent = recipe.child(EXTENDS)
        if parent is None:
            return recipe
        if not isinstance(parent.value, str):
            raise _error("must be the name of one recipe", parent)
        if parent.value in self.own and parent.value != name:
            self.bases.add(parent.value)
        return deep_merge(self._merged(parent.value, parent, (*trail, step)), recipe).without(EXTENDS)

    def _called(self, recipe: Node) -> Node:
        """A recipe with what its function returns under what is written besides."""
        function, kwargs = recipe.child(FUNCTION), recipe.child(KWARGS)
        if function is None:
            return recipe
        given = plain(kwargs) if kwargs else {}
        if not isinstance(function.value, str):
            raise _error("must be package.module:name of a function that returns a recipe", function)
        if not isinstance(given, dict):
            raise _error("must be a mapping", kwargs or function)
        try:
            made = call_recipe(function.value, given, self.python_path)
        except ValueError as error:
            raise _error(str(error), function) from error
        fields = made.model_dump(mode="json", exclude_unset=True)
        return deep_merge(located(fields, function), recipe.without(FUNCTION, KWARGS))


def _error(problem: str, node: Node) -> ConfigError:
    return ConfigError(problem, location=node.location, field=format_field(node.written))
