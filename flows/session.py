"""A run of a zoo: what is to be made, where it is kept, and what has become of it so far."""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from ..artifacts.runs import RunRecord
from ..artifacts.store import Store, open_store
from ..configs.load import load_zoo
from ..errors import StageFailed, TargetError
from ..tasks.catalog import StageName
from ..tasks.executor import Executor, StepResult
from ..tasks.model import PlannedModel
from ..tasks.source_transforms import torchao_calls
from ..tasks.steps import Step
from ..tasks.workers import WorkerLimits, Workers
from .model_run import ModelRun
from .outcome import Failure, ModelOutcome, RecipeOutcome, ZooOutcome, not_applicable
from .publish import check_folders
from .select import select_models

_log = logging.getLogger(__name__)

_CHECK_OPERATORS = "pteforge.tasks.stages.entry:check_operators"
_CHECK_TRANSFORMS = "pteforge.tasks.stages.entry:check_transforms"


class Observer(Protocol):
    """Told what happens, from any thread."""

    def started(self, model: str, step: Step) -> None:
        """A stage begins to run."""

    def progressed(self, model: str, step: Step, done: int, total: int | None) -> None:
        """A stage is through with so many samples of so many."""

    def finished(self, model: str, result: StepResult) -> None:
        """A step is settled."""

    def failed(self, model: str, step: Step, error: Exception) -> None:
        """A step failed."""

    def completed(self, outcome: ModelOutcome) -> None:
        """A model is through."""


class Unobserved:
    """Tells nobody."""

    def started(self, model: str, step: Step) -> None:
        """Nothing."""

    def progressed(self, model: str, step: Step, done: int, total: int | None) -> None:
        """Nothing."""

    def finished(self, model: str, result: StepResult) -> None:
        """Nothing."""

    def failed(self, model: str, step: Step, error: Exception) -> None:
        """Nothing."""

    def completed(self, outcome: ModelOutcome) -> None:
        """Nothing."""


@dataclass
class Session:
    """One run.

    Attributes:
        zoo: name of the zoo.
        models: what to make.
        executor: settles steps.
        workers: where stages run; not started before something has to.
        out: where files go.
        jobs: stages at once.
        observer: told what happens.
        outcomes: by model, as they come.
        server_lost: Prefect failed; what is left is done without it.
    """

    zoo: str
    models: tuple[PlannedModel, ...]
    executor: Executor
    workers: Workers
    out: Path
    jobs: int
    observer: Observer = field(default_factory=Unobserved)
    outcomes: dict[str, ModelOutcome] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)
    began: datetime = field(default_factory=lambda: datetime.now(UTC))
    runs: dict[str, ModelRun] = field(default_factory=dict)
    server_lost: bool = False

    @property
    def store(self) -> Store:
        """Where artifacts are kept."""
        return self.executor.store

    @property
    def complete_from_ledger(self) -> bool:
        """Whether nothing is left to run."""
        return len(self.outcomes) == len(self.models)

    def run_of(self, model: PlannedModel) -> ModelRun:
        """The model's run, begun at the first call."""
        return self.runs.setdefault(model.name, ModelRun(model, self.executor))

    def check_names(self) -> None:
        """Checks, in a worker, what recipes name of torch's operators and of torchao's configs.

        Raises:
            TargetError: there is no such operator, or a config does not take its values.
        """
        if self.complete_from_ledger:
            return
        recipes = [recipe.recipe for model in self.models for recipe in model.recipes]
        self._check(_CHECK_OPERATORS, sorted({named for recipe in recipes for named in recipe.operators}))
        self._check(_CHECK_TRANSFORMS, [list(config) for recipe in recipes for config in torchao_calls(recipe)])

    def _check(self, body: str, names: list[Any]) -> None:
        try:
            if names:
                self.workers.run(body, names, WorkerLimits(timeout=60, memory=2**30))
        except StageFailed as error:
            if error.bad_input:
                raise TargetError(str(error)) from error
            raise

    def settle_from_ledger(self) -> bool:
        """Settles every model that the ledger has whole; says whether that is all of them."""
        for model in self.models:
            if model.name in self.outcomes:
                continue
            run = self.run_of(model)
            run.find()
            if run.complete:
                self.complete(model)
        return self.complete_from_ledger

    def complete(self, model: PlannedModel) -> ModelOutcome:
        """Publishes what a model's run has made and notes its outcome."""
        outcome = self.run_of(model).publish(self.out)
        self.outcomes[model.name] = outcome
        self.observer.completed(outcome)
        return outcome

    def fail(self, model: PlannedModel, error: Exception) -> ModelOutcome:
        """Notes that a model could not be brought to its end at all."""
        failure = Failure.of(model.name, error)
        recipes = tuple(RecipeOutcome(recipe.name, "failed", failure=failure) for recipe in model.recipes)
        outcome = ModelOutcome(model.name, (*recipes, *not_applicable(model.not_applicable)), ran=0, cached=0)
        self.outcomes[model.name] = outcome
        self.observer.completed(outcome)
        return outcome

    def lose_server(self, problem: str) -> None:
        """Notes that Prefect failed, and says so once."""
        if not self.server_lost:
            self.server_lost = True
            _log.warning("Prefect failed (is its server still there?), the run goes on without it: %s", problem)

    def outcome(self) -> ZooOutcome:
        """What has become of the models so far."""
        done = tuple(self.outcomes[model.name] for model in self.models if model.name in self.outcomes)
        return ZooOutcome(self.zoo, done, time.monotonic() - self.started)

    def record(self) -> None:
        """Writes the run into the store, for `pteforge why`."""
        stages = {name: run.stage_outcomes() for name, run in self.runs.items()}
        self.store.runs.write(
            RunRecord(
                id=uuid.uuid4().hex,
                zoo=self.zoo,
                started=self.began.isoformat(timespec="milliseconds"),
                seconds=time.monotonic() - self.started,
                models=stages,
            )
        )


prepared: ContextVar[Session | None] = ContextVar("prepared", default=None)
"""A session that the command line has opened already, for the flow that it starts."""


@contextmanager
def open_session(  # noqa: PLR0913 - what the command line has options for
    zoo: Path,
    *,
    models: str = "*",
    recipes: str = "*",
    store: str | None = None,
    out: Path | None = Path("out"),
    overrides: Sequence[str] = (),
    jobs: int | None = None,
    until: str | None = None,
    debug: bool = False,
) -> Iterator[Session]:
    """Reads and checks everything that can be checked without work; the session's processes end with it.

    Args:
        zoo: the zoo file.
        models: glob of model names, or several with commas between.
        recipes: glob of recipe names, or several with commas between.
        store: URL or folder of the artifact store; None for the one in the user's cache folder.
        out: folder for the produced files; None where none will be written.
        overrides: ``KEY=VALUE`` each.
        jobs: stages at once; None for one per core.
        until: name of the last stage to go through; None where files are to be made.
        debug: every recipe in debug mode, whatever it says.

    Raises:
        InputError: something given cannot be used.
    """
    loaded = load_zoo(zoo, overrides)
    chosen = select_models(loaded, models, recipes)
    if until:
        last = StageName.named(until)
        chosen = tuple(model.ending_with(last) for model in chosen)
    if debug:
        chosen = tuple(model.for_debugging() for model in chosen)
    check_folders(out.absolute() / model.name for model in chosen if out)
    jobs = jobs or os.cpu_count() or 1
    with open_store(store) as opened, Workers(jobs=jobs) as workers:
        yield Session(loaded.zoo.name, chosen, Executor(opened, workers), workers, (out or Path()).absolute(), jobs)
