"""One model: a Prefect task inside a zoo's flow, or a flow of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect import flow, task
from prefect.cache_policies import NO_CACHE
from prefect.states import Completed, Failed
from prefect.utilities.annotations import opaque

from ..tasks.model import PlannedModel
from .numerics_artifacts import show_ladders
from .outcome import ModelOutcome
from .prefect_settings import stop_workers_on_abort
from .scores_artifact import show_scores
from .session import Session, open_session
from .stage_task import settle_with_prefect


@flow(name="export-model", flow_run_name="export {model}", persist_result=False)
def export_model(
    zoo: Path,
    model: str,
    recipes: str = "*",
    store: str | None = None,
    out: Path = Path("out"),
    overrides: tuple[str, ...] = (),
    jobs: int | None = None,
) -> Any:
    """Lowers one model of a zoo with its recipes, and verifies the files.

    Args:
        zoo: the zoo file.
        model: name of the model.
        recipes: glob of recipe names, or several with commas between.
        store: URL or folder of the artifact store; None for the user's own.
        out: folder for the produced files.
        overrides: ``KEY=VALUE`` each, as ``--set``.
        jobs: stages at once; None for one per core.

    Returns:
        A state; where all went well its result is the JSON of `flows.outcome.ZooOutcome`.
    """
    with open_session(
        Path(zoo), models=model, recipes=recipes, store=store, out=Path(out), overrides=overrides, jobs=jobs
    ) as session:
        return run_models(session)


def run_models(session: Session) -> Any:
    """Settles all models of a session in the current flow; its state is failed if any recipe was not made."""
    with stop_workers_on_abort(session):
        if not session.settle_from_ledger():
            session.check_names()
            session.workers.start()
        futures = [_named(model).submit(opaque(model), opaque(session)) for model in session.models]
        for future in futures:
            future.wait()
        for model, future in zip(session.models, futures, strict=True):
            if model.name not in session.outcomes:
                session.lose_server(str(future.state.message))
                _run(model, session)
    outcome = session.outcome()
    session.record()
    if failures := outcome.failures:
        return Failed(message=f"{len(failures)} of the files were not made")
    return Completed(message=f"{len(outcome.files)} files verified", data=outcome.to_json())


@task(name="model", cache_policy=NO_CACHE, persist_result=False, retries=0)
def settle_model(model: PlannedModel, session: Session) -> Any:
    """Settles all steps of a model and publishes its files.

    Ends in `Cached` where no stage had to run, in `NotApplicable` where no recipe that is asked for applies to it.
    """
    outcome = session.outcomes.get(model.name) or _run(model, session)
    try:
        show_scores(outcome)
        show_ladders(outcome)
    except Exception as error:  # noqa: BLE001 - Prefect's: what was made is none the worse for it
        session.lose_server(f"{type(error).__name__}: {error}")
    if failed := [recipe for recipe in outcome.recipes if recipe.failure]:
        return Failed(message="; ".join(f"{r.recipe}: {r.failure.problem}" for r in failed if r.failure))
    told = [f"{outcome.ran} stages run, {outcome.cached} found"]
    told += [f"{recipe} does not apply: {reason}" for recipe, reason in model.not_applicable.items()]
    name = None if outcome.ran else "Cached" if model.recipes else "NotApplicable"
    return Completed(name=name, message="; ".join(told), data=len(model.recipes))


def _run(model: PlannedModel, session: Session) -> ModelOutcome:
    run = session.run_of(model)
    try:
        run.run(settle_with_prefect(session, run), threads=2 * session.jobs + 2)
        return session.complete(model)
    except Exception as error:  # noqa: BLE001 - the boundary of a model: its siblings go on, the outcome says what it was
        return session.fail(model, error)


def _named(model: PlannedModel) -> Any:
    return settle_model.with_options(task_run_name=f"model {model.name}", tags=[f"model:{model.name}"])
