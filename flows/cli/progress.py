"""Progress of a run: a live display in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from threading import Thread

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from ...errors import first_line, printable
from ...tasks.engine.runner import Done, StageCall
from ...tasks.results.causes import awaits_diagnosis
from ...tasks.results.delivered import Failure
from ..run.outcome import ModelOutcome
from ..run.pace import PAUSE, Pace, Throttle, samples_done
from ..run.session import NullZooObserver, Session
from .summary import Failures
from .terminal import guarded_streams, open_console

_KEEPS_FILES = "gate"  # the stage whose failures are printed when the model is done, with where its file is kept
_BAR = 14  # cells
_BESIDE_STAGES = 3  # lines of a terminal that are not for running stages: the heading, how many more run, the cursor


def _is_printed_at_once(call: StageCall) -> bool:
    """Whether a failure is printed as it happens: not that of a file that is only tried, or that is kept."""
    return not call.id.attempt and call.stage.name != _KEEPS_FILES


@contextmanager
def observe(session: Session, failures: Failures | None = None, *, quiet: bool) -> Iterator[None]:
    """Shows the session's progress on standard error while the context is open.

    Failures are printed whole as they happen, or in one line where the caller keeps none to print them itself.
    """
    console = open_console(stderr=True)
    if quiet:
        yield
    elif console.is_terminal:
        session.observer = bar = Bar(
            console, session.pace, failures, models=len(session.models), at_once=session.at_once
        )
        Thread(target=session.expect_stages, daemon=True).start()
        with Live(bar, console=console, transient=True), guarded_streams():  # it has put others in their place
            yield
    else:
        session.observer = Lines(failures)
        yield


class Bar(NullZooObserver):
    """A live display: how many stages are done and how long the rest will take, and below, each stage that runs.

    It is as wide and as high as the terminal at most.
    """

    def __init__(
        self, console: Console, pace: Pace, failures: Failures | None = None, *, models: int, at_once: int
    ) -> None:
        """Displays a run of so many models on a terminal; so many stages of it run at once."""
        self._console = console
        self._pace = pace
        self._failures = failures
        self._models = models
        self._at_once = at_once
        self._samples: dict[str, tuple[int, int | None]] = {}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._heading()
        running = self._pace.running()
        room = max(1, console.height - _BESIDE_STAGES)
        for title, seconds in islice(running.items(), room):
            yield self._line(title, seconds, options.max_width)
        if len(running) > room:
            yield Text(f"  and {len(running) - room} more", style="dim", no_wrap=True)

    def progressed(self, call: StageCall, done: int, total: int | None) -> None:
        self._samples[call.title] = done, total

    def finished(self, done: Done) -> None:
        self._samples.pop(done.call.title, None)

    def failed(self, call: StageCall, error: Exception) -> None:
        self._samples.pop(call.title, None)
        if self._failures is None:
            self._console.print(f"{call.title} failed: {error}", style="red")
        elif _is_printed_at_once(call) and not awaits_diagnosis(call.stage.name, error):
            self._failures.print(call.model, Failure.of(str(call.id), error), self._console)

    def completed(self, outcome: ModelOutcome) -> None:
        if self._failures:
            self._failures.print_rest(outcome, self._console)

    def _heading(self) -> Table:
        pace = self._pace
        done, known = pace.done, pace.known
        row = Table.grid(Column(width=_BAR), Column(no_wrap=True, overflow="ellipsis", ratio=1), padding=(0, 1))
        row.add_row(ProgressBar(total=known, completed=done, width=_BAR), ", ".join(self._figures(done, known)))
        return row

    def _figures(self, done: int, known: int) -> Iterator[str]:
        """What matters most first: a narrow terminal cuts the rest."""
        pace = self._pace
        yield f"{done}/{known} stages" if known else "starting workers and Prefect"
        yield _clock(time.monotonic() - pace.start)
        if done < known and (left := pace.left(self._at_once)) is not None:
            yield f"about {_clock(left)} left"
        yield f"{pace.models}/{self._models} models"
        yield f"{pace.cached} cached"

    def _line(self, title: str, seconds: float, width: int) -> Text:
        right = f"{_clock(seconds):>7}"
        if samples := self._samples.get(title):
            done, total = samples
            right = f"{done} samples{right}" if total is None else f"{done}/{total} samples{right}"
        line = Text(f"  {printable(title)}", no_wrap=True)
        line.truncate(max(1, width - len(right) - 1), overflow="ellipsis", pad=True)
        return line.append(f" {right}")


def _clock(seconds: float) -> str:
    """For example ``0:07`` or ``1:02:03``."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


class Lines(NullZooObserver):
    """One line per step that ran or failed, and per model; rate-limited lines for steps that count samples."""

    def __init__(self, failures: Failures | None = None, pause: float = PAUSE) -> None:
        """Pauses so many seconds before each progress line of a step."""
        self._failures = failures
        self._pause = pause
        self._throttles: dict[str, Throttle] = {}

    def progressed(self, call: StageCall, done: int, total: int | None) -> None:
        if self._throttles.setdefault(call.title, Throttle(self._pause)).due():
            sys.stderr.write(f"{call.title}: {samples_done(done, total)}\n")

    def finished(self, done: Done) -> None:
        if not done.cached:
            sys.stderr.write(f"{done.call.title}: {done.seconds:.1f} s\n")

    def failed(self, call: StageCall, error: Exception) -> None:
        if self._failures is None:
            sys.stderr.write(f"{call.title}: failed: {first_line(error)}\n")
        elif awaits_diagnosis(call.stage.name, error):
            sys.stderr.write(f"{call.title}: failed; looking for the cause\n")
        elif _is_printed_at_once(call):
            self._failures.print(call.model, Failure.of(str(call.id), error))

    def completed(self, outcome: ModelOutcome) -> None:
        if self._failures:
            self._failures.print_rest(outcome)
        failed = sum(recipe.failure is not None for recipe in outcome.recipes)
        due = sum(recipe.status != "not applicable" for recipe in outcome.recipes)
        done = f"stages up to {outcome.until} done" if outcome.until else outcome.proof
        result = f"{failed} of {due} recipes failed" if failed else done if due else "no recipe applies"
        sys.stderr.write(f"{outcome.model}: {result} ({outcome.ran} stages run, {outcome.cached} cached)\n")
