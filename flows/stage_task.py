"""One step as a Prefect task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.states import Completed
from prefect.utilities.annotations import opaque

from ..artifacts.ref import ArtifactRef
from ..errors import StageError, StoreError, StoreUnusable
from ..tasks.dataflow import Settle, input_refs
from ..tasks.executor import StepResult
from ..tasks.plan import Step
from .model_run import ModelRun
from .session import Session


def _worth_retrying(task: Any, run: TaskRun, state: State[Any]) -> bool:
    """A store that was out of reach may be back; a stage that failed fails again."""
    del task, run
    try:
        state.result()
    except StoreError as error:
        return isinstance(error, StoreUnusable)
    except Exception:  # noqa: BLE001 - whatever it is, trying again does not help
        return False
    return False


@task(
    name="stage",
    cache_policy=NO_CACHE,  # our ledger decides: unlike Prefect's cache it knows when an output is gone or damaged
    persist_result=False,
    retries=2,
    retry_delay_seconds=[1, 5],
    retry_condition_fn=_worth_retrying,
    log_prints=False,
)
def settle_step(step: Step, inputs: dict[str, StepResult], session: Session, run: ModelRun) -> Any:
    """Settles one step; a hit in the ledger ends in the state `Cached`, as Prefect's own cache hits do."""
    model = run.model
    refs = input_refs(step, inputs)
    executor = session.executor
    result = executor.find(step, refs)
    if result is None:
        session.observer.started(model.name, step)
        result = _make(session, run, step, refs)
    session.observer.finished(model.name, result)
    if result.cached:
        return Completed(name="Cached", message=f"found by stage key {result.key.digest()}", data=result)
    run.note_changes(step, result)
    return result


def _make(session: Session, run: ModelRun, step: Step, refs: Mapping[str, ArtifactRef]) -> StepResult:
    try:
        return session.executor.settle(run.model, step, refs)
    except StageError as error:
        if error.log_tail:  # the end of the process's log belongs to the task run, where people look for it
            get_run_logger().error("%s", error.log_tail)
        raise


def settle_with_prefect(session: Session, run: ModelRun) -> Settle:
    """Settles steps as runs of the task `stage`, named and tagged after what they do."""
    model = run.model.name

    def settle(step: Step, inputs: Mapping[str, StepResult]) -> StepResult:
        named = settle_step.with_options(
            name=step.stage.value,
            task_run_name=f"{model} {step.name}",
            tags=[f"stage:{step.stage.value}", f"model:{model}", *(f"recipe:{recipe}" for recipe in step.recipes)],
        )
        state = named(step, dict(inputs), opaque(session), opaque(run), return_state=True)
        try:
            result: StepResult = state.result()
        except Exception as error:
            session.observer.failed(model, step, error)
            raise
        return result

    return settle
