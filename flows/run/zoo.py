"""Lowers the models of a zoo, from the ledger or with a runner, and publishes their files."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ...artifacts.ref import ArtifactRef
from ...artifacts.runs import RunRecord, StageOutcome
from ...errors import InputError, ObjectDamaged, ObjectMissing, StoreError
from ...tasks.engine.executor import LedgerRunner, PlanRunner, SharingRunner
from ...tasks.engine.keys.search import ModuleSearch
from ...tasks.engine.runner import CutShort, NotCached
from ...tasks.file.stages.report import Report
from ...tasks.file.stages.serialize import Serialize
from ...tasks.lowering.graph import lower_model
from ...tasks.lowering.model import PlannedModel
from ...tasks.lowering.runs import History, ModelRun, StageCalls, run_without_loop
from ...tasks.results.delivered import Delivered, Failure, Status
from ...tasks.results.finding import Finding, to_json
from ...tasks.results.numerics import Rung
from ...tasks.verify.stages.gate import Gate
from ...tasks.verify.stages.ladder import Ladder
from ...tasks.verify.stages.prove import Prove
from ...tasks.verify.stages.search_inputs import SearchInputs
from ...tasks.verify.stages.verify import Verify
from .origin import Origin
from .outcome import KEPT_AS, ModelOutcome
from .session import Session, unmended_in

Results = dict[str, Report.Outputs | Exception]  # by recipe
_ATTEMPTS = 3  # of a step that misses an object or finds one damaged: the stage that makes the object runs again


def find_models(session: Session) -> None:
    """Concludes models whose stages are all in the ledger, without an event loop, torch or Prefect.

    In a run that is tried again, also those that were cancelled by hand in its last attempt.
    """
    finders = {path: ModuleSearch(path) for path in {model.python_path for model in session.models}}
    for model in session.models:
        found = find_model(session, model, finders[model.python_path])
        reasons = (session.recording.cancelled(model.name, recipe.name) for recipe in model.recipes)
        if not found and (there := next(filter(None, reasons), None)) and there.failure:
            conclude_elsewhere(session, model, session.recording.attempted, there.failure)


def find_model(session: Session, model: PlannedModel, finder: ModuleSearch | None = None) -> bool:
    """Concludes a model if the ledger has all of its stages, else notes its plan. Returns whether it has an outcome."""
    if model.name in session.progress.outcomes or conclude_whole(session, model):
        return True
    for _ in range(_ATTEMPTS):  # a damaged object is missing in the next attempt
        runner = PlanRunner(session.executor)
        run = ModelRun(runner, model, finder=finder or ModuleSearch(model.python_path))
        with suppress(ObjectMissing, ObjectDamaged):
            try:
                results = run_without_loop(lower_model(run))
            except InputError as error:
                results = _all_failed(model, error)
            unread = [result for result in results.values() if isinstance(result, StoreError)]
            if runner.will_run or runner.may_run:
                session.progress.plan(model.name, runner)
            elif not unread:
                conclude(session, run, results)
            elif isinstance(unread[0], ObjectMissing | ObjectDamaged):
                continue
            break
    return model.name in session.progress.outcomes


async def lower_rest(session: Session, runner: SharingRunner) -> None:
    """Lowers the models that have no outcome yet, unless the run is aborted."""
    progress = session.progress
    rest = [model for model in session.models if not (model.name in progress.outcomes or progress.aborted)]
    await asyncio.gather(*(lower_one(session, model, runner) for model in rest))


async def lower_one(session: Session, model: PlannedModel, runner: SharingRunner) -> ModelOutcome:
    """Lowers a model and publishes its files. Failures are part of the outcome."""
    lost: Counter[str] = Counter()  # by step, or by object if a file could not be assembled
    while all(times < _ATTEMPTS for times in lost.values()):
        run = ModelRun(runner, model)
        try:
            results = await lower_model(run)
            failed = [item for part in run.all() for item in part.failed.items()]
            losers = {str(step) for step, error in failed if isinstance(error, ObjectMissing | ObjectDamaged)}
            if not losers:
                return await asyncio.to_thread(conclude, session, run, results)
        except Exception as error:  # noqa: BLE001 - the boundary of a model: the others continue
            results = _all_failed(model, error)
            if not isinstance(error, ObjectMissing | ObjectDamaged):
                break
            losers = {error.digest}
        lost.update(losers)
        runner.forget_finished()
    try:
        return await asyncio.to_thread(conclude, session, run, results)
    except Exception as error:  # noqa: BLE001 - as above: the disk may be full
        failure = Failure.of("", error)
        recipes = [Delivered(model.name, recipe.name, "failed", failure=failure) for recipe in model.recipes]
        return await asyncio.to_thread(_add, session, model, recipes)


def conclude(session: Session, run: ModelRun, results: Results) -> ModelOutcome:
    """Publishes a model's files and records every outcome; StoreError (ObjectMissing or ObjectDamaged for objects)."""
    model, history = run.model, History(run)
    recipes = tuple(_conclude_recipe(session, run, recipe.name, results[recipe.name]) for recipe in model.recipes)
    history.remember()
    stages = history.outcomes()
    session.whole_models.note(run, stages, recipes)
    return _add(session, model, recipes, stages, run)


def conclude_whole(session: Session, model: PlannedModel) -> bool:
    """Publishes a model's files if a record says that the ledger has all of its stages. Returns whether it does."""
    record = session.whole_models.find(model)
    if record is None:
        return False
    recipes = [
        replace(delivered, path=session.out / model.name / f"{delivered.recipe}.pte")
        for delivered in map(Delivered.from_json, record.recipes)
    ]
    if not session.results.has(model.name, recipes):
        planned = {recipe.name: recipe for recipe in model.recipes}
        try:
            for delivered in recipes:
                provenance, names = delivered.parts["provenance"], planned[delivered.recipe].payloads
                _publish(session, model.name, names, provenance, delivered.findings)
        except (ObjectMissing, ObjectDamaged):
            return False
    _add(session, model, recipes, record.stages)
    return True


def conclude_elsewhere(session: Session, model: PlannedModel, record: RunRecord | None, failure: Failure) -> None:
    """Publishes a model by the `record` of the run that lowered it; recipes that are not in it have the `failure`."""
    run = ModelRun(LedgerRunner(session.executor), model)
    try:
        results = run_without_loop(lower_model(run))
    except (NotCached, StoreError, InputError) as error:
        results = _all_failed(model, error)
    recipes = []
    for recipe in model.recipes:
        there = Delivered.of_run(record, model.name, recipe.name) if record else None
        result = results[recipe.name]
        if isinstance(result, Exception) and not isinstance(result, CutShort):
            recipes.append(_failed_elsewhere(session, run, recipe.name, there, failure))
        else:
            delivered = _conclude_recipe(session, run, recipe.name, result)
            recipes.append(replace(delivered, status="cached" if there and there.status == "cached" else "made"))
    _add(session, model, recipes, record.models.get(model.name, ()) if record else (), run)


def _failed_elsewhere(
    session: Session, run: ModelRun, recipe: str, there: Delivered | None, failure: Failure
) -> Delivered:
    """A recipe that another run did not finish, by that run's record; `there` is None if the run died."""
    if there is None or there.failure is None:
        return Delivered(run.model.name, recipe, "failed", failure=failure)
    failed = replace(there, rejected=None)
    return _keep_rejected(session, run.recipes[recipe], failed) if recipe in run.recipes else failed


_JUDGES = frozenset(stage.name for stage in (Verify, SearchInputs, Prove, Gate))


def _keep_rejected(session: Session, run: StageCalls, failed: Delivered) -> Delivered:
    """Keeps a failed recipe's file for inspection, if it missed its accuracy gate or an earlier run verified it."""
    failure = failed.failure
    serialized = run.find(Serialize.name) if failure and failure.stage in _JUDGES else None
    if failure is None or serialized is None:
        return failed
    model, recipe, file = failed.model, failed.recipe, serialized.outputs.file
    if failure.stage != Gate.name and not session.results.has_file(model, recipe, file):
        return failed
    path = session.results.keep_rejected(model, recipe, file, serialized.outputs.data)
    problem = failure.problem.partition(KEPT_AS)[0]
    return replace(failed, failure=replace(failure, problem=f"{problem}{KEPT_AS}{path}"), rejected=path)


def _add(
    session: Session,
    model: PlannedModel,
    recipes: Iterable[Delivered],
    stages: tuple[StageOutcome, ...] = (),
    run: ModelRun | None = None,
) -> ModelOutcome:
    """Adds the outcome of a model, with the recipes that do not apply to it; `run` has the inputs of its stages."""
    reasons = model.not_applicable.items()
    rest = (Delivered(model.name, recipe, "not applicable", reason=reason) for recipe, reason in reasons)
    unwatched: tuple[str, ...] = ()
    if run:
        ran = {stage.key for stage in stages if stage.status == "ran"}
        roles = [done.roles for part in run.all() for done in part.done.values() if done.key.digest() in ran]
        observed = {of_stage["observed"] for of_stage in roles if "observed" in of_stage}
        unwatched = tuple(sorted({name for ref in observed for name in run.read_json(ref)["unwatched"]}))
    there, stages_there = session.progress.elsewhere.get(model.name, ((), ()))
    outcome = ModelOutcome(model.name, (*recipes, *there, *rest), (*stages, *stages_there), unwatched)
    session.progress.add(outcome)
    return outcome


def _all_failed(model: PlannedModel, error: Exception) -> Results:
    return {recipe.name: error for recipe in model.recipes}


def _conclude_recipe(
    session: Session, model_run: ModelRun, recipe: str, result: Report.Outputs | Exception
) -> Delivered:
    model, run = model_run.model, model_run.recipes.get(recipe)
    if isinstance(result, Exception) and not isinstance(result, CutShort):
        return _failed(session, run or model_run, recipe, result)
    assert run  # noqa: S101 - else the model had failed
    status: Status = "cached" if all(done.cached for done in run.done.values()) else "made"
    seconds = sum(done.seconds for done in run.done.values())
    if isinstance(result, CutShort):
        return Delivered(model.name, recipe, status, seconds=seconds, until=run.plan.until or "")
    delivered = _publish(session, model.name, run.plan.payloads, result.provenance, run.found_since())
    return replace(delivered, status=status, seconds=seconds, left_out=run.why_left_out(delivered.left_out))


def publish_again(session: Session, delivered: Delivered) -> Delivered:
    """Writes a file that another run has made; raises StoreError."""
    if "provenance" not in delivered.parts:
        return delivered
    payloads = [spec.payload for spec in session.loaded.zoo.recipes[delivered.recipe].specializations]
    again = _publish(session, delivered.model, payloads, delivered.parts["provenance"], delivered.findings)
    return replace(again, status=delivered.status, seconds=delivered.seconds)


def _publish(
    session: Session, model: str, payloads: Sequence[str], report: ArtifactRef, findings: Iterable[Finding]
) -> Delivered:
    """Writes the files that a provenance describes, and the provenance with this run and its later findings."""
    session.store.fetch(report)
    provenance = json.loads(session.store.local.read_artifact(report))
    delivered = Delivered.of_provenance(provenance)
    origin = Origin.of(session.loaded, model, debug=session.request.debug).to_json()
    run: dict[str, Any] = {**session.identity, "request": origin}
    run["id"] = session.part_of or session.id
    if problems := unmended_in(session.store):
        run["unmended"] = problems
    if since := [finding for finding in findings if not delivered.every(type(finding))]:
        run["findings"] = to_json(since)
    delivered = replace(delivered, findings=(*delivered.findings, *(new.brief() for new in since)))
    delivered = session.results.publish(delivered, provenance, run)
    session.results.publish_debug_files(delivered, payloads)
    return replace(delivered, parts={**delivered.parts, "provenance": report})


def _failed(session: Session, run: StageCalls, recipe: str, error: Exception) -> Delivered:
    failure, climbed = Failure.of(run.step_of(error), error), run.find(Ladder.name)
    rungs = Rung.found(run.read_json(climbed.outputs.numerics)) if climbed else ()
    failed = Delivered(run.model.name, recipe, "failed", failure=failure, findings=rungs)
    return failed if isinstance(error, StoreError) else _keep_rejected(session, run, failed)
