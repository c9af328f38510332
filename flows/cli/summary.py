"""The table at the end of a run, and what failed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.text import Text

from ..figures_text import format_error, format_score, format_sqnr
from ..outcome import RecipeOutcome, ZooOutcome
from .ladder_table import ladders_table, open_table

_STYLES = {"made": "green", "cached": "cyan", "failed": "bold red", "not applicable": "dim"}


def print_summary(outcome: ZooOutcome) -> None:
    """One row per file."""
    console = open_console()
    table = open_table()
    for name in ("model", "recipe"):
        table.add_column(name, overflow="fold")
    table.add_column("status")
    for name in ("size", "max abs error", "SQNR", "cases"):
        table.add_column(name, justify="right", no_wrap=True)
    if scored := any(recipe.accuracy for model in outcome.models for recipe in model.recipes):
        table.add_column("accuracy", justify="right", no_wrap=True)
    for model in outcome.models:
        for recipe in model.recipes:
            accuracy = [_accuracy(recipe)] if scored and recipe.path else []
            table.add_row(model.model, recipe.recipe, _status(recipe), *_cells(recipe), *accuracy)
    console.print(table)
    ladders = [
        (f"{model.model}/{recipe.recipe}", recipe.ladder)
        for model in outcome.models
        for recipe in model.recipes
        if recipe.ladder
    ]
    if ladders:
        console.print(ladders_table(ladders))
    for line in _notes(outcome):
        console.print(line, soft_wrap=True)
    files = outcome.files
    where = f" in {_shown(files[0].parent.parent)}" if files else ""
    ran, cached = sum(m.ran for m in outcome.models), sum(m.cached for m in outcome.models)
    failed = f", {len(outcome.failures)} failed" if outcome.failures else ""
    spared = sum(recipe.status == "not applicable" for model in outcome.models for recipe in model.recipes)
    others = failed + (f", {spared} not applicable" if spared else "")
    console.print(
        f"{len(files)} files verified{where}{others}; {ran} stages run, {cached} cached, {outcome.seconds:.1f} s",
        highlight=False,
    )


def _notes(outcome: ZooOutcome) -> Iterator[Text]:
    """What was not to be made, what a fat file lacks, and which of its payloads could not be run here."""
    for model in outcome.models:
        for recipe in model.recipes:
            name = f"{model.model}/{recipe.recipe}"
            if recipe.reason:
                yield Text(f"{name} does not apply: {recipe.reason}", "dim")
            for payload, why in recipe.left_out.items():
                yield Text(f"{name} is without {payload}: {why}", "yellow")
            for payload, why in (recipe.figures.not_run if recipe.figures else {}).items():
                yield Text(f"{name}: {payload} was not run: it {why}", "dim")


def print_failures(outcome: ZooOutcome) -> None:
    """Each failed step once, with the end of its log."""
    console = Console(stderr=True)
    shown = set()
    for model in outcome.models:
        for recipe in model.recipes:
            failure = recipe.failure
            if failure is None or (model.model, failure.step) in shown:
                continue
            shown.add((model.model, failure.step))
            console.print(Text(f"\n{model.model} {failure.step}: {failure.problem}", "bold red"), soft_wrap=True)
            if failure.log_tail and not failure.bad_input:
                console.print(Text(failure.log_tail.rstrip()), soft_wrap=True)


def open_console() -> Console:
    """Standard output, with room for tables."""
    console = Console()
    return console if console.is_terminal else Console(width=160)  # a pipe has no width of its own


def format_size(size: int) -> str:
    """Bytes for people: 1023 B, 1.0 KiB, 3.4 MiB."""
    amount, units = float(size), ["B", "KiB", "MiB", "GiB", "TiB"]
    while amount >= 1024 and len(units) > 1:
        amount, units = amount / 1024, units[1:]
    return f"{amount:.0f} {units[0]}" if units[0] == "B" else f"{amount:.1f} {units[0]}"


def _cells(recipe: RecipeOutcome) -> tuple[str, ...]:
    if recipe.figures is None or recipe.path is None:
        return ()
    worst = recipe.figures.overall
    return (format_size(recipe.size), format_error(worst.max_abs_error), format_sqnr(worst), str(worst.cases))


def _accuracy(recipe: RecipeOutcome) -> str:
    """The least score of a file's payloads, and how far from eager's it is."""
    if recipe.accuracy is None:
        return ""
    worst, eager = recipe.accuracy.worst, recipe.accuracy.eager
    return format_score(worst) + ("" if eager is None else f" ({worst - eager:+.2g})")


def _status(recipe: RecipeOutcome) -> Text:
    at = f" at {recipe.failure.step}" if recipe.failure else ""
    return Text(recipe.status + at, _STYLES[recipe.status], overflow="fold")


def _shown(folder: Path) -> Path:
    return folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder
