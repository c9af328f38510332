"""Functions that give passes, as passes that a recipe names by import path."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable
from typing import Any

from ...configs.edge import EdgePass
from .refusal import untranslatable


def edge_passes(given: Iterable[Callable[..., Any]]) -> tuple[EdgePass, ...]:
    """The entries of `edge_transform_passes`, each of which takes a method's name and its program.

    Raises:
        ConfigError: one cannot be imported by its name, as a key needs that its code can be found.
    """
    return tuple(EdgePass(callable=_path(each, position), takes_program=True) for position, each in enumerate(given))


def _path(given: Callable[..., Any], position: int) -> str:
    module, name = getattr(given, "__module__", None), getattr(given, "__qualname__", None)
    path = f"{module}:{name}"
    try:
        found = pkgutil.resolve_name(path) if module != "__main__" else None
    except (ValueError, ImportError, AttributeError):
        found = None
    if found is not given:
        raise untranslatable(
            f"lowering_recipe.edge_transform_passes[{position}]",
            f"{given!r} cannot be imported by its name, as a key needs for its code; put it at the top of a module",
        )
    return path
