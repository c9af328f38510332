"""Showing a run while it goes on: a bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from ...tasks.executor import StepResult
from ...tasks.steps import Step
from ..outcome import ModelOutcome
from ..seldom import PAUSE, Seldom, samples_done
from ..session import Session


@contextmanager
def observe(session: Session, *, quiet: bool) -> Iterator[None]:
    """Shows the session's progress on standard error for as long as the context is open."""
    console = Console(stderr=True)
    if quiet:
        yield
    elif console.is_terminal:
        with bar_on(console) as progress:
            session.observer = Bar(progress, len(session.models) - len(session.outcomes))
            yield
    else:
        session.observer = Lines()
        yield


def bar_on(console: Console) -> Progress:
    """Rich's display with the columns of `Bar`."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[counted]}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )


class Bar:
    """A live bar: models through, stages run and found, and what runs now; a bar more for each stage that counts."""

    def __init__(self, progress: Progress, models: int) -> None:
        """Adds a bar for that many models."""
        self._progress = progress
        self._lock = Lock()
        self._ran = self._cached = 0
        self._task: TaskID = progress.add_task("starting workers and Prefect", total=models, counted="models")
        self._counting: dict[tuple[str, str], TaskID] = {}

    def started(self, model: str, step: Step) -> None:
        """Names the step."""
        self._progress.update(self._task, description=f"{model} {step.name}")

    def progressed(self, model: str, step: Step, done: int, total: int | None) -> None:
        """Moves the step's own bar."""
        named = (model, step.name)
        if named not in self._counting:
            self._counting[named] = self._progress.add_task(" ".join(named), total=total, counted="samples")
        self._progress.update(self._counting[named], completed=done, total=total)

    def finished(self, model: str, result: StepResult) -> None:
        """Counts it."""
        self._take_away(model, result.step)
        with self._lock:
            self._cached += result.cached
            self._ran += not result.cached
        self._progress.update(self._task, counted=f"models, {self._ran} stages run, {self._cached} cached")

    def failed(self, model: str, step: Step, error: Exception) -> None:
        """Says it above the bar."""
        self._take_away(model, step)
        self._progress.console.print(f"{model} {step.name} failed: {error}", style="red", markup=False, highlight=False)

    def completed(self, outcome: ModelOutcome) -> None:
        """Counts the model."""
        del outcome
        self._progress.advance(self._task)

    def _take_away(self, model: str, step: Step) -> None:
        if (task := self._counting.pop((model, step.name), None)) is not None:
            self._progress.remove_task(task)


class Lines:
    """One line for each step that ran, each that failed, and each model; one now and then for a step that counts."""

    def __init__(self, pause: float = PAUSE) -> None:
        """Waits so many seconds before it says how far a step is, and as many before it says so again."""
        self._pause = pause
        self._seldom: dict[tuple[str, str], Seldom] = {}

    def started(self, model: str, step: Step) -> None:
        """Nothing: a line when it is done is enough."""

    def progressed(self, model: str, step: Step, done: int, total: int | None) -> None:
        """A line, unless there was one a moment ago."""
        if self._seldom.setdefault((model, step.name), Seldom(self._pause)).due():
            sys.stderr.write(f"{model} {step.name}: {samples_done(done, total)}\n")

    def finished(self, model: str, result: StepResult) -> None:
        """A line for what ran; what was found is counted with the model."""
        if not result.cached:
            sys.stderr.write(f"{model} {result.step.name}: {result.seconds:.1f} s\n")

    def failed(self, model: str, step: Step, error: Exception) -> None:
        """The first line of what went wrong."""
        first = (str(error) or repr(error)).splitlines()[0]
        sys.stderr.write(f"{model} {step.name}: failed: {first}\n")

    def completed(self, outcome: ModelOutcome) -> None:
        """How the model came out."""
        failed = sum(recipe.failure is not None for recipe in outcome.recipes)
        due = sum(recipe.status != "not applicable" for recipe in outcome.recipes)
        how = f"{failed} of {due} recipes failed" if failed else "verified" if due else "no recipe applies"
        sys.stderr.write(f"{outcome.model}: {how} ({outcome.ran} stages run, {outcome.cached} cached)\n")
