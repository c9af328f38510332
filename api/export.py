"""`pteforge.export`: lowers one model in this process."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from ..artifacts.store import Store, open_store
from ..configs.model import ModelConfig
from ..configs.names import NAME_PATTERN
from ..configs.sources import BuilderSource
from ..errors import AccuracyMissed, InputError
from ..tasks.catalog import StageName
from ..tasks.model import PlannedModel
from .calibration import Samples, asked_calibration
from .live_model import live_model
from .recipes import RecipeLike, asked_recipe
from .result import Exported
from .run import one_at_a_time, run_model
from .source import Inputs, Model, live_source


def export(  # noqa: PLR0913 - what there is to say of one model
    model: Model | Mapping[str, torch.nn.Module | ExportedProgram],
    example_inputs: Inputs | Mapping[str, Inputs] | None = None,
    *,
    recipe: RecipeLike,
    calibration: Samples | Mapping[str, Samples] | None = None,
    dynamic_shapes: Any = None,
    constant_methods: Mapping[str, Any] | None = None,
    strict: bool | None = None,
    until: str | None = None,
    debug: bool = False,
    name: str = "model",
    store: str | Path | None = None,
) -> Exported:
    """Lowers a model and verifies the file, in this process: no workers, no Prefect.

    The stages are those of `pteforge export`, and so are their keys and the store: either finds what the other made.
    The model, its buffers and its modes are left as they are.

    Args:
        model: an ``nn.Module``, an ``ExportedProgram`` or the path of a `.pt2` file, for the method ``forward``; a
            mapping of method names to modules or programs; or a `pteforge.ModelDefinition`.
        example_inputs: a tuple of positional arguments, a list of such tuples, or a mapping of method names to either.
            The first one traces; all are verified, and observed by quantizers.
        recipe: name of a shipped recipe, path of a YAML file with one, ``package.module:name`` of a function that gives
            one, a `pteforge.configs.Recipe`, or an ExportRecipe or recipe type of `executorch.export`.
        calibration: what quantizers observe in place of the examples: a tuple of positional arguments, an iterable of
            such tuples, ``package.module:name`` of a dataset as a zoo has it, or a `pteforge.configs.Dataset`; or a
            mapping of method names to either. An iterable is gone through once, and its samples are never all in
            memory.
        dynamic_shapes: as ``torch.export.export`` takes it, or a mapping of method names to that.
        constant_methods: name to a constant that the file returns without computing.
        strict: trace with torch.export's strict mode; where left out, as an ExportRecipe says, and otherwise not.
        until: name of the last stage to go through, such as ``edge``; the file where left out.
        debug: the recipe in debug mode, whatever it says: stack traces in the file, an ETRecord, maps of debug handles.
        name: what the model is called in the store's records and in the provenance.
        store: folder or URL of the artifact store; ``$PTEFORGE_STORE``, or else a folder in the user's cache folder.

    Raises:
        InputError: something given cannot be used.
        StageError: a stage failed that the recipe cannot do without; its cause is what the stage raised.
        AccuracyMissed: the file scores less than the recipe asks for; ``rejected`` is the result, to look into.
    """
    if not re.fullmatch(NAME_PATTERN, name):
        raise InputError(f"{name!r} cannot be a model's name; use letters, digits, '.', '_' and '-'")
    asked = asked_recipe(recipe)
    if reason := asked.planned.recipe.reason_against(name):
        raise InputError(f"the recipe {asked.planned.name!r} does not apply to {name!r}: {reason}")
    source = live_source(model, example_inputs, dynamic_shapes, constant_methods)
    planned = replace(asked.planned, until=StageName.named(until)) if until else asked.planned
    planned = planned.for_debugging() if debug else planned
    methods = tuple(source.definition.methods)
    if calibration is None and asked.calibration and planned.quantizers:
        calibration = {method: asked.calibration() for method in methods}
    observed = asked_calibration(calibration, methods, planned)
    config = ModelConfig(
        source=BuilderSource(builder="pteforge:export"),
        strict=asked.strict if strict is None else strict,
        calibration=dict(observed.datasets),
    )
    plain = PlannedModel(name, config, (planned,), planned.bounds.drawn_inputs, python_path=(), folder=Path.cwd())
    with one_at_a_time:
        opened = _open_store(store)
        live = live_model(plain, source, observed.samples, opened.local)
        run = run_model(live, opened)
        result = Exported.of(live, run, opened)
    if run.missed:
        raise AccuracyMissed(str(run.missed.__cause__ or run.missed), rejected=result) from run.missed
    return result


def _open_store(store: str | Path | None) -> Store:
    url = os.environ.get("PTEFORGE_STORE") if store is None else str(store)
    return open_store(url or None)
