"""The progress of a run of a zoo: the outcomes of its models so far, and the observers of its events."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from ...artifacts.runs import RunRecord, StageOutcome
from ...tasks.engine.runner import Done, Observer, StageCall
from ...tasks.lowering.runs import outcome_of, outcome_of_failure
from .outcome import ModelOutcome, ZooOutcome
from .pace import ExpectedStage, Pace


class ZooObserver(Observer):
    """Receives the events of a run of a zoo, from any thread; this one ignores them."""

    def completed(self, outcome: ModelOutcome) -> None: ...

    def ended(self, record: RunRecord) -> None: ...


@dataclass
class Progress(Observer):
    """What has happened in a run. Passes events on to observers, until the run is aborted.

    Attributes:
        models: names of the models.
        planned: by model that has stages to run, all of its stages by slot.
        outcomes: by model, in order of completion.
        unfinished: by model without outcome, what came of its stages, by slot.
        flow_runs: by model that another flow run lowers, that run's id.
    """

    zoo: str
    models: Sequence[str]
    observers: list[ZooObserver] = field(default_factory=list)
    pace: Pace = field(default_factory=Pace)
    planned: dict[str, dict[str, ExpectedStage]] = field(default_factory=dict)
    outcomes: dict[str, ModelOutcome] = field(default_factory=dict)
    unfinished: dict[str, dict[str, StageOutcome]] = field(default_factory=dict)
    flow_runs: dict[str, str] = field(default_factory=dict)
    start: float = field(default_factory=time.monotonic)
    began: datetime = field(default_factory=lambda: datetime.now(UTC))
    aborted: bool = False

    @property
    def complete(self) -> bool:
        return len(self.outcomes) == len(self.models)

    def outcome(self) -> ZooOutcome:
        done = tuple(self.outcomes[model] for model in self.models if model in self.outcomes)
        return ZooOutcome(self.zoo, done, time.monotonic() - self.start)

    def observe(self, observer: ZooObserver) -> None:
        """Adds an observer of what happens from now on."""
        self.observers.append(observer)

    def _listening(self) -> list[ZooObserver]:
        """The observers; none once the run is aborted, so that stages which it was running are not reported."""
        return [] if self.aborted else self.observers

    def add(self, outcome: ModelOutcome) -> None:
        self.outcomes[outcome.model] = outcome
        self.unfinished.pop(outcome.model, None)
        self.pace.completed(outcome)
        for observer in self._listening():
            observer.completed(outcome)

    def started(self, call: StageCall) -> None:
        self.pace.started(call)
        for observer in self._listening():
            observer.started(call)

    def progressed(self, call: StageCall, done: int, total: int | None) -> None:
        for observer in self._listening():
            observer.progressed(call, done, total)

    def finished(self, done: Done) -> None:
        self.pace.finished(done)
        self._note(outcome_of(done))
        for observer in self._listening():
            observer.finished(done)

    def failed(self, call: StageCall, error: Exception) -> None:
        self.pace.failed(call)
        self._note(outcome_of_failure(call.model, call.id, call.recipes, error))
        for observer in self._listening():
            observer.failed(call, error)

    def _note(self, outcome: StageOutcome) -> None:
        """Keeps the outcome of a stage for the record of a run that ends before the model does."""
        model = outcome.slot.partition("/")[0]
        if model not in self.outcomes and not self.aborted:
            self.unfinished.setdefault(model, {})[outcome.slot] = outcome
