"""What happened to a model's steps: why each ran, and what a run's record says of it."""

from __future__ import annotations

from ..artifacts.ledger import Ledger
from ..artifacts.runs import FieldChange, StageOutcome, differing_fields
from .dataflow import Progress
from .executor import StepResult, slot
from .plan import ModelPlan
from .steps import Step

_GONE = "nothing changed, but what it had given was not in the store any more"


class RunNotes:
    """Notes on the steps of one model in one run."""

    def __init__(self, model: str, ledger: Ledger) -> None:
        """Nothing noted yet."""
        self._model = model
        self._ledger = ledger
        self._changes: dict[str, tuple[FieldChange, ...]] = {}
        self._reasons: dict[str, str] = {}

    def note_changes(self, step: Step, result: StepResult, unchanged: str = _GONE) -> None:
        """Notes why a step ran: compares its key with the last one.

        Args:
            step: the step.
            result: what it gave.
            unchanged: why it ran if nothing in its key has changed.
        """
        last = self._ledger.last(slot(self._model, step))
        if last is None:
            self._reasons[step.name] = "had not run before"
            return
        self._changes[step.name] = differing_fields(last.fields, result.key.fields())
        if not self._changes[step.name]:
            self._reasons[step.name] = unchanged

    def remember(self, result: StepResult) -> None:
        """Notes in the ledger which key a step has now, so that the next run can say what differs."""
        self._ledger.remember(slot(self._model, result.step), result.key.digest(), result.key.fields())

    def outcomes(self, plan: ModelPlan, progress: Progress) -> tuple[StageOutcome, ...]:
        """Every step that is settled or failed, for the run's record."""
        return tuple(
            self._outcome(step, progress.results.get(step.name), progress.failures.get(step.name))
            for step in plan.steps
            if step.name in progress.results or step.name in progress.failures
        )

    def _outcome(self, step: Step, result: StepResult | None, error: Exception | None) -> StageOutcome:
        return StageOutcome(
            slot=slot(self._model, step),
            stage=step.stage.value,
            method=None,
            recipes=step.recipes,
            status=("cached" if result.cached else "ran") if result else "failed",
            key=result.key.digest() if result else None,
            differs=self._changes.get(step.name, ()),
            seconds=result.seconds if result else 0.0,
            message=str(error) if error else self._reasons.get(step.name, ""),
        )
