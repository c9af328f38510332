"""Settling one step of a model and telling the run's observer: what a stage task does, and what goes on without one."""

from __future__ import annotations

from collections.abc import Mapping

from ..artifacts.ref import ArtifactRef
from ..tasks.dataflow import Settle, input_refs
from ..tasks.executor import StepResult
from ..tasks.progress import Progressed, unheard
from ..tasks.steps import Step
from .model_run import ModelRun
from .session import Session


def settle_told(
    session: Session,
    run: ModelRun,
    step: Step,
    refs: Mapping[str, ArtifactRef],
    progressed: Progressed = unheard,
) -> StepResult:
    """Finds a step's result or makes it; the observer hears of it, and the run's record of what had changed.

    Args:
        session: the run of the zoo.
        run: that of the model.
        step: one of its steps.
        refs: role to artifact.
        progressed: hears how far the step is, besides the observer.
    """
    model = run.model.name

    def tell(done: int, total: int | None) -> None:
        session.observer.progressed(model, step, done, total)
        progressed(done, total)

    result = session.executor.settle(
        run.model, step, refs, starting=lambda: session.observer.started(model, step), progressed=tell
    )
    session.observer.finished(model, result)
    if not result.cached:
        run.notes.note_changes(step, result)
    return result


def settle_plainly(session: Session, run: ModelRun) -> Settle:
    """Settles steps without Prefect."""

    def settle(step: Step, inputs: Mapping[str, StepResult]) -> StepResult:
        try:
            return settle_told(session, run, step, input_refs(step, inputs))
        except Exception as error:
            session.observer.failed(run.model.name, step, error)
            raise

    return settle
