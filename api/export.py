"""`pteforge.export`: lowers one model in this process, in the caller's memory."""

from __future__ import annotations

import os
import re
import time
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch.export import ExportedProgram

from .. import errors
from ..artifacts.files import remove
from ..artifacts.ref import ArtifactRef
from ..artifacts.runs import RunRecord
from ..artifacts.store import Store, open_store
from ..configs.base import NAME_PATTERN, describe_errors
from ..configs.metadata import Metadata
from ..configs.model import MethodConfig, ModelDefinition, ModelOptions
from ..configs.places import PlaceConfig
from ..tasks.engine.executor import EngineRunner, Executor
from ..tasks.engine.keys.loaded import loaded_sources
from ..tasks.engine.runner import CutShort, Done, StageCall, StageId
from ..tasks.engine.stage import Params, from_roles, to_roles
from ..tasks.engine.workers import InProcess, as_in_a_process
from ..tasks.explain.stages.diagnose import Diagnose, diagnose_built
from ..tasks.export.stages.export import Export, export_built
from ..tasks.file.stages.report import Report
from ..tasks.lowering.graph import check_stage, lower_model
from ..tasks.lowering.model import PlannedModel
from ..tasks.lowering.runs import History, ModelRun, run_without_loop
from ..tasks.programs.program import load_program
from ..tasks.programs.values import count_values
from ..tasks.quantize.samples import checked_samples, flat_samples, save_samples
from ..tasks.quantize.stages.calibration import Calibration
from ..tasks.quantize.stages.source_transform import SourceTransform, transform_built
from ..tasks.verify.places import PlannedPlace, plan_place
from ..tasks.verify.stages.baseline import Baseline, score_built
from ..tasks.verify.stages.gate import Gate
from ..tasks.verify.stages.verify import Verify
from .recipes import RecipeLike, find_recipe
from .result import Exported, alone
from .source import Inputs, Keywords, LiveSource, Model, Samples, live_source, method_inputs, read_calibration

loaded_sources()  # notes from now on which sources the caller's modules are loaded from


@alone()
def export(  # noqa: PLR0913 - one parameter per property of a model
    model: Model | Mapping[str, torch.nn.Module | ExportedProgram],
    example_inputs: Inputs | Mapping[str, Inputs] | None = None,
    *,
    recipe: RecipeLike,
    example_kwarg_inputs: Keywords | Mapping[str, Keywords] | None = None,
    calibration: Samples | Mapping[str, Samples] | None = None,
    dynamic_shapes: Any = None,
    buckets: Mapping[str, Any] | None = None,
    constant_methods: Mapping[str, Any] | None = None,
    metadata: Metadata | Mapping[str, Any] | None = None,
    strict: bool | None = None,
    places: Iterable[str] = (),
    until: str | None = None,
    debug: bool = False,
    name: str = "model",
    store: str | Path | None = None,
) -> Exported:
    """Lowers a model and verifies the file, in this process: no workers, no Prefect.

    Stages, keys and store are those of `pteforge export`: each finds what the other made. The model is not changed.

    Args:
        model: an ``nn.Module``, an ``ExportedProgram`` or the path of a `.pt2` file, for the method ``forward``; a
            mapping of method names to modules or programs; or a `pteforge.ModelDefinition`.
        example_inputs: a tuple of positional arguments, a list of such tuples, or a mapping of method names to either.
            The first one is traced; all are used to verify, and quantizers observe them.
        example_kwarg_inputs: a mapping of keyword arguments, a list of such mappings (one for each example), or a
            mapping of method names to either. The file takes them by position, after the positional ones.
        recipe: a shipped recipe's name, a YAML file's path, a mapping with the content of one, ``package.module:name``
            of a function that returns a recipe, a `pteforge.configs.Recipe`, or an ExportRecipe or recipe type of
            `executorch.export`.
        calibration: what quantizers observe in place of the examples: a tuple of all arguments (keywords' values last),
            an iterable of such tuples, ``package.module:name`` of a dataset as a zoo has it, or a
            `pteforge.configs.Dataset`; or a mapping of method names to either. An iterable is consumed once, one sample
            in memory at a time.
        dynamic_shapes: as ``torch.export.export`` takes it, or a mapping of method names to that.
        buckets: name of a dynamic dimension to ascending sizes, or a mapping of method names to that: the method
            becomes one for each size, in which the dimension is static.
        constant_methods: name to a constant that the file returns without computing.
        metadata: what the file says about the model: a `pteforge.configs.Metadata`, or a mapping of its fields, as a
            zoo has them. Replaces that of a ModelDefinition, field by field.
        strict: trace with torch.export's strict mode; the default is an ExportRecipe's own setting, or False.
        places: runtimes to verify on besides this process's: ``qemu:cortex-a53``, or ``command:COMMAND`` for a command
            that does what ``nfat_run`` does.
        until: name of the last stage to run, such as ``edge``; by default all run.
        debug: force the recipe's debug mode: stack traces in the file, an ETRecord, maps of debug handles.
        name: the model's name in the store's records and in the provenance.
        store: folder or URL of the artifact store; ``$PTEFORGE_STORE``, or else a folder in the user's cache folder.

    Warns:
        FileWarning: the file is verified, and there is something to know: `Exported.warnings`.

    Raises:
        InputError: something given cannot be used.
        StageError: a required stage failed; its cause is what the stage raised. If it was the verification of the file,
            ``rejected`` is the result, to inspect.
        AccuracyMissed: the file scores below the recipe's bounds; ``rejected`` as above.
    """
    if not re.fullmatch(NAME_PATTERN, name):
        raise errors.InputError(f"{name!r} cannot be a model's name; use letters, digits, '.', '_' and '-'")
    described = _read_metadata(metadata)
    found = find_recipe(recipe)
    if reason := found.planned.recipe.reason_against(name):
        raise errors.InputError(f"the recipe {found.planned.name!r} does not apply to {name!r}: {reason}")
    source = live_source(model, example_inputs, dynamic_shapes, constant_methods, example_kwarg_inputs)
    planned = replace(found.planned, until=check_stage(until)) if until else found.planned
    planned = planned.for_debugging() if debug else planned
    planned = replace(planned, places=tuple(_plan_places(places)))
    options = ModelOptions(
        methods=dict(_read_buckets(source, buckets)),
        strict=found.strict if strict is None else strict,
        metadata=described,
    )
    drawn = planned.bounds.drawn_inputs
    plan = PlannedModel.of_config(name, options, (planned,), drawn, source=None, folder=Path.cwd())
    (planned,) = plan.recipes
    methods = tuple(plan.methods_in_file(source.definition.methods))
    if calibration is None and found.calibration and planned.quantizers:
        calibration = {method: found.calibration() for method in methods}
    observed = read_calibration(calibration, methods, planned)
    if calibration is None and planned.recipe.rounds_by_samples:
        raise errors.InputError(f"the recipe {planned.name!r} rounds weights by samples: give `calibration`")
    plan = replace(plan, calibration={**observed.datasets, **dict.fromkeys(observed.samples)})
    url = os.environ.get("PTEFORGE_STORE") if store is None else str(store)
    run = ModelRun(LiveRunner(open_store(url or None), source, observed.samples), plan)
    began, started = datetime.now(UTC), time.monotonic()
    try:
        outcome = run_without_loop(lower_model(run))[planned.name]
    except Exception as error:
        outcome = error
        if not run.recipes:
            raise
    exported = _result(run, source, outcome, began, time.monotonic() - started)
    if not isinstance(outcome, CutShort):
        for text in exported.warnings:
            warnings.warn(f"{name}/{planned.name}: {text}", errors.FileWarning, stacklevel=3)  # beyond `alone`
    return exported


def _read_buckets(source: LiveSource, given: Mapping[str, Any] | None) -> Iterator[tuple[str, MethodConfig]]:
    """Raises InputError for buckets that no zoo may have, and SourceError for those of a program."""
    for method, sizes in method_inputs(given, tuple(source.definition.methods), "buckets").items():
        if method in source.programs:
            raise errors.SourceError(f"method {method!r} is exported already: no size can become static; give a module")
        try:
            yield method, MethodConfig(buckets=sizes)
        except ValidationError as error:
            raise errors.InputError(f"buckets of method {method!r}: {describe_errors(error)}") from error


def _plan_places(texts: Iterable[str]) -> Iterator[PlannedPlace]:
    """Raises InputError for places that are unknown or have libraries: one that crashes would end this process."""
    for text in texts:
        name, config = PlaceConfig.parse(text)
        if config.library:
            raise errors.InputError(f"{text}: libraries are loaded by `pteforge export`, in processes that may crash")
        yield plan_place(name, config, Path.cwd())


def _read_metadata(given: Metadata | Mapping[str, Any] | None) -> Metadata | None:
    """Metadata with the labels of its file; raises InputError."""
    if given is None:
        return None
    try:
        metadata = given if isinstance(given, Metadata) else Metadata.model_validate(dict(given))
        return metadata.with_labels()
    except ValidationError as error:
        raise errors.InputError(f"metadata: {describe_errors(error)}") from error
    except ValueError as error:
        raise errors.InputError(f"metadata: {error}") from error


def _result(
    run: ModelRun, source: LiveSource, outcome: Report.Outputs | Exception, began: datetime, seconds: float
) -> Exported:
    """Records the run of the model's only recipe in the store; returns the result, or raises the failure."""
    history = History(run)
    history.remember()
    stages = history.outcomes()
    record = RunRecord(
        uuid.uuid4().hex, "pteforge.export", began.isoformat(timespec="milliseconds"), seconds, {run.model.name: stages}
    )
    run.store.runs.write(record)
    (recipe_run,) = run.recipes.values()
    failed = {step.stage for step, error in recipe_run.failed.items() if error is outcome}
    if isinstance(outcome, CutShort) or not isinstance(outcome, Exception):
        return Exported.of(recipe_run, source, stages, rejected=False)
    error, cause = outcome, outcome.__cause__
    if Gate.name in failed:
        error, cause = errors.AccuracyMissed(str(cause or outcome)), outcome
    if isinstance(error, errors.AccuracyMissed | errors.VerificationFailed) or Verify.name in failed:
        error.rejected = Exported.of(recipe_run, source, stages, rejected=True)  # type: ignore[attr-defined]  # ours
        error.add_note("`error.rejected` is the result, to inspect; its `bisect()` finds where quality is lost")
    raise error from cause


Outputs = Mapping[str, ArtifactRef]

_EACH_TIME = "nothing changed; a model in memory is exported each time"


class LiveRunner(EngineRunner):
    """Runs calls that need the model with the model in memory; finds or runs all others as usual.

    A stage that needs the model itself has no source code for its key. It runs each time, and its key consists of the
    identities of its outputs. Later keys contain only those, so a model in a zoo and in memory is lowered once.

    Stages run one after another in the calling thread, where Ctrl-C ends them at once. Needs no event loop.
    """

    def __init__(self, store: Store, source: LiveSource, samples: Mapping[str, Iterable[Any]]) -> None:
        """A runner for one model; `samples` is calibration data by method: tuples of inputs, or single inputs."""
        super().__init__(Executor(store, InProcess()))
        self._source = source
        self._samples = samples
        self._exports: dict[str, Outputs] = {}
        self._observed: dict[str, ArtifactRef] = {}  # method name to the program that quantizers observe
        self._adopted: dict[StageId, Done] = {}  # what the model in memory was needed for

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles without the model, since everything that needed it has been made."""
        return _reopened, (self.store.url, self._adopted)

    async def __call__(self, call: StageCall) -> Done:  # noqa: PLR0911 - one for each stage that needs the model
        """Runs the stage here; raises SourceError for inputs that do not fit the model, otherwise StageFailed."""
        if call.id in self._adopted:
            return self._adopted[call.id]
        match call.stage.name:
            case Export.name:
                return self._export(call)
            case Diagnose.name:
                return self._trace(call, diagnose_built)[0]
            case SourceTransform.name:
                return self._transform(call)
            case Calibration.name if call.id.method in self._samples:
                return self._take_samples(call)
            case Baseline.name:
                return self._score(call)
        return self.engine.run(call)

    def _export(self, call: StageCall) -> Done:
        done, method = self._trace(call, export_built)
        self._exports[method] = done.roles
        self._observed[method] = done.roles["program"]
        return done

    def _trace(self, call: StageCall, body: Callable[..., Any]) -> tuple[Done, str]:
        """Runs a body that traces a method, the first one if the call names none; returns its name in the file, too."""
        method = call.params.method or next(iter(self._source.definition.methods))
        outputs, seconds = self._build(method, body, call.params.model_copy(update={"method": method}))
        return self._adopt(call, {"live": _identities(outputs)}, outputs, seconds), call.id.method or method

    def _transform(self, call: StageCall) -> Done:
        method, source = call.id.method, {"live": _identities(self._exports[call.id.method])}
        params = call.params.model_copy(update={"source": source})
        unfinished = self.engine.unfinished(call)
        samples = from_roles(SourceTransform.Inputs, call.inputs).samples
        body = partial(transform_built, unfinished=unfinished, samples=samples)
        outputs, seconds = self._build(params.method, body, params)
        self._observed[method] = outputs["program"]
        done = self._adopt(call, source, outputs, seconds)
        remove(unfinished)
        return done

    def _build(self, method: str, body: Callable[..., Any], params: Params) -> tuple[Outputs, float]:
        try:
            return _unwrapped(lambda: to_roles(body(self._source.built(method), params, self.store.local)))
        except errors.StageFailed as error:
            raise errors.StageFailed(f"method {method!r} cannot be exported: {error}") from error.__cause__

    def _take_samples(self, call: StageCall) -> Done:
        method, local = call.id.method, self.store.local
        name = f"calibration of method {method!r}"

        def take() -> Outputs:
            program = load_program(self._observed[method], local)
            samples = checked_samples(program, flat_samples(name, self._samples[method]))
            return {"samples": save_samples(name, samples, local)}

        outputs, seconds = _unwrapped(take)
        ref = outputs["samples"]
        source = {"live": {"samples": ref.identity}}
        params = Calibration.Params(source=source, seed=0, samples=count_values(ref, local))
        done = self.engine.adopt(replace(call, params=params), outputs, seconds, reason=_EACH_TIME)
        return self._adopted.setdefault(call.id, done)

    def _score(self, call: StageCall) -> Done:
        source = {"live": {method: _identities(outputs) for method, outputs in self._exports.items()}}
        params = call.params.model_copy(update={"source": source})
        call = replace(call, params=params)
        if done := self.engine.find(call):
            return done
        model, began = self._source, time.perf_counter()
        with as_in_a_process():
            outputs = to_roles(score_built(model.fresh(), model.programs, params, self.store.local))
        return self.engine.adopt(call, outputs, time.perf_counter() - began)

    def _adopt(self, call: StageCall, source: Mapping[str, Any], outputs: Outputs, seconds: float) -> Done:
        params = call.params.model_copy(update={"source": source})
        done = self.engine.adopt(replace(call, params=params), outputs, seconds, reason=_EACH_TIME)
        return self._adopted.setdefault(call.id, done)


def _reopened(url: str, adopted: dict[StageId, Done]) -> LiveRunner:
    runner = LiveRunner(open_store(url), LiveSource(ModelDefinition({})), {})
    runner._adopted = adopted  # noqa: SLF001 - its own
    return runner


def _identities(outputs: Outputs) -> dict[str, str]:
    return {role: ref.identity for role, ref in sorted(outputs.items())}


def _unwrapped(body: Callable[[], Outputs]) -> tuple[Outputs, float]:
    """Calls a body; raises our errors themselves, since they are about what the caller gave."""
    began = time.perf_counter()
    try:
        with as_in_a_process():
            return body(), time.perf_counter() - began
    except errors.StageFailed as error:
        if isinstance(error.__cause__, errors.PteforgeError):
            raise error.__cause__ from None
        raise
