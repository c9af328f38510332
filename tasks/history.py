"""What a run's record says of stages: how each ended, and why it ran."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ..artifacts.digest import Digest
from ..artifacts.runs import FieldChange, StageOutcome, differing_fields
from .model_run import ModelRun
from .runner import Done, StageCall, StageId

_GONE = "nothing changed, but its outputs were not in the store any more"


def outcome_of(done: Done) -> StageOutcome:
    """What is known of a stage as soon as it was run or found; `History` knows why it ran."""
    call = done.call
    return StageOutcome(
        slot=call.slot,
        stage=call.stage.name,
        method=call.id.method or None,
        recipes=call.recipes,
        status="cached" if done.cached else "ran",
        key=done.key.digest(),
        seconds=done.seconds,
        queued=done.queued,
        peak_memory=done.peak_memory,
        predicted_memory=done.predicted_memory,
    )


def outcome_of_failure(call: StageCall, error: Exception) -> StageOutcome:
    """The same of a stage that failed."""
    method = call.id.method or None
    return StageOutcome(call.slot, call.stage.name, method, call.recipes, "failed", key=None, message=str(error))


class History:
    """What a run's record says of one model's stages: why each ran. Compares keys with those of the slots' last use."""

    def __init__(self, run: ModelRun) -> None:
        """Reads the last keys of a model's slots; `remember` replaces them."""
        self._model = run.model
        self._done: dict[str, list[tuple[StageId, Done]]] = {}  # by key: equal work of two recipes is one stage
        self._failed: dict[int, list[tuple[StageId, Exception]]] = {}
        for part in run.all():
            for step, done in part.done.items():
                steps = self._done.setdefault(done.key.digest(), [])
                steps += [] if any(step == other for other, _ in steps) else [(step, done)]
            for step, error in part.failed.items():
                self._failed.setdefault(id(error), []).append((step, error))
        self._ledger = run.store.ledger
        self._reasons = {key: self._reason(*steps[0]) for key, steps in self._done.items() if not steps[0][1].cached}

    @property
    def ran(self) -> int:
        return sum(not steps[0][1].cached for steps in self._done.values())

    @property
    def cached(self) -> int:
        return len(self._done) - self.ran

    def remember(self) -> None:
        """Notes which key each slot has now, so that the next run can say what differs."""
        for key, steps in self._done.items():
            fields = steps[0][1].key.fields()
            for slot in [step.slot(self._model.name) for step, _ in steps]:
                last = self._ledger.last(slot) if steps[0][1].cached else None
                if last is None or last.key != key:
                    self._ledger.remember(slot, Digest(key), fields)

    def outcomes(self) -> tuple[StageOutcome, ...]:
        """Every stage that was run or found, or failed."""
        return (
            *(self._outcome(key, steps) for key, steps in self._done.items()),
            *(self._failure(steps) for steps in self._failed.values()),
        )

    def _reason(self, step: StageId, done: Done) -> tuple[tuple[FieldChange, ...], str]:
        last = self._ledger.last(step.slot(self._model.name))
        why = getattr(done.call.params, "takes_weights", "")
        needs = f"takes the weights: {why}" if why else ""
        if last is None:
            return (), "; ".join(filter(None, ("had not run before", needs)))
        differing = differing_fields(last.fields, done.key.fields())
        return differing, needs if differing else done.reason or _GONE

    def _outcome(self, key: str, steps: list[tuple[StageId, Done]]) -> StageOutcome:
        step, done = steps[0]
        differs, reason = self._reasons.get(key, ((), ""))
        return replace(
            outcome_of(done),
            slot=step.slot(self._model.name),
            stage=step.stage,
            method=step.method or None,
            recipes=self._recipes(step for step, _ in steps),
            differs=differs,
            message=reason,
        )

    def _failure(self, steps: list[tuple[StageId, Exception]]) -> StageOutcome:
        step, error = steps[0]
        return StageOutcome(
            slot=step.slot(self._model.name),
            stage=step.stage,
            method=step.method or None,
            recipes=self._recipes(step for step, _ in steps),
            status="failed",
            key=None,
            message=str(error),
        )

    def _recipes(self, steps: Iterable[StageId]) -> tuple[str, ...]:
        """The recipes that need a stage; what is made for no recipe is needed by all."""
        named = dict.fromkeys(step.recipe for step in steps)
        return tuple(recipe.name for recipe in self._model.recipes) if "" in named else tuple(named)
