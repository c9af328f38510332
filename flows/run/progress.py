"""The progress of a run of a zoo: outcomes of its models, stages done, time left, and observers of its events."""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from statistics import fmean
from threading import Lock

from ...artifacts.runs import RunRecord, StageOutcome
from ...tasks.engine.executor import PlanRunner
from ...tasks.engine.runner import Done, Observer, StageCall
from ...tasks.lowering.model import PlannedModel
from ...tasks.lowering.runs import outcome_of, outcome_of_failure
from ...tasks.results.delivered import Delivered
from .outcome import ModelOutcome, ZooOutcome

PAUSE = 10.0  # seconds between two lines about the progress of one thing
_RUNS_READ = 30  # records that are searched for the stages of models


@dataclass(frozen=True, slots=True)
class ExpectedStage:
    """A stage that a model will probably have, and how many seconds it took the last time, if it ran before."""

    stage: str
    seconds: float | None


_TRUSTED = 5.0  # seconds of work after which the measured speed weighs as much as the number of stages at once
_FORESEEN = 2  # stages of a name after which their actual number weighs as much as the expected one
_RECENT = 200  # stages that the speed is measured by: the load of the machine changes


class Pace:
    """Counts the stages of a run, from any thread. A model's stages are known exactly when it is completed.

    Until then, expected stages are weighted by the share of them that completed models turned out to have, since plans
    list some that are not needed, such as `fold_batch_norms`. Models without expected stages count as the average.
    """

    def __init__(self) -> None:
        self.start = time.monotonic()
        self.models = 0
        self.cached = 0
        self.asked = False
        self._running: dict[str, tuple[str, float]] = {}  # by title: slot, and start
        self._rest: dict[str, dict[str, ExpectedStage]] = {}  # by model, by slot: what is expected and not done
        self._expected: dict[str, tuple[ExpectedStage, ...]] = {}  # by model: all that was
        self._due: frozenset[str] = frozenset()  # models for which `expect` will be called
        self._done: Counter[str] = Counter()  # stages, by model
        self._slots: set[str] = set()  # of stages that are done
        self._completed: set[str] = set()  # models
        self._planned: Counter[str] = Counter()  # by stage, how many were expected of models that are completed
        self._had: Counter[str] = Counter()  # and how many they had
        self._due_to_run: Counter[str] = Counter()  # by stage, how many are done that were not known to be cached
        self._made: Counter[str] = Counter()  # and how many of them ran: others' inputs had not changed after all
        self._seconds: defaultdict[str, list[float]] = defaultdict(list)  # by stage, what it took
        # the last that ran here or elsewhere: when, and what was expected
        self._ran: deque[tuple[float, ExpectedStage]] = deque(maxlen=_RECENT)
        self._first: float | None = None  # when the first stage started
        self._lock = Lock()

    @property
    def done(self) -> int:
        return self._done.total()

    @property
    def known(self) -> int:
        """Stages that are done, running or probably left."""
        with self._lock:
            rest = {slot: self._share(stage.stage) for slots in self._rest.values() for slot, stage in slots.items()}
            rest |= dict.fromkeys((slot for slot, _ in self._running.values()), 1.0)
            unplanned = self._unplanned * self._mean(lambda stage: self._share(stage.stage))
            return round(self.done + sum(rest.values()) + unplanned)

    def expected(self, model: str) -> float | None:
        """Seconds that a model's stages took before, as far as known; None if nothing is."""
        with self._lock:
            seconds = [stage.seconds for stage in self._expected.get(model, ()) if stage.seconds is not None]
        return sum(seconds) if seconds else None

    def running(self) -> dict[str, float]:
        """Seconds since the start of each running stage by title, the longest first."""
        now = time.monotonic()
        with self._lock:
            return {title: now - start for title, (_, start) in self._running.items()}

    def ask(self, models: Iterable[str]) -> None:
        """Notes the models that `expect` will be called for, which may take a while."""
        self.asked, self._due = True, frozenset(models)

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
            self._first = self._first or time.monotonic()

    def finished(self, done: Done) -> None:
        stage = done.call.stage.name
        expected = self._end(done.call) or ExpectedStage(stage, None)
        with self._lock:
            self.cached += done.cached
            if expected.seconds != 0:
                self._due_to_run[stage] += 1
                self._made[stage] += not done.cached
            if not done.cached:
                self._ran.append((time.monotonic(), expected))
            self._seconds[stage].append(done.seconds)

    def failed(self, call: StageCall) -> None:
        self._end(call)

    def completed(self, outcome: ModelOutcome) -> None:
        """Counts the stages of a model that were found without a runner, or ran elsewhere."""
        with self._lock:
            self._rest.pop(outcome.model, None)
            self._completed.add(outcome.model)
            self.models = len(self._completed)
            failed = any(stage.status == "failed" for stage in outcome.stages)  # its later stages are missing
            if (expected := self._expected.get(outcome.model)) and not failed:
                self._planned.update(stage.stage for stage in expected)
                self._had.update(stage.stage for stage in outcome.stages)
            missing = max(0, outcome.ran + outcome.cached - self._done[outcome.model])
            for stage in outcome.stages if missing and not self._done[outcome.model] else ():
                if stage.status == "ran":
                    self._ran.append((time.monotonic(), ExpectedStage(stage.stage, None)))
                    self._seconds[stage.stage].append(stage.seconds)
                    self._first = self._first or self.start
            self._done[outcome.model] += missing
            self.cached += min(missing, outcome.cached)

    def left(self, at_once: int) -> float | None:
        """Seconds until all is done, by the speed so far (at first `at_once`); None until most durations are known."""
        now = time.monotonic()
        with self._lock:
            typical = {stage: fmean(seconds) for stage, seconds in self._seconds.items()}
            rest = {slot: stage for slots in self._rest.values() for slot, stage in slots.items()}
            unknown = sum(stage.seconds is None and stage.stage not in typical for stage in rest.values())
            if not typical or 2 * unknown > len(rest) or (self._unplanned and not self._expected):
                return None
            usual = fmean(typical.values())

            def cost(stage: ExpectedStage) -> float:
                return typical.get(stage.stage, usual) if stage.seconds is None else stage.seconds

            def probable(stage: ExpectedStage) -> float:
                ran = (self._made[stage.stage] + _FORESEEN) / (self._due_to_run[stage.stage] + _FORESEEN)
                return cost(stage) * self._share(stage.stage) * ran

            seconds = {slot: probable(stage) for slot, stage in rest.items()}
            for slot, start in self._running.values():
                seconds[slot] = max(0.0, seconds.get(slot, 0.0) - (now - start))
            unplanned = self._unplanned * self._mean(probable)
            ran = sum(cost(stage) for _, stage in self._ran) + sum(now - start for _, start in self._running.values())
            since = self._ran[0][0] if len(self._ran) == _RECENT else self._first or now
            speed = (ran + _TRUSTED) / (now - since + _TRUSTED / at_once)
        return max((sum(seconds.values()) + unplanned) / speed, max(seconds.values(), default=0.0))

    def _mean(self, of: Callable[[ExpectedStage], float]) -> float:
        """The sum of a figure over a model's expected stages, averaged over models."""
        return fmean([sum(map(of, stages)) for stages in self._expected.values()] or [0.0])

    @property
    def _unplanned(self) -> int:
        """The number of models for which `expect` has not been called yet."""
        return len(self._due - self._completed - self._expected.keys())

    def _share(self, stage: str) -> float:
        """How many stages of this name models have for each expected one."""
        return (self._had[stage] + _FORESEEN) / (self._planned[stage] + _FORESEEN)

    def _end(self, call: StageCall) -> ExpectedStage | None:
        """Counts a stage; returns its expectation."""
        with self._lock:
            self._running.pop(call.title, None)
            self._slots.add(call.slot)
            self._done[call.model] += 1
            return self._rest.get(call.model, {}).pop(call.slot, None)


class ZooObserver(Observer):
    """Receives the events of a run of a zoo, from any thread; this one ignores them."""

    def completed(self, outcome: ModelOutcome) -> None: ...

    def ended(self, record: RunRecord) -> None: ...


@dataclass
class Progress(Observer):
    """The outcomes of a run so far, by model. Passes events on to observers, until the run is aborted."""

    zoo: str
    models: Sequence[str]  # names
    observers: list[ZooObserver] = field(default_factory=list)
    pace: Pace = field(default_factory=Pace)
    planned: dict[str, dict[str, ExpectedStage]] = field(default_factory=dict)  # by slot, of models that have to run
    outcomes: dict[str, ModelOutcome] = field(default_factory=dict)  # in order of completion
    unfinished: dict[str, dict[str, StageOutcome]] = field(default_factory=dict)  # by slot, of models without outcome
    # what came of recipes of other toolchains, by model
    elsewhere: dict[str, tuple[tuple[Delivered, ...], tuple[StageOutcome, ...]]] = field(default_factory=dict)
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
        """Adds an observer of later events."""
        self.observers.append(observer)

    def _listening(self) -> list[ZooObserver]:
        """The observers; none once the run is aborted, so that stages which it was running are not reported."""
        return [] if self.aborted else self.observers

    def add(self, outcome: ModelOutcome) -> None:
        if self.aborted and outcome.status == "failed":
            return  # it was stopped
        self.outcomes[outcome.model] = outcome
        self.unfinished.pop(outcome.model, None)
        self.pace.completed(outcome)
        for observer in self._listening():
            observer.completed(outcome)

    def plan(self, model: str, runner: PlanRunner) -> None:
        """Notes the stages of a model's plan; cached ones take no time."""
        calls = (*runner.will_run.values(), *runner.may_run)
        cached = {done.call.slot: ExpectedStage(done.call.stage.name, 0.0) for done in runner.found}
        self.planned[model] = {call.slot: ExpectedStage(call.stage.name, None) for call in calls} | cached

    def add_elsewhere(self, model: str, delivered: Sequence[Delivered], stages: Sequence[StageOutcome] = ()) -> None:
        """Adds what came of a model's recipes of another toolchain, and the stages that ran there."""
        before, ran = self.elsewhere.get(model, ((), ()))
        self.elsewhere[model] = ((*before, *delivered), (*ran, *stages))

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


def expected_stages(
    models: Iterable[PlannedModel], runs: Iterable[RunRecord], planned: Mapping[str, Mapping[str, ExpectedStage]]
) -> Iterator[tuple[str, Mapping[str, ExpectedStage]]]:
    """Yields the name of each model and its stages by slot, from its last run or else from its plan.

    `runs` are the zoo's, the newest first; `planned` is that of `Progress`. Reading runs may take seconds.
    """
    due = {model.name: model for model in models}
    for run in islice(runs, _RUNS_READ if due else 0):
        for name in [name for name in due if name in run.files]:
            if stages := _of_run(run, due[name]):
                cached = {slot: stage for slot, stage in planned.get(name, {}).items() if stage.seconds == 0}
                yield name, stages | {slot: cached[slot] for slot in cached.keys() & stages.keys()}
                del due[name]
    yield from ((name, planned[name]) for name in due if name in planned)


def _of_run(run: RunRecord, model: PlannedModel) -> dict[str, ExpectedStage]:
    """The stages that a run had for the recipes of a model; none if it did not make files of all recipes."""
    recipes = {recipe.name for recipe in model.recipes}
    stages = [stage for stage in run.models.get(model.name, ()) if recipes & set(stage.recipes)]
    delivered = {recipe for recipe, entry in run.files[model.name].items() if entry.get("path")}
    if not recipes <= delivered & {recipe for stage in stages for recipe in stage.recipes}:
        return {}
    return {stage.slot: ExpectedStage(stage.stage, stage.seconds or None) for stage in stages}


class Throttle:
    """Allows one progress line per pause of some seconds; the first one after the first pause."""

    def __init__(self, pause: float = PAUSE) -> None:
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
    """Formats progress, such as ``3 of 16 samples``."""
    return f"{done} samples" if total is None else f"{done} of {total} samples"
