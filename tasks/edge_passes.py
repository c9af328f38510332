"""Passes that recipes name by import path: checked without importing them, and their code as params of `edge`."""

from __future__ import annotations

from collections.abc import Sequence

from ..configs.edge import EdgePass
from ..configs.recipe import Recipe
from ..configs.sources import BuilderSource
from ..errors import SourceError
from .keys.builder import find_builder
from .keys.search import ModuleSearch
from .keys.source import source_fields
from .model import PlannedModel
from .params import PassParams
from .recipe_targets import Complain


def check_edge_passes(recipe: Recipe, search: ModuleSearch, complain: Complain) -> None:
    """Checks that the passes of a recipe are there.

    Args:
        recipe: as written.
        search: where callables are looked for.
        complain: makes errors that say where in the user's files, or arguments, the field stands.

    Raises:
        InputError: there is no such callable.
    """
    for place, edge in recipe.edges.items():
        for position, each in enumerate(edge.passes):
            try:
                find_builder(each.callable, search)
            except SourceError as error:
                raise complain(str(error), (*place, "passes", position, "callable")) from error


def pass_params(passes: Sequence[EdgePass], model: PlannedModel, method: str) -> tuple[PassParams, ...]:
    """The passes over one method, with digests of their code, and of the local modules that it imports."""
    search = ModuleSearch(model.python_path)

    def params(each: EdgePass) -> PassParams:
        source = BuilderSource(builder=each.callable, kwargs=each.kwargs)
        fields = source_fields(source, search, folder=model.folder)
        return PassParams(source=fields, method=method if each.takes_program else None)

    return tuple(map(params, passes))
