"""`pteforge.export`: lowers one model in this process."""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch.export import ExportedProgram

from ..artifacts.runs import RunRecord
from ..artifacts.store import Store, open_store
from ..configs.base import NAME_PATTERN, describe_errors
from ..configs.metadata import Metadata
from ..errors import AccuracyMissed, InputError
from ..tasks.engine.runner import CutShort, run_without_loop
from ..tasks.lowering.graph import check_stage, lower_model
from ..tasks.lowering.model import PlannedModel, for_debugging
from ..tasks.lowering.runs import History, ModelRun
from ..tasks.stages.gate import Gate
from ..tasks.stages.report import Report
from .live_runner import LiveRunner, one_at_a_time
from .recipes import RecipeLike, find_recipe
from .result import Exported
from .source import Inputs, Keywords, LiveSource, Model, Samples, live_source, read_calibration


def export(  # noqa: PLR0913 - one parameter per property of a model
    model: Model | Mapping[str, torch.nn.Module | ExportedProgram],
    example_inputs: Inputs | Mapping[str, Inputs] | None = None,
    *,
    recipe: RecipeLike,
    example_kwarg_inputs: Keywords | Mapping[str, Keywords] | None = None,
    calibration: Samples | Mapping[str, Samples] | None = None,
    dynamic_shapes: Any = None,
    constant_methods: Mapping[str, Any] | None = None,
    metadata: Metadata | Mapping[str, Any] | None = None,
    strict: bool | None = None,
    until: str | None = None,
    debug: bool = False,
    name: str = "model",
    store: str | Path | None = None,
) -> Exported:
    """Lowers a model and verifies the file, in this process: no workers, no Prefect.

    Stages, keys and store are those of `pteforge export`, so each finds what the other made. The model, its buffers and
    its modes are not changed.

    Args:
        model: an ``nn.Module``, an ``ExportedProgram`` or the path of a `.pt2` file, for the method ``forward``; a
            mapping of method names to modules or programs; or a `pteforge.ModelDefinition`.
        example_inputs: a tuple of positional arguments, a list of such tuples, or a mapping of method names to either.
            The first one is traced; all are used to verify, and quantizers observe them.
        example_kwarg_inputs: a mapping of keyword arguments, a list of such mappings (one for each example), or a
            mapping of method names to either. The file takes them by position, after the positional ones.
        recipe: a shipped recipe's name, a YAML file's path, ``package.module:name`` of a function that returns one,
            a `pteforge.configs.Recipe`, or an ExportRecipe or recipe type of `executorch.export`.
        calibration: what quantizers observe in place of the examples: a tuple of all arguments (keywords' values last),
            an iterable of such tuples, ``package.module:name`` of a dataset as a zoo has it, or a
            `pteforge.configs.Dataset`; or a mapping of method names to either. An iterable is consumed once, one sample
            in memory at a time.
        dynamic_shapes: as ``torch.export.export`` takes it, or a mapping of method names to that.
        constant_methods: name to a constant that the file returns without computing.
        metadata: what the file says about the model: a `pteforge.configs.Metadata`, or a mapping of its fields, as a
            zoo has them. Replaces that of a ModelDefinition, field by field.
        strict: trace with torch.export's strict mode; the default is an ExportRecipe's own setting, or False.
        until: name of the last stage to run, such as ``edge``; by default all run.
        debug: force the recipe's debug mode: stack traces in the file, an ETRecord, maps of debug handles.
        name: the model's name in the store's records and in the provenance.
        store: folder or URL of the artifact store; ``$PTEFORGE_STORE``, or else a folder in the user's cache folder.

    Raises:
        InputError: something given cannot be used.
        StageError: a required stage failed; its cause is what the stage raised.
        AccuracyMissed: the file scores below the recipe's bounds; ``rejected`` is the result, to inspect.
    """
    if not re.fullmatch(NAME_PATTERN, name):
        raise InputError(f"{name!r} cannot be a model's name; use letters, digits, '.', '_' and '-'")
    described = _read_metadata(metadata)
    found = find_recipe(recipe)
    if reason := found.planned.recipe.reason_against(name):
        raise InputError(f"the recipe {found.planned.name!r} does not apply to {name!r}: {reason}")
    source = live_source(model, example_inputs, dynamic_shapes, constant_methods, example_kwarg_inputs)
    planned = replace(found.planned, until=check_stage(until)) if until else found.planned
    planned = for_debugging(planned) if debug else planned
    methods = tuple(source.definition.methods)
    if calibration is None and found.calibration and planned.quantizers:
        calibration = {method: found.calibration() for method in methods}
    observed = read_calibration(calibration, methods, planned)
    plan = PlannedModel(
        name=name,
        recipes=(planned,),
        random_inputs=planned.bounds.drawn_inputs,
        source=None,
        calibration={**observed.datasets, **dict.fromkeys(observed.samples)},
        strict=found.strict if strict is None else strict,
        metadata=described,
    )
    with one_at_a_time:
        run = ModelRun(LiveRunner(_open_store(store), source, observed.samples), plan)
        began, started = datetime.now(UTC), time.monotonic()
        try:
            outcome = run_without_loop(lower_model(run))[planned.name]
        except Exception as error:
            outcome = error
            if not run.recipes:
                raise
        return _result(run, source, outcome, began, time.monotonic() - started)


def _read_metadata(given: Metadata | Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What was written, as JSON values, with the labels of its file; raises InputError."""
    if given is None:
        return None
    try:
        metadata = given if isinstance(given, Metadata) else Metadata.model_validate(dict(given))
        return metadata.with_labels().written()
    except ValidationError as error:
        raise InputError(f"metadata: {describe_errors(error)}") from error
    except ValueError as error:
        raise InputError(f"metadata: {error}") from error


def _result(
    run: ModelRun, source: LiveSource, outcome: Report.Outputs | Exception, began: datetime, seconds: float
) -> Exported:
    """Records the run of the model's only recipe in the store; returns or raises what came of it."""
    history = History(run)
    history.remember()
    stages = history.outcomes()
    record = RunRecord(
        uuid.uuid4().hex, "pteforge.export", began.isoformat(timespec="milliseconds"), seconds, {run.model.name: stages}
    )
    run.store.runs.write(record)
    (recipe_run,) = run.recipes.values()
    missed = Gate.name in [step.stage for step, error in recipe_run.failed.items() if error is outcome]
    if isinstance(outcome, Exception) and not missed and not isinstance(outcome, CutShort):
        raise outcome
    result = Exported.of(recipe_run, source, stages, rejected=missed)
    if missed:
        assert isinstance(outcome, Exception)  # noqa: S101 - the gate raised it
        raise AccuracyMissed(str(outcome.__cause__ or outcome), rejected=result) from outcome
    return result


def _open_store(store: str | Path | None) -> Store:
    url = os.environ.get("PTEFORGE_STORE") if store is None else str(store)
    return open_store(url or None)
