"""Progress of a run: a bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from ...errors import first_line
from ...tasks.runner import Done, StageCall
from ..outcome import ModelOutcome
from ..session import Session
from ..throttle import PAUSE, Throttle, samples_done


@contextmanager
def observe(session: Session, *, quiet: bool) -> Iterator[None]:
    """Shows the session's progress on standard error while the context is open."""
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
    """A live bar with models, stages and the current step; stages that count samples get a bar of their own."""

    def __init__(self, progress: Progress, models: int) -> None:
        self._progress = progress
        self._lock = Lock()
        self._ran = self._cached = 0
        self._task: TaskID = progress.add_task("starting workers and Prefect", total=models, counted="models")
        self._counting: dict[str, TaskID] = {}

    def started(self, call: StageCall) -> None:
        self._progress.update(self._task, description=call.title)

    def progressed(self, call: StageCall, done: int, total: int | None) -> None:
        if call.title not in self._counting:
            self._counting[call.title] = self._progress.add_task(call.title, total=total, counted="samples")
        self._progress.update(self._counting[call.title], completed=done, total=total)

    def finished(self, done: Done) -> None:
        self._remove(done.call)
        with self._lock:
            self._cached += done.cached
            self._ran += not done.cached
        self._progress.update(self._task, counted=f"models, {self._ran} stages run, {self._cached} cached")

    def failed(self, call: StageCall, error: Exception) -> None:
        self._remove(call)
        self._progress.console.print(f"{call.title} failed: {error}", style="red", markup=False, highlight=False)

    def completed(self, outcome: ModelOutcome) -> None:
        del outcome
        self._progress.advance(self._task)

    def _remove(self, call: StageCall) -> None:
        if (task := self._counting.pop(call.title, None)) is not None:
            self._progress.remove_task(task)


class Lines:
    """One line per step that ran or failed, and per model; rate-limited lines for steps that count samples."""

    def __init__(self, pause: float = PAUSE) -> None:
        """Pauses so many seconds before each progress line of a step."""
        self._pause = pause
        self._throttles: dict[str, Throttle] = {}

    def started(self, call: StageCall) -> None:
        """Prints nothing: a line at the end is enough."""

    def progressed(self, call: StageCall, done: int, total: int | None) -> None:
        if self._throttles.setdefault(call.title, Throttle(self._pause)).due():
            sys.stderr.write(f"{call.title}: {samples_done(done, total)}\n")

    def finished(self, done: Done) -> None:
        if not done.cached:
            sys.stderr.write(f"{done.call.title}: {done.seconds:.1f} s\n")

    def failed(self, call: StageCall, error: Exception) -> None:
        first = first_line(error)
        sys.stderr.write(f"{call.title}: failed: {first}\n")

    def completed(self, outcome: ModelOutcome) -> None:
        failed = sum(recipe.failure is not None for recipe in outcome.recipes)
        due = sum(recipe.status != "not applicable" for recipe in outcome.recipes)
        done = f"stages up to {outcome.until} done" if outcome.until else "verified"
        result = f"{failed} of {due} recipes failed" if failed else done if due else "no recipe applies"
        sys.stderr.write(f"{outcome.model}: {result} ({outcome.ran} stages run, {outcome.cached} cached)\n")
