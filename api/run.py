"""Running a live model's steps in this process."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from ..artifacts.runs import RunRecord, StageOutcome
from ..artifacts.store import Store
from ..errors import StageError
from ..tasks.accuracy_params import BaselineParams
from ..tasks.catalog import StageName
from ..tasks.dataflow import Progress, first_failure, input_refs, run_steps
from ..tasks.executor import Executor, StepResult
from ..tasks.in_process import InProcess
from ..tasks.plan import ModelPlan, plan_model
from ..tasks.run_notes import RunNotes
from ..tasks.source_params import CalibrationParams, ExportParams, SourceTransformParams
from ..tasks.steps import Step
from .live_model import LiveExport, LiveModel, LiveSamples, score_model, transform_method

one_at_a_time = threading.Lock()  # torch and ExecuTorch neither trace nor lower in two threads at once


@dataclass(frozen=True)
class FinishedRun:
    """A run that has come to its end.

    Attributes:
        plan: the steps.
        progress: where they are. What failed was not required.
        stages: what became of each step.
        missed: that the file is below its recipe's accuracy bounds, and nothing else is wrong.
    """

    plan: ModelPlan
    progress: Progress
    stages: tuple[StageOutcome, ...]
    missed: StageError | None = None


def run_model(model: LiveModel, store: Store) -> FinishedRun:
    """Settles every step of a live model's only recipe, and notes the run in the store.

    Raises:
        StageError: a stage failed that the recipe cannot do without; not the accuracy gate.
        StoreError: the store cannot be used.
    """
    began, started = datetime.now(UTC), time.monotonic()
    executor = Executor(store, InProcess())
    notes = RunNotes(model.name, store.ledger)
    plan = plan_model(model, tuple(model.exports), lambda _: ())
    progress = Progress(results=_adopted(model, plan, executor, notes))

    def settle(step: Step, inputs: Mapping[str, StepResult]) -> StepResult:
        if isinstance(step.params, BaselineParams):
            result = executor.find(step, {}) or executor.adopt(step, {}, *score_model(model, step.params, store.local))
        else:
            result = executor.settle(model, step, input_refs(step, inputs))
        if not result.cached:
            notes.note_changes(step, result)
        return result

    run_steps(plan, settle, progress, threads=0)
    for result in progress.results.values():
        notes.remember(result)
    stages = notes.outcomes(plan, progress)
    seconds = time.monotonic() - started
    when = began.isoformat(timespec="milliseconds")
    store.runs.write(RunRecord(uuid.uuid4().hex, "pteforge.export", when, seconds, {model.name: stages}))
    (recipe,) = model.recipes
    name, failure = first_failure(plan, progress, recipe.name) or ("", None)
    if failure is None:
        return FinishedRun(plan, progress, stages)
    if isinstance(failure, StageError) and name == plan.recipe_parts[recipe.name].get(StageName.GATE.value):
        return FinishedRun(plan, progress, stages, missed=failure)
    raise failure


def _adopted(model: LiveModel, plan: ModelPlan, executor: Executor, notes: RunNotes) -> dict[str, StepResult]:
    """Results of the steps that need what was handed over: those are run each time, whatever the ledger has."""
    exports = iter(model.exports.values())
    results = {}
    for step in plan.steps:
        live: LiveExport | LiveSamples | None = None
        match step.params:
            case SourceTransformParams():
                live = transform_method(model, step.params, executor.store.local)
            case ExportParams():
                live = next(exports)
            case CalibrationParams():
                live = model.samples_of(step.params)
        if live is None:
            continue
        results[step.name] = executor.adopt(step, {}, live.outputs, live.seconds)
        notes.note_changes(
            step, results[step.name], unchanged="nothing changed; what is handed over in memory is taken anew each time"
        )
    return results
