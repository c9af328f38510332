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
from .params import CallableParams
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


def pass_params(passes: Sequence[EdgePass], model: PlannedModel) -> tuple[CallableParams, ...]:
    """The passes with digests of their code, and of the local modules that it imports."""
    search = ModuleSearch(model.python_path)
    sources = (BuilderSource(builder=each.callable, kwargs=each.kwargs) for each in passes)
    return tuple(CallableParams(source=source_fields(source, search, folder=model.folder)) for source in sources)
