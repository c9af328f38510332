"""Checks everything about a recipe that can be checked without torch, and makes its targets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pydantic import JsonValue

from ...configs.nodes import FieldPath
from ...configs.problems import raise_all
from ...configs.quantize import TorchaoTransform
from ...configs.recipe import Recipe, Specialization
from ...configs.sources import NamedFunction
from ...configs.verification import ERROR_BOUNDS, AccuracyGate, VerifyBounds
from ...errors import ConfigError, SourceError, TargetError
from ..engine.keys.builder import find_builder, find_signature
from ..engine.keys.search import ModuleSearch
from ..quantize.torchao_configs import check_transform, class_name
from ..targets import Target
from ..targets.find import check_quantizers, find_target
from .model import PlannedRecipe, PlannedSpecialization

ErrorAt = Callable[[str, FieldPath], ConfigError]
"""Makes the error for a problem, given the path of the field within the recipe."""


def plan_recipe(
    name: str,
    recipe: Recipe,
    bounds: VerifyBounds,
    search: ModuleSearch,
    error_at: ErrorAt,
    gate: AccuracyGate | None = None,
    *,
    bounded: bool = True,
) -> PlannedRecipe:
    """Checks a recipe and makes its targets.

    Where the user has not chosen the bounds (`bounded`), the gate alone decides about files with other numerics. Raises
    InputError if a target is unknown, or does not take its options; targets are not available, each with a line; a
    callable or a file is missing; torchao has no such config.
    """
    _check_source_transforms(recipe, search, error_at)
    _check_functions(recipe, search, error_at)
    planned, unavailable, refused = [], {}, []
    for position, specialization in enumerate(recipe.specializations):
        made = _find_specialization(specialization, ("specializations", position), error_at)
        missing = list(_missing(made))
        if missing and specialization.required:
            refused += [error_at(reason, ("specializations", position, *field)) for field, reason in missing]
        elif missing:
            unavailable[specialization.payload] = missing[0][1].partition(" is ")[2]
        else:
            planned.append(made)
    raise_all(refused)
    if recipe.output.form == "fat" and planned[-1].backends:
        raise error_at(
            f"{planned[-1].name!r} needs {', '.join(planned[-1].backends)}: the last specialization of a fat "
            "file is what every device falls back to, so it must need no backend; add `- target: portable`",
            ("specializations",),
        )
    with errors_at(error_at, ("quantize",)):
        quantizers = check_quantizers(recipe.quantize)
    if recipe.quantize and recipe.quantize.search and gate is None:
        raise error_at(
            "needs a score to go by: name an `evaluator` under `accuracy`, of the recipe or of the model, and how far "
            "scores may drop: `drop` here, or `max_drop` or `floor` there",
            ("quantize", "search"),
        )
    if gate and not bounded and (recipe.quantize or recipe.source_transforms):
        bounds = bounds.model_copy(update=dict.fromkeys(ERROR_BOUNDS))
    return PlannedRecipe(name, recipe, tuple(planned), bounds, quantizers, unavailable, gate)


def torchao_calls(recipe: Recipe) -> Iterator[tuple[str, Mapping[str, JsonValue]]]:
    """Class name and fields of each torchao config in a recipe, to check their values with torch."""
    for transform in recipe.source_transforms:
        if isinstance(transform, TorchaoTransform):
            yield class_name(transform.torchao), transform.params


@contextmanager
def errors_at(error_at: ErrorAt, where: FieldPath) -> Iterator[None]:
    """Adds the position of a field to errors about its value."""
    try:
        yield
    except (SourceError, TargetError, ValueError) as error:
        raise error_at(str(error), where) from error


def check_callable(
    builder: str,
    kwargs: Mapping[str, JsonValue],
    search: ModuleSearch,
    error_at: ErrorAt,
    where: FieldPath,
    named: str = "",
    *,
    given: int = 0,
) -> None:
    """Checks that a callable exists and takes its arguments, as far as its source shows.

    `where` is the mapping that has its `kwargs`, and its name in the field `named`; `given` arguments come before them.

    Raises:
        InputError: at the position of what is wrong; several problems have a line each.
    """
    with errors_at(error_at, (*where, named) if named else where):
        find_builder(builder, search)
    if (signature := find_signature(builder, search)) is None:
        return
    raise_all(
        error_at(problem, (*where, "kwargs", name) if name else (*where, "kwargs"))
        for name, problem in signature.problems(builder, kwargs, given)
    )


def check_files(files: Iterable[Path], error_at: ErrorAt, where: FieldPath) -> None:
    """Raises an error at the position of a file or folder that does not exist; `where` is the field of all of them."""
    for position, file in enumerate(files):
        if not (file.is_file() or file.is_dir()):
            raise error_at(f"there is no file {file}", (*where, position))


def _check_source_transforms(recipe: Recipe, search: ModuleSearch, error_at: ErrorAt) -> None:
    for position, transform in enumerate(recipe.source_transforms):
        where = "source_transforms", position
        if isinstance(transform, TorchaoTransform):
            with errors_at(error_at, where):
                check_transform(transform)
            if transform.filter_fn:
                check_callable(transform.filter_fn, {}, search, error_at, where, "filter_fn", given=2)
            continue
        check_callable(transform.callable, transform.kwargs, search, error_at, where, given=1)
        check_files(transform.files, error_at, (*where, "files"))


def _check_functions(recipe: Recipe, search: ModuleSearch, error_at: ErrorAt) -> None:
    for position, chosen in enumerate(recipe.quantize.quantizers if recipe.quantize else ()):
        if chosen.filter_fn:
            where = "quantize", "quantizers", position
            check_callable(chosen.filter_fn, {}, search, error_at, where, "filter_fn", given=1)
    for field, named, given in _passes(recipe):
        check_callable(named.callable, named.kwargs, search, error_at, field, "callable", given=given)


def _passes(recipe: Recipe) -> Iterator[tuple[FieldPath, NamedFunction, int]]:
    """A recipe's own functions: field, function, and how many arguments it gets before its keyword arguments."""
    for position, own in enumerate(recipe.aten_passes):
        yield ("aten_passes", position), own, 2
    for position, managed in enumerate(recipe.edge_manager_passes):
        yield ("edge_manager_passes", position), managed, 2 if managed.takes_program else 1
    for position, emitted in enumerate(recipe.emission_passes):
        yield ("emission_passes", position), emitted, 1 if emitted.takes_module else 0
    for field, passes in (recipe.quantize.passes if recipe.quantize else {}).items():
        for position, made in enumerate(passes):
            yield ("quantize", field, position), made, 1
    for place, edge in recipe.edges.items():
        for position, edge_pass in enumerate(edge.passes):
            yield (*place, "passes", position), edge_pass, 2 if edge_pass.takes_program else 0


def _find_specialization(specialization: Specialization, where: FieldPath, error_at: ErrorAt) -> PlannedSpecialization:
    def find(name: str, options: Mapping[str, JsonValue], field: FieldPath) -> Target:
        with errors_at(error_at, (*where, *field)):
            return find_target(name, dict(options))

    others = {}
    for method, differing in specialization.methods.items():
        name, own = differing.target or specialization.target, differing.options
        if own is None and name == specialization.target:
            continue
        others[method] = find(name, own or {}, ("methods", method, "options" if differing.target is None else "target"))
    return PlannedSpecialization(
        specialization.payload,
        find(specialization.target, specialization.options, ("target",)),
        specialization.required,
        others,
        specialization.methods,
    )


def _missing(planned: PlannedSpecialization) -> Iterator[tuple[tuple[str, ...], str]]:
    """The field of each target that is not available on this machine, and the reason."""
    fields = [("target",), *(("methods", method, "target") for method in planned.method_targets)]
    for field, target in zip(fields, planned.targets, strict=True):
        if reason := target.available():
            yield field, f"target {target.name!r} is not available here: {reason}"
