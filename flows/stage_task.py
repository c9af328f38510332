"""One step as a Prefect task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.context import TaskRunContext
from prefect.states import Completed
from prefect.transactions import CommitMode, transaction
from prefect.utilities.annotations import opaque

from ..errors import PteforgeError, StageError, StoreError, StoreUnusable
from ..tasks.dataflow import Settle, input_refs
from ..tasks.executor import StepResult
from ..tasks.progress import Progressed
from ..tasks.steps import Step
from .model_run import ModelRun
from .seldom import Seldom, samples_done
from .session import Session
from .settling import settle_plainly, settle_told


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
    _add_tags(f"model:{run.model.name}", *(f"recipe:{recipe}" for recipe in step.recipes))
    try:
        result = settle_told(session, run, step, input_refs(step, inputs), _logged_now_and_then())
    except StageError as error:
        if error.log_tail:  # the end of the process's log belongs to the task run, where people look for it
            get_run_logger().error("%s", error.log_tail)
        raise
    if result.cached:
        return Completed(name="Cached", message=f"found by stage key {result.key.digest()}", data=result)
    return result


def _logged_now_and_then() -> Progressed:
    """Logs for the current task run how far a long stage is."""
    seldom = Seldom()

    def log(done: int, total: int | None) -> None:
        if seldom.due():
            get_run_logger().info(samples_done(done, total))

    return log


def _add_tags(*tags: str) -> None:
    """Tags the current task run from now on.

    Before a run starts, Prefect asks its server for limits on the tags the run has, with a client of its own for each
    set of tags: with model and recipe among them, one for each step. Limits on stages (``stage:compile``) are what
    people need.
    """
    context = TaskRunContext.get()
    if context:
        context.task_run.tags.extend(tags)


def settle_with_prefect(session: Session, run: ModelRun) -> Settle:
    """Settles steps as runs of the task `stage`, named and tagged after what they do.

    Where Prefect itself fails, its server having gone away, work goes on without it.
    """
    model, plainly = run.model.name, settle_plainly(session, run)

    def settle(step: Step, inputs: Mapping[str, StepResult]) -> StepResult:
        if session.server_lost:
            return plainly(step, inputs)
        named = settle_step.with_options(
            name=step.stage.value,
            task_run_name=f"{model} {step.name}",
            tags=[f"stage:{step.stage.value}"],
        )
        try:
            # A transaction of its own: a model's, rolled back when a stage fails, would mark all finished ones so.
            with transaction(commit_mode=CommitMode.EAGER):
                state = named(step, dict(inputs), opaque(session), opaque(run), return_state=True)
            result: StepResult = state.result()
        except PteforgeError as error:
            session.observer.failed(model, step, error)
            raise
        except Exception as error:  # noqa: BLE001 - Prefect's; if it was ours after all, it comes again
            session.lose_server(f"{type(error).__name__}: {error}")
            return plainly(step, inputs)
        return result

    return settle
