"""`pteforge diff`."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import cache
from typing import TYPE_CHECKING, Annotated

import typer

from ...errors import InputError, printable
from ..reports.figures_text import format_size, markdown, markdown_table
from . import completion
from .options import AS_JSON, STORE, argument, open_existing_store, option
from .terminal import open_console, print_json

if TYPE_CHECKING:
    from rich.console import Console

    from ...tasks.results.delivered import Delivered
    from ..releases.difference import FileDifference
    from ..reports.snapshot import Change, Value

_SIDE = (
    "A .pte file, a folder that `export --out` wrote, the id of a run (or its beginning), or a release: URL#RELEASE, "
    "URL#CHANNEL, or URL for its channel latest."
)
_MAX_PER_AREA = 10
_SHORT_DIGEST = 8
_STYLES = {"added": "green", "removed": "bold red", "changed": "yellow"}


def diff(
    before: Annotated[str, argument(_SIDE, "A", complete=completion.begun_runs)],
    after: Annotated[str, argument("What to compare with it.", "B", complete=completion.begun_runs)],
    *,
    fail_on: Annotated[
        str | None,
        option("Exit with 1 if B is worse than such limits: growth=2%,sqnr=1dB,score=0.5%,delegation.", "LIMITS"),
    ] = None,
    store: STORE = None,
    as_json: AS_JSON = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown to standard output.")] = False,
) -> None:
    """Show what differs between two files, folders of results, runs or releases: contents, figures, toolchain."""
    from ..releases.difference import compare, find_side
    from ..reports.comparison import parse_limits

    if as_json and markdown:
        raise InputError("--json and --markdown exclude each other; give one of them")
    limits = () if fail_on is None else parse_limits(fail_on)
    with ExitStack() as stack:
        opened = cache(lambda: stack.enter_context(open_existing_store(store)))
        files = list(compare(find_side(before, opened), find_side(after, opened), limits))
    exceeded = [sentence for file in files for sentence in file.regressions]
    if as_json:
        shown = [file.to_json() for file in files]
        models = {status: list(_models(files, status)) for status in ("added", "removed")}
        print_json({"before": before, "after": after, "models": models, "files": shown, "regressions": exceeded})
    elif markdown:
        typer.echo("\n".join(_markdown(before, after, files)))
    else:
        print_differences(open_console(), files)
    for sentence in exceeded:
        sys.stderr.write(f"worse: {printable(sentence)}\n")
    if exceeded:
        raise typer.Exit(1)


def print_differences(console: Console, files: Sequence[FileDifference]) -> None:
    """Prints a table for each file that differs, and how many files do."""
    from rich.text import Text

    from ..reports.figures_text import open_table

    for file in files:
        if file.status == "equal" and not file.notes:
            continue
        size = "" if file.status in {"changed", "equal"} else f", {format_size(_either(file).size)}"
        status = (file.status, _STYLES.get(file.status, ""))
        console.print(Text.assemble((printable(file.name), "bold"), ": ", status, size), soft_wrap=True)
        for note in file.notes:
            console.print(f"  {printable(note)}", style="dim")
        if file.changes:
            table = open_table(("", ""))
            for side in ("before", "after"):
                table.add_column(side, justify="right", overflow="fold")
            table.add_column("", justify="right", no_wrap=True)
            for row in _rows(file.changes):
                table.add_row(*map(printable, row))
            console.print(table)
    for side in ("added", "removed"):
        for model in _models(files, side):
            line = Text.assemble("model ", (printable(model), "bold"), ": ", (side, _STYLES[side]))
            console.print(line, soft_wrap=True)
    console.print(_total(files))


def _markdown(before: str, after: str, files: Sequence[FileDifference]) -> Iterator[str]:
    yield f"# From {markdown(before)} to {markdown(after)}\n\n{_total(files)}"
    for status in ("added", "removed"):
        yield from (f"\nModel {markdown(model)}: {status}" for model in _models(files, status))
    if exceeded := [sentence for file in files for sentence in file.regressions]:
        yield "\n## Worse than allowed\n"
        yield from (f"- {markdown(sentence)}" for sentence in exceeded)
    for file in files:
        if file.status == "equal" and not file.notes:
            continue
        yield f"\n## {markdown(file.name)}: {file.status}"
        if file.status in {"added", "removed"}:
            yield f"\n{format_size(_either(file).size)}"
        yield from (f"\n{markdown(note)}" for note in file.notes)
        if file.changes:
            yield ""
            rows = (map(markdown, row) for row in _rows(file.changes))
            yield from markdown_table(("", "", "before", "after", "change"), rows, numbers=3)


def _total(files: Sequence[FileDifference]) -> str:
    counts = Counter[str](file.status for file in files)
    if set(counts) == {"equal"}:
        return "no differences"
    statuses = [status for status in ("changed", "added", "removed", "equal") if counts[status]]
    return "files: " + ", ".join(f"{counts[status]} {status}" for status in statuses)


def _models(files: Sequence[FileDifference], status: str) -> Iterator[str]:
    """Models of which all files are only on one side."""
    statuses_of: defaultdict[str, set[str]] = defaultdict(set)
    for file in files:
        statuses_of[file.name.rpartition("/")[0]].add(file.status)
    return (name for name, statuses in statuses_of.items() if name and statuses == {status})


def _either(file: FileDifference) -> Delivered:
    made = file.after or file.before
    assert made  # noqa: S101 - a file is on at least one side
    return made


def _rows(changes: Sequence[Change]) -> Iterator[tuple[str, str, str, str, str]]:
    """Area, name, before, after and change in percent. The area stands in its first row only."""
    shown = Counter[str]()
    numbers = Counter(change.area for change in changes)
    for change in changes:
        area = change.area
        shown[area] += 1
        if shown[area] <= _MAX_PER_AREA:
            sides = _format(change)
            yield area if shown[area] == 1 else "", change.name, *sides, _percent(change)
        elif shown[area] == numbers[area]:
            yield "", f"and {numbers[area] - _MAX_PER_AREA} more (--json shows all)", "", "", ""


def _format(change: Change) -> tuple[str, str]:
    """Short texts; more of digests and decimals where the values would look alike."""
    before, after = _text(change.before, exact=False), _text(change.after, exact=False)
    if before != after:
        return before, after
    return _text(change.before, exact=True), _text(change.after, exact=True)


def _text(value: Value | None, *, exact: bool) -> str:
    from ...artifacts.digest import is_digest
    from ..reports.snapshot import Content, Size

    match value:
        case None:
            return "-"
        case Content(_, sha256, _):
            several = "" if value.count == 1 else f"{value.count}: "
            return several + format_size(value.size) + (f" {sha256[:_SHORT_DIGEST]}" if exact else "")
        case Size(size):
            return f"{size} B" if exact else format_size(size)
        case float() if not exact:
            return f"{value:.4g}"
        case str() if is_digest(value) and not exact:
            return value[:_SHORT_DIGEST]
    return str(value)


def _percent(change: Change) -> str:
    """Relative change of a size or a count."""
    from ..reports.snapshot import Content, Size

    match change.before, change.after:
        case Content(before, _, _) | Size(before) | int(before), Content(after, _, _) | Size(after) | int(after):
            if before and before != after:
                return f"{100 * (after / before - 1):+.1f} %"
    return ""
