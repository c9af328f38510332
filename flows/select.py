"""From a loaded zoo to the models and recipes that are asked for, checked as far as can be before any work starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from ..configs.load import LoadedZoo
from ..configs.model import ModelConfig
from ..configs.sources import ProgramSource
from ..errors import InputError, SourceError
from ..tasks.edge_passes import check_edge_passes
from ..tasks.keys.builder import find_builder
from ..tasks.keys.program_file import check_program_file
from ..tasks.keys.search import ModuleSearch
from ..tasks.model import PlannedModel, PlannedRecipe
from ..tasks.recipe_targets import find_targets
from ..tasks.source_transforms import check_source_transforms
from .select_gate import select_gate


def select_models(loaded: LoadedZoo, models: str = "*", recipes: str = "*") -> tuple[PlannedModel, ...]:
    """The models and recipes whose names match the globs, several of which are separated by commas.

    Raises:
        InputError: nothing matches; a target is unknown, not available or does not take its options; a builder or a
            `.pt2` file is not there. Problems of several models are reported together.
    """
    zoo = loaded.zoo
    chosen = {name: config for name, config in zoo.models.items() if _matches(name, models)}
    if not chosen:
        raise InputError(f"no model matches {models!r}; the zoo's models: {', '.join(zoo.models) or 'none'}")
    problems: list[InputError] = []
    planned = []
    for name, config in chosen.items():
        try:
            model = _plan(loaded, name, config, recipes)
        except InputError as error:
            problems.append(error)
        else:
            planned += [model] if model.recipes or model.not_applicable else []
    if len(problems) == 1:
        raise problems[0]
    if problems:
        raise InputError("\n".join(dict.fromkeys(str(problem) for problem in problems)))
    if not planned:
        raise InputError(
            f"no recipe of the chosen models matches {recipes!r}; the zoo's recipes: {', '.join(zoo.recipes)}"
        )
    if not any(model.recipes for model in planned):
        raise _not_applicable(loaded, planned)
    return tuple(planned)


def _not_applicable(loaded: LoadedZoo, planned: Sequence[PlannedModel]) -> InputError:
    """What to say where nothing that is asked for applies."""
    lines = []
    for model in planned:
        for recipe, reason in model.not_applicable.items():
            where = ("recipes", recipe, "not_for")
            lines.append(str(loaded.locations.error(f"{recipe!r} does not apply to {model.name!r}: {reason}", where)))
    return InputError("\n".join(lines))


def _matches(name: str, globs: str) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs.split(","))


def _plan(loaded: LoadedZoo, name: str, config: ModelConfig, recipes: str) -> PlannedModel:
    _check_source(loaded, name, config)
    every = loaded.zoo.recipes_of(name)
    asked = [recipe for recipe in every if _matches(recipe, recipes)]
    against = {recipe: loaded.zoo.recipes[recipe].reason_against(name) for recipe in asked}
    return PlannedModel(
        name=name,
        config=config,
        recipes=tuple(_plan_recipe(loaded, name, recipe) for recipe in asked if against[recipe] is None),
        not_applicable={recipe: reason for recipe, reason in against.items() if reason is not None},
        drawn_inputs=max(loaded.zoo.verify_bounds(name, recipe).drawn_inputs for recipe in every),
        python_path=loaded.zoo.python_path,
        folder=loaded.files[0].parent,
    )


def _check_source(loaded: LoadedZoo, name: str, config: ModelConfig) -> None:
    try:
        if isinstance(config.source, ProgramSource):
            check_program_file(config.source.program)
        else:
            find_builder(config.source.builder, ModuleSearch(loaded.zoo.python_path))
            for position, file in enumerate(config.source.files):
                if not file.is_file():
                    where = ("models", name, "source", "files", position)
                    raise loaded.locations.error(f"there is no file {file}", where)
    except SourceError as error:
        raise loaded.locations.error(str(error), ("models", name, "source")) from error
    for method, calibration in (config.calibration or {}).items():
        try:
            find_builder(calibration.dataset, ModuleSearch(loaded.zoo.python_path))
        except SourceError as error:
            raise loaded.locations.error(str(error), ("models", name, "calibration", method, "dataset")) from error


def _plan_recipe(loaded: LoadedZoo, model: str, name: str) -> PlannedRecipe:
    recipe = loaded.zoo.recipes[name]

    def complain(problem: str, where: tuple[str | int, ...]) -> InputError:
        return loaded.locations.error(problem, ("recipes", name, *where))

    if recipe.source_transforms and isinstance(loaded.zoo.models[model].source, ProgramSource):
        problem = f"recipe {name!r} has source_transforms; they change modules, and a .pt2 file has none"
        raise loaded.locations.error(problem, ("models", model, "source"))
    check_source_transforms(recipe, ModuleSearch(loaded.zoo.python_path), complain)
    check_edge_passes(recipe, ModuleSearch(loaded.zoo.python_path), complain)
    planned = find_targets(name, recipe, loaded.zoo.verify_bounds(model, name), complain)
    return replace(planned, gate=select_gate(loaded, model, name))
