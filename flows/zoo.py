"""Lowers the models of a zoo, from the ledger or with a runner, and publishes their files."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..artifacts.ledger import RecipeRecord
from ..artifacts.ref import ArtifactRef
from ..artifacts.runs import RunRecord, StageOutcome
from ..errors import InputError, ObjectDamaged, ObjectMissing, StoreError
from ..tasks.accuracy import AccuracyReport
from ..tasks.codecs.payload import payload_sha256
from ..tasks.figures import Figures
from ..tasks.keys.search import ModuleSearch
from ..tasks.layer_search import FoundLayers
from ..tasks.lowering import LoweredRecipe, lower_model
from ..tasks.model import PlannedModel, PlannedRecipe
from ..tasks.model_run import History, ModelRun, RecipeRun, StageCalls
from ..tasks.numerics import Ladder
from ..tasks.quantization import quantization_by_method
from ..tasks.runner import CutShort, LedgerRunner, NotCached, PlanRunner, SharingRunner, run_without_loop
from ..tasks.stages.compile import Compile
from ..tasks.stages.gate import Gate
from ..tasks.stages.ladder import Ladder as LadderStage
from ..tasks.stages.serialize import Serialize
from .outcome import KEPT_AS, Failure, ModelOutcome, RecipeOutcome, Status, not_applicable
from .publish import is_published, keep_rejected, publish, publish_debug_files
from .session import Session
from .whole import Results

_ATTEMPTS = 3  # of a step that misses an object or finds one damaged: what made the object runs again


def find_models(session: Session) -> None:
    """Concludes every model whose stages are all in the ledger. Needs no event loop, no torch and no Prefect."""
    searches = {path: ModuleSearch(path) for path in {model.python_path for model in session.models}}
    for model in session.models:
        find_model(session, model, searches[model.python_path])


def find_model(session: Session, model: PlannedModel, search: ModuleSearch | None = None) -> bool:
    """Concludes a model if the ledger has all of its stages, else notes its plan; returns whether it has an outcome."""
    if model.name in session.outcomes or conclude_whole(session, model):
        return True
    runner = PlanRunner(session.executor)
    scope = ModelRun(runner, model, search=search or ModuleSearch(model.python_path))
    try:
        results = run_without_loop(lower_model(scope))
    except (ObjectMissing, ObjectDamaged):
        return False  # some stages have to run again
    except InputError as error:
        results = _all_failed(model, error)
    if runner.will_run or runner.may_run:
        session.planned[model.name] = runner.slots
    elif not any(isinstance(result, StoreError) for result in results.values()):
        with suppress(ObjectMissing, ObjectDamaged):
            conclude(session, scope, results)
    return model.name in session.outcomes


async def lower_rest(session: Session, runner: SharingRunner) -> None:
    """Lowers the models that have no outcome yet."""
    rest = [model for model in session.models if model.name not in session.outcomes]
    await asyncio.gather(*(lower_one(session, model, runner) for model in rest))


async def lower_one(session: Session, model: PlannedModel, runner: SharingRunner) -> ModelOutcome:
    """Lowers a model and publishes its files. Failures are part of the outcome."""
    lost: Counter[str] = Counter()  # by step, or by object where the file of the model could not be put together
    while all(times < _ATTEMPTS for times in lost.values()):
        scope = ModelRun(runner, model)
        try:
            results = await lower_model(scope)
            failed = [item for each in scope.all() for item in each.failed.items()]
            losers = {str(step) for step, error in failed if isinstance(error, ObjectMissing | ObjectDamaged)}
            if not losers:
                return await asyncio.to_thread(conclude, session, scope, results)
        except Exception as error:  # noqa: BLE001 - the boundary of a model: the others continue
            results = _all_failed(model, error)
            if not isinstance(error, ObjectMissing | ObjectDamaged):
                break
            losers = {error.digest}
        lost.update(losers)
        runner.forget_finished()
    try:
        return await asyncio.to_thread(conclude, session, scope, results)
    except Exception as error:  # noqa: BLE001 - as above: the disk may be full
        failure = Failure.of(model.name, error)
        recipes = tuple(RecipeOutcome(recipe.name, "failed", failure=failure) for recipe in model.recipes)
        outcome = ModelOutcome(model.name, (*recipes, *not_applicable(model.not_applicable)), ran=0, cached=0)
        session.add(outcome, ())
        return outcome


def conclude(session: Session, scope: ModelRun, results: Results) -> ModelOutcome:
    """Publishes a model's files, and records the outcome of each recipe and stage.

    Raises:
        ObjectMissing, ObjectDamaged: an object of a file cannot be read from the store.
        StoreError: the store or the folder for results cannot be written.
    """
    model, history = scope.model, History(scope)
    recipes = tuple(_conclude_recipe(session, scope, recipe.name, results[recipe.name]) for recipe in model.recipes)
    history.remember()
    session.whole_models.note(scope, results, recipes)
    stages = history.outcomes()
    everything = (*recipes, *not_applicable(model.not_applicable))
    outcome = ModelOutcome(model.name, everything, history.ran, history.cached, _unwatched(scope, stages))
    session.add(outcome, stages)
    return outcome


def conclude_whole(session: Session, model: PlannedModel) -> bool:
    """Publishes a model's files, if one record says that the ledger has all of its stages; returns whether it does."""
    record = session.whole_models.find(model)
    if record is None:
        return False
    folder = session.out / model.name
    if not is_published(folder, record.recipes, session.known_files):
        try:
            for recipe in model.recipes:
                made = record.recipes[recipe.name]
                _publish_files(session, model, recipe, made, made.provenance, {})
        except (ObjectMissing, ObjectDamaged):
            return False
    recipes = tuple(_recorded(folder, name, made) for name, made in record.recipes.items())
    outcome = ModelOutcome(model.name, (*recipes, *not_applicable(model.not_applicable)), 0, len(record.stages))
    session.add(outcome, record.stages)
    return True


def conclude_elsewhere(session: Session, model: PlannedModel, record: RunRecord | None, problem: str) -> None:
    """Publishes what another run made of a model, from the ledger that it shares with this one.

    Args:
        session: this run.
        model: the model that the other run was to lower.
        record: the other run's; it says why recipes failed.
        problem: why a recipe failed that the record says nothing of.
    """
    scope = ModelRun(LedgerRunner(session.executor), model)
    try:
        results = run_without_loop(lower_model(scope))
    except (NotCached, StoreError, InputError) as error:
        results = _all_failed(model, error)
    files = record.files.get(model.name, {}) if record else {}
    recipes = []
    for recipe in model.recipes:
        entry, result = files.get(recipe.name, {}), results[recipe.name]
        if isinstance(result, Exception) and not isinstance(result, CutShort):
            recipes.append(_failed_elsewhere(session, scope, recipe.name, entry, problem))
        else:
            found = _conclude_recipe(session, scope, recipe.name, result)
            recipes.append(replace(found, status="cached" if entry.get("status") == "cached" else "made"))
    stages = record.models.get(model.name, ()) if record else ()
    ran = sum(stage.status == "ran" for stage in stages)
    cached = sum(stage.status == "cached" for stage in stages)
    everything = (*recipes, *not_applicable(model.not_applicable))
    session.add(ModelOutcome(model.name, everything, ran, cached, _unwatched(scope, stages)), stages)


def _failed_elsewhere(
    session: Session, scope: ModelRun, recipe: str, entry: Mapping[str, Any], problem: str
) -> RecipeOutcome:
    """A recipe that another run did not finish, from what that run's record says; it is not there if the run died."""
    if entry.get("status") != "failed":
        return RecipeOutcome(recipe, "failed", failure=Failure(scope.model.name, problem, "", bad_input=False))
    failure, rejected = Failure.from_json(entry), None
    made = scope.recipes[recipe].find(Serialize.name) if recipe in scope.recipes else None
    if entry["rejected"] and made:
        rejected = keep_rejected(
            session.store,
            made.outputs.file,
            made.outputs.data,
            session.out / scope.model.name,
            recipe,
            session.known_files,
        )
        failure = replace(failure, problem=failure.problem.replace(entry["rejected"], str(rejected)))
    return RecipeOutcome(recipe, "failed", failure=failure, rejected=rejected)


def _all_failed(model: PlannedModel, error: Exception) -> Results:
    return {recipe.name: error for recipe in model.recipes}


def _conclude_recipe(
    session: Session, model_scope: ModelRun, recipe: str, result: LoweredRecipe | Exception
) -> RecipeOutcome:
    scope = model_scope.recipes.get(recipe)
    if isinstance(result, Exception) and not isinstance(result, CutShort):
        calls = scope or model_scope
        return replace(_failed(session, calls, recipe, result), ladder=ladder_of(calls))
    assert scope  # noqa: S101 - else the model had failed
    status: Status = "cached" if all(done.cached for done in scope.done.values()) else "made"
    seconds = sum(done.seconds for done in scope.done.values())
    if isinstance(result, CutShort):
        return RecipeOutcome(recipe, status, seconds=seconds, until=scope.plan.until or "")
    return replace(_publish(session, scope, recipe, result), status=status, seconds=seconds, ladder=ladder_of(scope))


def _unwatched(scope: ModelRun, stages: Iterable[StageOutcome]) -> tuple[str, ...]:
    """What stages that ran have read and is not watched."""
    ran = {stage.key for stage in stages if stage.status == "ran"}
    made = [done for each in scope.all() for done in each.done.values()]
    observed = {done.roles["observed"] for done in made if done.key.digest() in ran and "observed" in done.roles}
    return tuple(sorted({name for ref in observed for name in scope.read_json(ref)["unwatched"]}))


def _publish(session: Session, scope: RecipeRun, recipe: str, lowered: LoweredRecipe) -> RecipeOutcome:
    path, provenance = _publish_files(
        session, scope.model, scope.plan, lowered, lowered.report.provenance, lowered.debugging
    )
    data = path.with_suffix(".ptd") if lowered.data else None
    return RecipeOutcome(
        recipe=recipe,
        status="made",
        path=path,
        data=data,
        size=path.stat().st_size + (data.stat().st_size if data else 0),
        sha256=payload_sha256(lowered.file, session.store.local),
        figures=Figures.from_json(provenance["verification"]["figures"]),
        left_out=scope.why_left_out(provenance["left_out"]),
        accuracy=AccuracyReport.from_json(provenance["accuracy"]) if "accuracy" in provenance else None,
        assets=tuple(provenance.get("assets", ())),
        search=FoundLayers.from_json(provenance["search"]) if "search" in provenance else None,
        quantization=quantization_by_method(provenance.get("quantization")),
    )


def _publish_files(
    session: Session,
    model: PlannedModel,
    recipe: PlannedRecipe,
    made: LoweredRecipe | RecipeRecord,
    report: ArtifactRef,
    debugging: Mapping[str, Compile.Outputs],
) -> tuple[Path, dict[str, Any]]:
    """Returns the path of the `.pte`, and the provenance in `report` with this run added."""
    store, folder = session.store, session.out / model.name
    store.fetch(report)
    provenance = json.loads(store.local.read_artifact(report))
    provenance["run"] = {**session.identity, "request": session.origin(model.name)}
    path = publish(
        store, made.file, made.data, provenance, folder, recipe.name, session.known_files, assets=made.assets
    )
    publish_debug_files(store, debugging, folder, recipe.name, [spec.name for spec in recipe.specializations])
    return path, provenance


def _recorded(folder: Path, recipe: str, made: RecipeRecord) -> RecipeOutcome:
    path = folder / f"{recipe}.pte"
    return RecipeOutcome(
        recipe=recipe,
        status="cached",
        path=path,
        data=path.with_suffix(".ptd") if made.data else None,
        size=made.size,
        sha256=made.published["pte"],
        figures=Figures.from_json(made.figures),
        seconds=made.seconds,
        left_out=made.left_out,
        ladder=Ladder.from_json(made.ladder) if made.ladder else None,
        accuracy=AccuracyReport.from_json(made.accuracy) if made.accuracy else None,
        assets=tuple(made.published_assets),
        search=FoundLayers.from_json(made.search) if made.search else None,
        quantization=quantization_by_method(made.quantization),
    )


def _failed(session: Session, scope: StageCalls, recipe: str, error: Exception) -> RecipeOutcome:
    """The outcome of a failed recipe. A file that only missed its accuracy gate is kept, to inspect."""
    failure, made = Failure.of(scope.step_of(error), error), scope.find(Serialize.name)
    if made is None or error not in [raised for step, raised in scope.failed.items() if step.stage == Gate.name]:
        return RecipeOutcome(recipe, "failed", failure=failure)
    folder = session.out / scope.model.name
    path = keep_rejected(session.store, made.outputs.file, made.outputs.data, folder, recipe, session.known_files)
    failure = replace(failure, problem=f"{failure.problem}{KEPT_AS}{path}")
    return RecipeOutcome(recipe, "failed", failure=failure, rejected=path)


def ladder_of(scope: StageCalls) -> Ladder | None:
    made = scope.find(LadderStage.name)
    return Ladder.from_json(scope.read_json(made.outputs.numerics)) if made else None
