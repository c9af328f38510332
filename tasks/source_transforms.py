"""From a recipe's source transforms to the params of the stage that applies them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pydantic import JsonValue

from ..artifacts.digest import canonical_json
from ..configs.recipe import Recipe
from ..configs.source_transforms import CallableTransform, SourceTransform, TorchaoTransform
from ..configs.sources import BuilderSource
from ..errors import SourceError, TargetError
from .keys.builder import find_builder
from .keys.search import ModuleSearch
from .keys.source import source_fields
from .model import PlannedModel
from .params import CallableParams
from .recipe_targets import Complain
from .source_params import MethodParams, SourceTransformParams, TorchaoParams
from .torchao_configs import check_transform, class_name


def check_source_transforms(recipe: Recipe, search: ModuleSearch, complain: Complain) -> None:
    """Checks what can be checked without importing torch: names of configs and of their fields, callables and files.

    Args:
        recipe: as written.
        search: where callables are looked for.
        complain: makes errors that say where in the user's files, or arguments, the field stands.

    Raises:
        InputError: a transform cannot be as it is.
    """
    for position, transform in enumerate(recipe.source_transforms):
        where = ("source_transforms", position)
        try:
            if isinstance(transform, TorchaoTransform):
                check_transform(transform)
                continue
            find_builder(transform.callable, search)
        except (SourceError, TargetError) as error:
            raise complain(str(error), where) from error
        for number, file in enumerate(transform.files):
            if not file.is_file():
                raise complain(f"there is no file {file}", (*where, "files", number))


def torchao_calls(recipe: Recipe) -> Iterator[tuple[str, Mapping[str, JsonValue]]]:
    """Class name and fields of each of torchao's configs in a recipe, for a check of their values with torch."""
    for transform in recipe.source_transforms:
        if isinstance(transform, TorchaoTransform):
            yield class_name(transform.torchao), transform.params


def source_transform_params(
    model: PlannedModel, recipe: Recipe, method: str, watched: tuple[str, ...]
) -> SourceTransformParams:
    """Params of `source_transform`.

    Args:
        model: the model.
        recipe: one of its recipes, with transforms.
        method: name of the method.
        watched: modules that earlier runs loaded and the static closure does not see, neither the builder's nor the
            callables'.
    """
    export = model.export_params(method, watched)
    return SourceTransformParams(
        **{name: getattr(export, name) for name in MethodParams.model_fields},
        transforms=tuple(_params(transform, model) for transform in recipe.source_transforms),
    )


def transform_watch_name(model: PlannedModel, recipe: Recipe, method: str) -> str:
    """What the stage of a method is called in the ledger's watch lists: after the user's code that runs in it."""
    called = [[each.callable, each.kwargs] for each in recipe.source_transforms if isinstance(each, CallableTransform)]
    return canonical_json(["source_transform", model.watch_name(method), called]).decode()


def _params(transform: SourceTransform, model: PlannedModel) -> TorchaoParams | CallableParams:
    if isinstance(transform, CallableTransform):
        source = BuilderSource(builder=transform.callable, kwargs=transform.kwargs, files=transform.files)
        return CallableParams(source=source_fields(source, ModuleSearch(model.python_path), folder=model.folder))
    return TorchaoParams(
        config=class_name(transform.torchao),
        fields=transform.params,
        include=transform.filter,
        exclude=transform.exclude,
        layers=transform.layers,
    )
