"""Selects models and recipes of a loaded zoo, and checks them as far as possible before any work starts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache, partial
from pathlib import Path

from ...configs.base import TARGET_SEPARATOR, did_you_mean
from ...configs.load import LoadedZoo
from ...configs.model import ModelConfig
from ...configs.nodes import FieldPath
from ...configs.places import HOST
from ...configs.recipe import Recipe
from ...configs.sources import (
    SHIPPED_EVALUATORS,
    BuilderSource,
    HuggingFaceSource,
    LayerFields,
    ProgramSource,
    ResolvedSource,
)
from ...configs.text_samples import METRICS, check_text_options
from ...configs.verification import ERROR_BOUNDS, AccuracyGate
from ...configs.zoo import PublishConfig, ToolchainConfig
from ...errors import ConfigError, InputError, Location, SourceError
from ...tasks.engine.keys.builder import find_builder
from ...tasks.engine.keys.search import ModuleSearch
from ...tasks.engine.keys.source import check_program_file, named_callables
from ...tasks.lowering.model import (
    ErrorAt,
    PlannedModel,
    PlannedRecipe,
    check_callable,
    check_files,
    errors_at,
    plan_recipe,
)
from ...tasks.sources.find import find_source, methods_of
from ...tasks.verify.places import PlannedPlace, plan_place
from ..releases.publish import Publication
from .request import ExportRequest, absolute_url


def select_models(
    loaded: LoadedZoo, models: str = "*", recipes: str = "*", toolchain: str | None = None, here: str | None = None
) -> tuple[PlannedModel, ...]:
    """The models and recipes whose names match comma-separated globs.

    `toolchain` comes before those of recipes. Recipes of others than `here` (None: the zoo's) are named in `elsewhere`.
    Raises InputError with all problems: nothing matches, or a target, its options, a builder or a file cannot be used.
    """
    zoo = loaded.zoo
    chosen = {name: config for name, config in zoo.models.items() if _matches(name, models)}
    if not chosen:
        raise InputError(f"no model matches {models!r}; the zoo's models: {', '.join(zoo.models) or 'none'}")
    problems: list[InputError] = []
    planned = []
    finder, place = ModuleSearch(zoo.python_path), cache(partial(_plan_place, loaded))
    for name, config in chosen.items():
        with _collected(problems):
            model = _plan_model(
                loaded, name, config, recipes, finder, place, partial(_toolchain, loaded, toolchain, here)
            )
            planned += [model] if model.recipes or model.not_applicable or model.elsewhere else []
    _raise(problems)
    if not planned:
        known = ", ".join(zoo.recipes)
        raise InputError(f"no recipe of the chosen models matches {recipes!r}; the zoo's recipes: {known}")
    if not any(model.recipes or model.elsewhere for model in planned):
        raise _not_applicable(loaded, planned)
    return tuple(planned)


def publication_of(loaded: LoadedZoo, request: ExportRequest) -> Publication | None:
    """How a run publishes; a partial run only does so with ``--publish``. Raises InputError if it cannot publish."""
    config, url = loaded.zoo.publish, request.publish and absolute_url(request.publish)
    if url:
        config = config.model_copy(update={"url": url}) if config else PublishConfig(url=url)
    if config is None:
        return None
    parts = [name for name in ("models", "recipes") if getattr(request, name) != "*"]
    parts += [name for name in ("until", "debug") if getattr(request, name)]
    if parts and not url:
        reason = f"it was not a whole run ({', '.join(parts)}); use --publish URL to do so"
        return Publication(config.url, skipped=reason)
    try:
        return Publication.of(config)
    except InputError as error:
        raise loaded.locations.error(str(error), ("publish",)) from error


@contextmanager
def _collected(problems: list[InputError]) -> Iterator[None]:
    """Ends at an InputError, and adds it to the problems."""
    try:
        yield
    except InputError as error:
        problems.append(error)


def _raise(problems: Sequence[InputError]) -> None:
    """Raises one error with all problems, if there are any."""
    if len(problems) == 1:
        raise problems[0]
    if problems:
        raise InputError("\n".join(dict.fromkeys(str(problem) for problem in problems)))


def _not_applicable(loaded: LoadedZoo, planned: Sequence[PlannedModel]) -> InputError:
    problems = [
        loaded.locations.error(f"{recipe!r} does not apply to {model.name!r}: {reason}", ("recipes", recipe, "not_for"))
        for model in planned
        for recipe, reason in model.not_applicable.items()
    ]
    return InputError("\n".join(map(str, problems)))


def _matches(name: str, globs: str) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs.split(","))


def _plan_model(
    loaded: LoadedZoo,
    name: str,
    config: ModelConfig,
    recipes: str,
    finder: ModuleSearch,
    place: Callable[[str], PlannedPlace],
    toolchain: Callable[[str], str | None],
) -> PlannedModel:
    problems: list[InputError] = []
    with _collected(problems):
        source = _check_source(loaded, name, config, finder)
    with _collected(problems), errors_at(loaded.locations.error, ("models", name, "metadata", "labels_file")):
        config = config.model_copy(update={"metadata": config.metadata and config.metadata.with_labels()})
    names = loaded.zoo.recipes_of(name)
    with _collected(problems):
        _check_layers(loaded, name, names)
    reasons = {recipe: loaded.zoo.recipes[recipe].reason_against(name) for recipe in names if _matches(recipe, recipes)}
    planned, elsewhere = [], {}
    for recipe in [recipe for recipe, reason in reasons.items() if reason is None]:
        with _collected(problems):
            if other := toolchain(recipe):
                elsewhere[recipe] = other
            else:
                planned.append(_plan_recipe(loaded, name, recipe, finder, place))
    _raise(problems)
    model = PlannedModel.of_config(
        name,
        config,
        tuple(planned),
        max(loaded.zoo.verify_bounds(name, recipe).drawn_inputs for recipe in names),
        source=source,
        not_applicable={recipe: reason for recipe, reason in reasons.items() if reason is not None},
        python_path=loaded.zoo.python_path,
        folder=loaded.files[0].parent,
    )
    if methods := methods_of(source):
        _check_methods(loaded, model, methods)
    return replace(model, elsewhere=elsewhere)


def _toolchain(loaded: LoadedZoo, asked: str | None, here: str | None, recipe: str) -> str | None:
    """The toolchain that lowers with a recipe, None if it is `here`; raises InputError for one that cannot be used."""
    wanted = asked or loaded.zoo.recipes[recipe].toolchain
    if wanted is None or wanted == here:
        return None
    try:
        find_toolchain(loaded, wanted)
    except InputError as error:
        raise error if asked else loaded.locations.error(str(error), ("recipes", recipe, "toolchain")) from error
    return wanted


def find_toolchain(loaded: LoadedZoo, name: str) -> ToolchainConfig:
    """A toolchain of the zoo by name, or of a Python by path; InputError if there is none, or no program there."""
    configs = loaded.zoo.toolchains
    if name not in configs and os.sep not in name:
        raise InputError(
            f"the zoo has no toolchain {name!r}, and no Python has that path"
            f"{did_you_mean(name, tuple(configs)) or f'; write `toolchains: {{{name}: {{python: PATH}}}}` in it'}"
        )
    config = configs.get(name) or ToolchainConfig(python=Path(name).expanduser().absolute())
    python = config.python
    if python and (not os.access(python, os.X_OK) or python.is_dir()):
        why = "cannot be run" if python.exists() else "does not exist"
        raise InputError(f"{python} {why}: it should be the Python of an environment with pteforge")
    return config


def _check_methods(loaded: LoadedZoo, model: PlannedModel, methods: Mapping[str, bool]) -> None:
    """Raises InputError for methods that a model by name lacks, and for options that its methods do not take."""
    error_at, where = loaded.locations.error, ("models", model.name)
    for method in [bucket.method for bucket in model.buckets if methods.get(bucket.method)]:
        problem = "the method keeps a cache, and each bucket would have its own; leave the buckets out"
        raise error_at(problem, (*where, "methods", method, "buckets"))
    with errors_at(error_at, where):
        model.check_methods(methods)
    for recipe in model.recipes:
        with errors_at(error_at, ("recipes", recipe.name)):
            recipe.check_methods(model.methods_in_file(methods))
        of_model = loaded.zoo.models[model.name].accuracy
        with errors_at(error_at, (*(where if of_model else ("recipes", recipe.name)), "accuracy")):
            _check_evaluator(recipe.gate, methods)
        if "prefill" in methods and not recipe.recipe.compile.share_mutable_buffers:
            problem = (
                f"its methods share a cache, and those of recipe {recipe.name!r} do not: choose one with "
                "`compile: {share_mutable_buffers: true}`, which makes a plain file"
            )
            raise error_at(problem, (*where, "source", "prefill"))


def _check_evaluator(gate: AccuracyGate | None, methods: Mapping[str, bool]) -> None:
    """Raises SourceError if one of pteforge's evaluators needs a method or text generation that the model lacks."""
    if gate is None or not gate.evaluator.builder.startswith(SHIPPED_EVALUATORS):
        return
    name, method = gate.evaluator.builder.rpartition(":")[2], str(gate.evaluator.kwargs.get("method", "forward"))
    generates = any(methods.values()) if name in METRICS else methods.get(method)
    if not generates and (name in {*METRICS, "neg_perplexity"} or method not in methods):
        needed = "a model that generates text" if name in METRICS else f"a method {method!r} that it can run"
        raise SourceError(f"{name} needs {needed}; this model has {', '.join(methods)}")


def _check_layers(loaded: LoadedZoo, name: str, recipes: Sequence[str]) -> None:
    """Raises InputError if a model says how its recipes quantize layers, and none of them does."""
    fields = getattr(loaded.zoo.models[name].source, "quantize_layers", None)
    named = (loaded.zoo.recipes[recipe] for recipe in recipes)
    if fields and not any(recipe.quantize_layers and not recipe.source_transforms for recipe in named):
        problem = (
            f"no recipe of the model goes by `quantize_layers` ({', '.join(recipes)}); add one that does, such as "
            "xnnpack-llm-8da4w"
        )
        raise loaded.locations.error(problem, ("models", name, "source", "quantize_layers"))


def _check_source(loaded: LoadedZoo, name: str, config: ModelConfig, finder: ModuleSearch) -> ResolvedSource:
    """The model's source; a builder in place of a name."""
    source: ResolvedSource
    error_at, where = loaded.locations.error, ("models", name, "source")
    match config.source:
        case ProgramSource(program=program):
            with errors_at(error_at, where):
                check_program_file(program)
            source = config.source
        case BuilderSource(builder=builder, kwargs=arguments, files=files):
            check_callable(builder, arguments, finder, error_at, where)
            check_files(files, error_at, (*where, "files"))
            source = config.source
        case named:
            with errors_at(error_at, where):
                source = find_source(named, loaded.files[0].parent)
    for method, calibration in (config.calibration or {}).items():
        of_method = "models", name, "calibration", method
        check_callable(calibration.dataset, calibration.kwargs, finder, error_at, of_method, "dataset")
        _check_read(loaded, calibration.source, finder, error_at, of_method)
    return source


def _check_read(
    loaded: LoadedZoo, function: BuilderSource, finder: ModuleSearch, error_at: ErrorAt, where: FieldPath
) -> None:
    """Raises InputError where a function reads a file that does not exist, or a shipped one has a reader that does."""
    check_files((loaded.files[0].parent / file for file in function.files), error_at, (*where, "files"))
    for argument, _ in named_callables(function.kwargs) if function.builder.startswith(SHIPPED_EVALUATORS) else ():
        with errors_at(error_at, (*where, "kwargs", argument)):
            find_builder(str(function.kwargs[argument]), finder)


def _plan_recipe(
    loaded: LoadedZoo, model: str, name: str, finder: ModuleSearch, place: Callable[[str], PlannedPlace]
) -> PlannedRecipe:
    recipe, source = loaded.zoo.recipes[name], loaded.zoo.models[model].source
    if isinstance(source, HuggingFaceSource):
        with errors_at(loaded.locations.error, ("models", model, "source", "quantize_layers")):
            recipe = recipe.with_layers(source.quantize_layers or LayerFields())
        with errors_at(loaded.locations.error, ("models", model, "source", "dtype")):
            _check_dtype(source, name, recipe)

    def error_at(problem: str, where: FieldPath) -> ConfigError:
        return loaded.locations.error(problem, ("recipes", name, *where))

    if recipe.transforms and isinstance(source, ProgramSource):
        problem = f"recipe {name!r} has source_transforms; they change modules, and a .pt2 file has none"
        raise loaded.locations.error(problem, ("models", model, "source"))
    if recipe.rounds_by_samples and not loaded.zoo.models[model].calibration:
        problem = f"recipe {name!r} rounds weights by samples of the model: give it `calibration`"
        raise loaded.locations.error(problem, ("models", model))
    bounds, gate = loaded.zoo.verify_bounds(model, name), _gate_of(loaded, model, name, finder)
    owners = (("models", model), ("recipes", name))
    bounded = any(
        loaded.locations.is_the_users((*where, "verify", bound)) for where in owners for bound in ERROR_BOUNDS
    )
    planned = plan_recipe(name, recipe, bounds, finder, error_at, gate, bounded=bounded)
    places = tuple(place(where) for where in recipe.verify.on if where != HOST)
    device = loaded.zoo.models[model].limits.device
    may_measure = any(runtime.params.command or runtime.unreachable for runtime in places)
    for limit in device.written if device and not may_measure else ():
        if limit != "planned":
            problem = (
                f"no place of recipe {name!r} measures it: run `pteforge runtime install host` once, and verify on "
                "`{command: nfat_run}`, or export with --place command:nfat_run"
            )
            raise loaded.locations.error(problem, ("models", model, "limits", "device", limit))
    return replace(planned, places=places)


def _check_dtype(source: HuggingFaceSource, name: str, recipe: Recipe) -> None:
    """Raises SourceError for a dtype in which XNNPACK cannot quantize as the recipe says (executorch 1.5.1)."""
    lowers = any("xnnpack" in spec.target.split(TARGET_SEPARATOR) for spec in recipe.specializations)
    quantizes = recipe.quantize and any(chosen.quantizer == "xnnpack" for chosen in recipe.quantize.chosen)
    if source.dtype in {"float16", "bfloat16"} and quantizes:
        raise SourceError(f"XNNPACK's quantizer takes float32 only, and recipe {name!r} has it; leave `dtype` out")
    if source.dtype == "bfloat16" and recipe.transforms and lowers:
        raise SourceError(
            f"XNNPACK takes no quantized layers in bfloat16, and recipe {name!r} has some; choose float16 or float32"
        )


def _plan_place(loaded: LoadedZoo, name: str) -> PlannedPlace:
    """Plans a place of the zoo or of the command line; raises InputError if it cannot exist."""
    where = "places", name
    try:
        return plan_place(name, loaded.zoo.places[name], loaded.files[0].parent)
    except SourceError as error:
        if loaded.locations.written_at(where):
            raise loaded.locations.error(str(error), where) from error
        raise ConfigError(str(error), location=Location("--place"), field=name) from error


def _gate_of(loaded: LoadedZoo, model: str, recipe: str, finder: ModuleSearch) -> AccuracyGate | None:
    """The accuracy gate of a file, if any; raises InputError with the location in the zoo file if it is unusable."""
    overrides = loaded.zoo.models[model].accuracy
    overridden = overrides.model_fields_set if overrides else set()
    of_model = "models", model, "accuracy"
    of_recipe = ("recipes", recipe, "accuracy") if loaded.zoo.recipes[recipe].accuracy else of_model
    with errors_at(loaded.locations.error, of_recipe):
        gate = loaded.zoo.accuracy_gate(model, recipe)
    if gate is None:
        return None

    def error_at(problem: str, field: FieldPath) -> ConfigError:
        where = of_model if overridden & {"evaluator", field[0]} else of_recipe
        return loaded.locations.error(problem, (*where, *field))

    evaluator = gate.evaluator
    check_callable(evaluator.builder, evaluator.kwargs, finder, error_at, (), "evaluator", given=1)
    _check_read(loaded, evaluator, finder, error_at, ())
    metric = evaluator.builder.rpartition(":")[2]
    if evaluator.builder.startswith(SHIPPED_EVALUATORS) and metric in METRICS:
        with errors_at(error_at, ("kwargs",)):
            files = check_text_options(evaluator.kwargs, metric, loaded.files[0].parent)
        evaluator = evaluator.model_copy(update={"files": (*evaluator.files, *files)})
        gate = gate.model_copy(update={"evaluator": evaluator})
    return gate
