"""How far a run is: stages done of those that are known, which ones run, and how long the rest will take."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from statistics import fmean
from threading import Lock

from ...artifacts.runs import RunRecord
from ...tasks.engine.executor import Executor, PlanRunner
from ...tasks.engine.runner import Done, StageCall
from ...tasks.lowering.graph import lower_model
from ...tasks.lowering.model import PlannedModel
from ...tasks.lowering.runs import ModelRun, run_without_loop
from .outcome import ModelOutcome

PAUSE = 10.0
"""Seconds between two lines about the progress of one thing."""

_RUNS_READ = 30  # records that are looked at for the stages of models


@dataclass(frozen=True, slots=True)
class ExpectedStage:
    """A stage that a model will probably have, and how many seconds it took the last time, if it ran before."""

    stage: str
    seconds: float | None


class Pace:
    """Counts the stages of a run, from any thread. A model's stages are known exactly when it is completed."""

    def __init__(self) -> None:
        """Knows nothing yet; see `expected_stages`."""
        self.start = time.monotonic()
        self.models = 0
        self.cached = 0
        self.asked = False
        self._running: dict[str, tuple[str, float]] = {}  # by title: slot, and start
        self._rest: dict[str, dict[str, ExpectedStage]] = {}  # by model, by slot: what is expected and not done
        self._expected: dict[str, tuple[ExpectedStage, ...]] = {}  # by model: all that was
        self._due: frozenset[str] = frozenset()  # models of which stages will be expected
        self._done: Counter[str] = Counter()  # stages, by model
        self._slots: set[str] = set()  # of stages that are done
        self._completed: set[str] = set()  # models
        self._seconds: defaultdict[str, list[float]] = defaultdict(list)  # by stage, what it took
        self._lock = Lock()

    @property
    def done(self) -> int:
        return self._done.total()

    @property
    def known(self) -> int:
        """Stages that are done, run or are expected."""
        with self._lock:
            expected = {slot for slots in self._rest.values() for slot in slots}
            return self.done + len(expected | {slot for slot, _ in self._running.values()})

    def expected(self, model: str) -> float | None:
        """Seconds that a model's stages took before, as far as that is known; None if nothing is."""
        with self._lock:
            seconds = [stage.seconds for stage in self._expected.get(model, ()) if stage.seconds is not None]
        return sum(seconds) if seconds else None

    def running(self) -> dict[str, float]:
        """The stages that run, by title: seconds since their start, the longest first."""
        now = time.monotonic()
        with self._lock:
            return {title: now - start for title, (_, start) in self._running.items()}

    def ask(self, models: Iterable[str]) -> None:
        """Notes the models that `expect` will be called for, which may take a while."""
        self._due = frozenset(models)

    def expect(self, model: str, stages: Mapping[str, ExpectedStage]) -> None:
        """Notes which stages a model will probably have, by slot."""
        with self._lock:
            self._expected[model] = (*stages.values(),)
            if model not in self._completed:
                self._rest[model] = {slot: stage for slot, stage in stages.items() if slot not in self._slots}
            for stage in stages.values():
                if stage.seconds:
                    self._seconds[stage.stage].append(stage.seconds)

    def started(self, call: StageCall) -> None:
        with self._lock:
            self._running[call.title] = call.slot, time.monotonic()

    def finished(self, done: Done) -> None:
        self._end(done.call)
        with self._lock:
            self.cached += done.cached
            self._seconds[done.call.stage.name].append(done.seconds)

    def failed(self, call: StageCall) -> None:
        self._end(call)

    def completed(self, outcome: ModelOutcome) -> None:
        """Counts the stages of a model that were found without a runner, or ran elsewhere."""
        with self._lock:
            self._rest.pop(outcome.model, None)
            self._completed.add(outcome.model)
            self.models = len(self._completed)
            missing = max(0, outcome.ran + outcome.cached - self._done[outcome.model])
            self._done[outcome.model] += missing
            self.cached += min(missing, outcome.cached)

    def left(self, at_once: int) -> float | None:
        """Seconds until all models are done, so many stages at once; None as long as there is no base for it.

        Models of which no stage is expected yet count as much as the others do on average. There is a base when it is
        known what most of the stages take, by their name.
        """
        now = time.monotonic()
        with self._lock:
            typical = {stage: fmean(seconds) for stage, seconds in self._seconds.items()}
            rest = [stage for slots in self._rest.values() for stage in slots.values()]
            unknown = self._due - self._completed - self._expected.keys()
            if not typical or (unknown and not self._expected):
                return None
            if 2 * sum(stage.seconds is None and stage.stage not in typical for stage in rest) > len(rest):
                return None
            usual = fmean(typical.values())

            def cost(stage: ExpectedStage) -> float:
                return typical.get(stage.stage, usual) if stage.seconds is None else stage.seconds

            seconds = {slot: cost(stage) for slots in self._rest.values() for slot, stage in slots.items()}
            for slot, start in self._running.values():
                seconds[slot] = max(0.0, seconds.get(slot, 0.0) - (now - start))
            average = fmean(sum(map(cost, stages)) for stages in self._expected.values()) if unknown else 0.0
        return max((sum(seconds.values()) + len(unknown) * average) / at_once, max(seconds.values(), default=0.0))

    def _end(self, call: StageCall) -> None:
        with self._lock:
            self._running.pop(call.title, None)
            self._rest.get(call.model, {}).pop(call.slot, None)
            self._slots.add(call.slot)
            self._done[call.model] += 1


def expected_stages(
    models: Iterable[PlannedModel], executor: Executor, zoo: str | None, planned: Mapping[str, Mapping[str, str]]
) -> Iterator[tuple[str, dict[str, ExpectedStage]]]:
    """The stages of models by slot, each with the model's name: those of its last run or, without one, by plan.

    `zoo` is whose runs count, None for no run. `planned` has plans that were made before: by model, `PlanRunner.slots`.
    Asks the store, which may take seconds.
    """
    due = {model.name: model for model in models}
    for run in islice(executor.store.runs.of_zoo(zoo or ""), _RUNS_READ if due and zoo else 0):
        for name in [name for name in due if name in run.models and (run.ended or name in run.files)]:
            if stages := _of_run(run, due[name]):
                yield name, stages
                del due[name]
    ledger = executor.store.ledger
    for name, model in due.items():
        if (slots := planned.get(name)) is None:
            runner = PlanRunner(executor)
            run_without_loop(lower_model(ModelRun(runner, model)))
            slots = runner.slots
        last_runs = {slot: ledger.last_run(slot) for slot in slots}
        yield (
            name,
            {slot: ExpectedStage(slots[slot], last.seconds if last else None) for slot, last in last_runs.items()},
        )


def _of_run(run: RunRecord, model: PlannedModel) -> dict[str, ExpectedStage]:
    """The stages that a run had for the recipes of a model; none if it did not have all of the recipes."""
    wanted = {recipe.name for recipe in model.recipes}
    stages = [stage for stage in run.models[model.name] if wanted & set(stage.recipes)]
    if not wanted <= {recipe for stage in stages for recipe in stage.recipes}:
        return {}
    return {stage.slot: ExpectedStage(stage.stage, stage.seconds or None) for stage in stages}


class Throttle:
    """Allows one progress line per pause; the first one after the first pause."""

    def __init__(self, pause: float = PAUSE) -> None:
        """Starts the first pause, in seconds."""
        self._pause = pause
        self._last = time.monotonic()

    def due(self) -> bool:
        """Whether the pause is over; if so, starts the next one."""
        now = time.monotonic()
        if now - self._last < self._pause:
            return False
        self._last = now
        return True


def samples_done(done: int, total: int | None) -> str:
    """For example ``3 of 16 samples``."""
    return f"{done} samples" if total is None else f"{done} of {total} samples"
