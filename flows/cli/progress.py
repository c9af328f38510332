"""What a run prints: its progress, failures as they happen, and in the end the table of its files."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from itertools import islice
from pathlib import Path
from threading import Thread
from typing import get_args

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.measure import Measurement
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from ...artifacts.runs import RunRecord
from ...errors import first_line, printable
from ...tasks.engine.keys.inputs import ALL_VARIABLES
from ...tasks.engine.runner import Done, StageCall
from ...tasks.results.causes import awaits_diagnosis
from ...tasks.results.delivered import Delivered, Failure, columns_of
from ...tasks.results.diagnosis import as_text, without_advice
from ..releases.records import Published
from ..reports.changes import Compared, State, compare
from ..reports.figures_text import ladders_table, open_table, places_of, relative
from ..run.outcome import KEPT_AS, ModelOutcome, ZooOutcome
from ..run.progress import PAUSE, Pace, Throttle, ZooObserver, samples_done
from ..run.session import Session
from .terminal import guarded_streams, open_console, verbose

_LOG_LINES = 15  # of a failed step that are printed
_ROWS = 20  # of the table; of more files, those that are as before are left out
_NOTES = 12  # lines below it
_FILES = 3  # that are not watched, of each model
_STYLES = {"made": "green", "cached": "cyan", "failed": "bold red", "not applicable": "dim"}


def print_summary(
    outcome: ZooOutcome, page: Path | None = None, before: RunRecord | None = None, *, quiet: bool = False
) -> None:
    """Prints a row per file, ladders, notes and totals, with the path of the run's page; if `quiet`, only totals.

    Of many files, only failed, new and changed ones (since the run `before`) have rows, a screenful, or ``--verbose``.
    """
    console = open_console()
    if not quiet:
        _print_files(compare(outcome.recipes, before), outcome, console)
    files = outcome.files
    where = f" in {relative(files[0].parent.parent)}" if files else ""
    failed = f", {len(outcome.failures)} failed" if outcome.failures else ""
    skipped = sum(recipe.status == "not applicable" for recipe in outcome.recipes)
    others = failed + (f", {skipped} not applicable" if skipped else "")
    stages = f"{outcome.ran} stages run, {outcome.cached} cached, {outcome.seconds:.1f} s"
    console.print(f"{outcome.summary}{where}{others}; {stages}" + (f"; see {relative(page)}" if page else ""))


def _print_files(files: Sequence[Compared], outcome: ZooOutcome, console: Console) -> None:
    rows, most = files, None
    if len(files) > _ROWS and not verbose():
        files = sorted(files, key=lambda file: get_args(State).index(file.state))
        news = [file for file in files if file.state in ("failed", "changed", "new")]
        rows = [file for index, file in enumerate(news) if file.state == "failed" or index < _ROWS]
        most = _NOTES
    if rows:
        console.print(_table(rows, console))
    if rest := files[len(rows) :]:
        counts = [f"{count} files are {state}" for state, count in Counter(file.state for file in rest).items()]
        console.print(Text(f"{', '.join(counts)}; `pteforge --verbose export` lists all", "dim"), soft_wrap=True)
    shown = [file.result for file in rows]
    if ladders := [(recipe.name, recipe.ladder) for recipe in shown if recipe.ladder]:
        console.print(ladders_table(ladders))
    lines = [*_notes(outcome, shown)]
    for line in lines[:most]:
        console.print(line, soft_wrap=True)
    telling = sum(note.telling and not note.listed for file in rest for note in file.result.notes)
    if others := telling + len(lines[most:] if most else ()):
        console.print(Text(f"{others} more notes are on the page about the run", "yellow"))


def _table(rows: Sequence[Compared], console: Console) -> Table:
    """A row per file, without empty columns, and without the least important ones where not all fit."""
    since = ("last run",) if any(file.change for file in rows) else ()
    columns = columns_of(file.result for file in rows)
    names = [*columns]
    for left_out in [None, *sorted(columns, key=lambda name: -columns[name].column)[:-2]]:
        names = [name for name in names if name != left_out]
        table = open_table(("model", "recipe", "status", *since), names)
        for file in rows:
            recipe, facts = file.result, file.result.columns
            style = "yellow" if recipe.path and not recipe.verified else _STYLES[recipe.status]
            status = Text(recipe.standing, style, overflow="fold")
            figures = (facts[name].text if name in facts else "" for name in names)
            table.add_row(recipe.model, recipe.recipe, status, *([file.change] if since else []), *figures)
        if Measurement.get(console, console.options.update(max_width=10_000), table).maximum <= console.width:
            break
    return table


def _notes(outcome: ZooOutcome, shown: Sequence[Delivered]) -> Iterator[Text]:
    """Notes on unwatched input, on assets, and on the files that are shown, without repeats."""
    models = {recipe.model for recipe in shown}
    for model in outcome.models:
        if model.unwatched:
            yield Text(_unwatched(model), "yellow")
        assets = dict.fromkeys(name for recipe in model.recipes for name in recipe.assets)
        if assets and model.model in models:
            yield Text(f"next to the files of {model.model}: {', '.join(assets)}", "dim")
    recipes: dict[tuple[str, str, bool], list[str]] = {}  # that a note is about
    for result in shown:
        for fact in result.notes:
            if not fact.listed:
                recipes.setdefault((result.model, fact.note, fact.telling), []).append(result.recipe)
    for (model_name, text, telling), names in recipes.items():
        yield Text(f"{model_name}/{', '.join(names)}: {text}", "yellow" if telling else "dim")
    for line in places_of(outcome.recipes):
        yield Text(line, "dim")


def _unwatched(model: ModelOutcome) -> str:
    """Names what a model has read that is not watched, and what to do about it."""
    files = [printable(_short_path(name)) for name in model.unwatched if name != ALL_VARIABLES]
    named = files[:_FILES] + ([f"{len(files) - _FILES} more files"] if len(files) > _FILES else [])
    advice = ["declare files under `files`"] if files else []
    if ALL_VARIABLES in model.unwatched:
        named.append("all environment variables at once")
        advice.append("look variables up by name")
    what = " and ".join(filter(None, (", ".join(named[:-1]), named[-1])))
    return f"{model.model} read {what}, so a change there is not noticed: {', '.join(advice)}"


def _short_path(name: str) -> str:
    path, home = Path(name), Path.home()
    return str(Path("~") / path.relative_to(home) if path.is_relative_to(home) else path)


def print_failures(outcome: ZooOutcome, failures: Failures) -> None:
    """Prints all failures of a run that were not printed as they happened."""
    for model in outcome.models:
        failures.print_rest(model)


class Failures:
    """Prints each failure once, at once or in the end, with causes or log lines; whole messages are on the `page`."""

    def __init__(self, page: Path | None = None) -> None:
        self._where = relative(page) if page else Path("the output of --json")
        self._printed: dict[tuple[str, str], list[str]] = defaultdict(list)  # problems, by model and stage
        self._lock = threading.Lock()

    def print_rest(self, outcome: ModelOutcome, console: Console | None = None) -> None:
        """Prints the failures of a model that were not printed when they happened."""
        for recipe in outcome.recipes:
            if recipe.failure:
                self.print(outcome.model, recipe.failure, console)

    def print(self, model: str, failure: Failure, console: Console | None = None) -> None:
        with self._lock:
            problem, console = failure.problem, console or open_console(stderr=True)
            printed = self._printed[model, failure.stage]
            before = next((earlier for earlier in printed if f"{problem}; ".startswith(f"{earlier}; ")), None)
            printed[:0] = [problem, problem.partition(KEPT_AS)[0]]
            if before is not None:
                if advice := problem.removeprefix(before).removeprefix("; "):  # found since then
                    console.print(Text(f"\n{failure.named(model)}: {advice}", "bold red"), soft_wrap=True)
                return
            for text in self._lines(model, failure):
                console.print(text, soft_wrap=True)

    def _lines(self, model: str, failure: Failure) -> Iterator[Text]:
        problem = without_advice(first_line(failure.problem)) if failure.diagnosed else failure.problem
        yield Text(f"\n{failure.named(model)}: {problem}", "bold red")
        if failure.findings:
            yield Text(as_text(failure.findings), "yellow")
        if failure.diagnosed:
            yield Text(f"... the whole message and the log are in {self._where}", "dim")
            return
        log = failure.log_tail
        if failure.bad_input or failure.findings:  # they say what the traceback says
            log = log.partition("Traceback (most recent call last)")[0]
        lines = log.rstrip().splitlines()
        if hidden := len(lines[:-_LOG_LINES]):
            yield Text(f"... {hidden} earlier lines are in {self._where}", "dim")
        if lines:
            yield Text("\n".join(lines[-_LOG_LINES:]))


def print_published(published: Published) -> None:
    """Prints where the channel is now, and why, if it did not move."""
    console, errors, channel = open_console(), open_console(stderr=True), repr(published.channel)
    if published.regressions:
        errors.print(Text(f"{channel} at {published.url} stays where it is:", "bold red"), soft_wrap=True)
        for regression in published.regressions:
            errors.print(Text(f"  {regression}", "red"), soft_wrap=True)
        errors.print(Text(f"to accept this: {published.acceptance}"), soft_wrap=True)
    for name in published.missing:
        console.print(Text(f"{name} was in {channel}, and is not in this release", "yellow"))
    news = "released" if published.new else "nothing new to release:"
    state = "is kept" if published.reasons else f"is {channel}{'' if published.moved else ' already'}"
    console.print(Text(f"{news} {published.release} at {published.url}, which {state}"), soft_wrap=True)
    if published.withdrawn:
        rolled_back = f"{channel} stays at {published.current}: it was rolled back from these files"
        accept = f"to release them all the same: {published.acceptance}"
        console.print(Text(f"{rolled_back}; {accept}", "yellow"), soft_wrap=True)
    if published.removed:
        console.print(Text(f"{len(published.removed)} old releases are removed"))


_BAR = 14  # cells
_BESIDE_STAGES = 3  # lines of a terminal that are not for running stages: the heading, how many more run, the cursor


def _is_printed_at_once(call: StageCall) -> bool:
    """Whether a failure is printed as it happens: no attempt's, and none of `gate`, which waits for the file's path."""
    return not call.id.attempt and call.stage.name != "gate"


@contextmanager
def observe(session: Session, failures: Failures | None = None, *, quiet: bool) -> Iterator[None]:
    """Shows the session's progress on standard error; failures whole with `failures`, and otherwise in one line."""
    console = open_console(stderr=True)
    if quiet:
        yield
    elif console.is_terminal:
        at_once = session.workers.jobs * (session.run_config.processes or 1)
        bar = Bar(console, session.progress.pace, failures, models=len(session.models), at_once=at_once)
        session.progress.observe(bar)
        Thread(target=session.expect_stages, daemon=True).start()
        with Live(bar, console=console, transient=True), guarded_streams():  # Live has replaced the streams
            yield
    else:
        session.progress.observe(Lines(failures))
        yield


@dataclass(eq=False)
class Bar(ZooObserver):
    """A live display of at most the terminal's size: progress and the time left, and below, each stage that runs."""

    console: Console
    pace: Pace
    failures: Failures | None = None
    _: KW_ONLY
    models: int  # how many models the run has
    at_once: int  # how many stages run at once
    samples: dict[str, tuple[int, int | None]] = field(default_factory=dict)  # done and total, by title of the call

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._heading()
        running = self.pace.running()
        room = max(1, console.height - _BESIDE_STAGES)
        for title, seconds in islice(running.items(), room):
            yield self._line(title, seconds, options.max_width)
        if len(running) > room:
            yield Text(f"  and {len(running) - room} more", style="dim", no_wrap=True)

    def progressed(self, call: StageCall, done: int, total: int | None) -> None:
        self.samples[call.title] = done, total

    def finished(self, done: Done) -> None:
        self.samples.pop(done.call.title, None)

    def failed(self, call: StageCall, error: Exception) -> None:
        self.samples.pop(call.title, None)
        if self.failures is None:
            self.console.print(f"{call.title} failed: {error}", style="red")
        elif _is_printed_at_once(call) and not awaits_diagnosis(call.stage.name, error):
            self.failures.print(call.model, Failure.of(str(call.id), error), self.console)

    def completed(self, outcome: ModelOutcome) -> None:
        if self.failures:
            self.failures.print_rest(outcome, self.console)

    def _heading(self) -> Table:
        done, known = self.pace.done, self.pace.known
        row = Table.grid(Column(width=_BAR), Column(no_wrap=True, overflow="ellipsis", ratio=1), padding=(0, 1))
        row.add_row(ProgressBar(total=known, completed=done, width=_BAR), ", ".join(self._figures(done, known)))
        return row

    def _figures(self, done: int, known: int) -> Iterator[str]:
        """The most important first: a narrow terminal cuts the rest."""
        yield f"{done}/{known} stages" if known else "starting workers and Prefect"
        yield _clock(time.monotonic() - self.pace.start)
        if done < known and (left := self.pace.left(self.at_once)) is not None:
            yield f"about {_clock(left)} left"
        yield f"{self.pace.models}/{self.models} models"
        yield f"{self.pace.cached} cached"

    def _line(self, title: str, seconds: float, width: int) -> Text:
        right = f"{_clock(seconds):>7}"
        if samples := self.samples.get(title):
            done, total = samples
            right = f"{done} samples{right}" if total is None else f"{done}/{total} samples{right}"
        line = Text(f"  {printable(title)}", no_wrap=True)
        line.truncate(max(1, width - len(right) - 1), overflow="ellipsis", pad=True)
        return line.append(f" {right}")


def _clock(seconds: float) -> str:
    """Formats seconds, such as ``0:07`` or ``1:02:03``."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


@dataclass(eq=False)
class Lines(ZooObserver):
    """One line per step that ran or failed, and per model; for steps that count samples, one in `pause` seconds."""

    failures: Failures | None = None
    pause: float = PAUSE
    throttles: dict[str, Throttle] = field(default_factory=dict)

    def progressed(self, call: StageCall, done: int, total: int | None) -> None:
        if self.throttles.setdefault(call.title, Throttle(self.pause)).due():
            sys.stderr.write(f"{call.title}: {samples_done(done, total)}\n")

    def finished(self, done: Done) -> None:
        if not done.cached:
            sys.stderr.write(f"{done.call.title}: {'; '.join([f'{done.seconds:.1f} s', *done.remarks])}\n")

    def failed(self, call: StageCall, error: Exception) -> None:
        if self.failures is None:
            sys.stderr.write(f"{call.title}: failed: {first_line(error)}\n")
        elif awaits_diagnosis(call.stage.name, error):
            sys.stderr.write(f"{call.title}: failed; looking for the cause\n")
        elif _is_printed_at_once(call):
            self.failures.print(call.model, Failure.of(str(call.id), error))

    def completed(self, outcome: ModelOutcome) -> None:
        if self.failures:
            self.failures.print_rest(outcome)
        failed = sum(recipe.failure is not None for recipe in outcome.recipes)
        due = sum(recipe.status != "not applicable" for recipe in outcome.recipes)
        done = f"stages up to {outcome.until} done" if outcome.until else outcome.proof
        result = f"{failed} of {due} recipes failed" if failed else done if due else "no recipe applies"
        sys.stderr.write(f"{outcome.model}: {result} ({outcome.ran} stages run, {outcome.cached} cached)\n")
