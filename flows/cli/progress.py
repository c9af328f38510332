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
from ..session import Session


@contextmanager
def observe(session: Session, *, quiet: bool) -> Iterator[None]:
    """Shows the session's progress on standard error for as long as the context is open."""
    console = Console(stderr=True)
    if quiet:
        yield
    elif console.is_terminal:
        with _bar(console) as progress:
            session.observer = Bar(progress, len(session.models) - len(session.outcomes))
            yield
    else:
        session.observer = Lines()
        yield


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("models, {task.fields[stages]}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )


class Bar:
    """A live bar: models through, stages run and found, and what runs now."""

    def __init__(self, progress: Progress, models: int) -> None:
        """Adds a bar for that many models."""
        self._progress = progress
        self._lock = Lock()
        self._ran = self._cached = 0
        self._task: TaskID = progress.add_task("starting workers and Prefect", total=models, stages="")

    def started(self, model: str, step: Step) -> None:
        """Names the step."""
        self._progress.update(self._task, description=f"{model} {step.name}")

    def finished(self, model: str, result: StepResult) -> None:
        """Counts it."""
        del model
        with self._lock:
            self._cached += result.cached
            self._ran += not result.cached
        self._progress.update(self._task, stages=f"{self._ran} stages run, {self._cached} cached")

    def failed(self, model: str, step: Step, error: Exception) -> None:
        """Says it above the bar."""
        self._progress.console.print(f"{model} {step.name} failed: {error}", style="red", markup=False, highlight=False)

    def completed(self, outcome: ModelOutcome) -> None:
        """Counts the model."""
        del outcome
        self._progress.advance(self._task)


class Lines:
    """One line for each step that ran, each that failed, and each model."""

    def started(self, model: str, step: Step) -> None:
        """Nothing: a line when it is done is enough."""

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
