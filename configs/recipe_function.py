"""Recipes that a Python function makes."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .recipe import Recipe
from .sources import check_builder_name


def call_recipe(function: str, kwargs: Mapping[str, Any], python_path: Sequence[Path] = ()) -> Recipe:
    """Calls a function of the user's, in this process; what it imports should be light.

    Its code is in no key, since what it returns is: the recipe.

    Args:
        function: ``package.module:name``.
        kwargs: its keyword arguments.
        python_path: folders that come first on ``sys.path`` meanwhile; modules from there are imported anew each time.

    Raises:
        ValueError: it cannot be imported, raises, or returns no Recipe. The message says which.
    """
    check_builder_name(function)
    with _importing_from(python_path):
        try:
            found: Any = pkgutil.resolve_name(function)
        except Exception as error:
            raise ValueError(f"{function} cannot be imported: {type(error).__name__}: {error}") from error
        try:
            made = found(**kwargs)
        except Exception as error:
            raise ValueError(f"{function} failed: {type(error).__name__}: {error}") from error
    if not isinstance(made, Recipe):
        problem = (
            f"{function} returned {type(made).__name__}; it must return a pteforge.configs.Recipe "
            "(pteforge.recipe_from_executorch makes one of an ExportRecipe)"
        )
        raise ValueError(problem)  # noqa: TRY004 - what the user's function returns is a value here
    return made


@contextmanager
def _importing_from(folders: Sequence[Path]) -> Iterator[None]:
    """Modules of these folders are found first, and forgotten at the end: other zoos may have others of the name."""
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
