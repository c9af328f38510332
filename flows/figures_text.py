"""Sizes, figures and ladders as text and tables, for the terminal and for pages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..errors import printable

if TYPE_CHECKING:
    from rich.table import Table

    from ..tasks.figures import Worst
    from ..tasks.numerics import Ladder, Rung

FIGURES = ("max abs error", "relative", "SQNR", "top-1")
_RUNGS = ("exported", "transformed", "quantized", "edge", "payload")


def format_size(size: int) -> str:
    """For example 1023 B, 1.0 KiB, 3.4 MiB."""
    from pydantic import ByteSize  # noqa: PLC0415 - imported by every command, also for completion

    return ByteSize(size).human_readable(separator=" ")


def markdown(text: str) -> str:
    """Text in one line as Markdown and HTML show it, also in a cell of a table."""
    return "".join(
        f"\\{letter}" if letter in r"\`*_[]<>|#&~" else letter for letter in printable(text.replace("\n", " "))
    )


def format_error(error: float) -> str:
    return f"{error:.2g}"


def format_score(score: float) -> str:
    return f"{score:.4g}"


def format_db(sqnr_db: float | None) -> str:
    """In dB, or ``exact`` for outputs that equal eager's."""
    return "exact" if sqnr_db is None else f"{sqnr_db:.1f} dB"


def format_sqnr(worst: Worst) -> str:
    if worst.sqnr_db is None and worst.agreement is not None and worst.agreement < 1:
        return f"{100 * worst.agreement:.1f} % equal"
    return format_db(worst.sqnr_db)


def format_figures(worst: Worst) -> tuple[str, str, str, str]:
    """All of `FIGURES`, in their order."""
    errors = format_error(worst.max_abs_error), format_error(worst.max_relative_error)
    return *errors, format_sqnr(worst), _format_top1(worst)


def open_table(text: Iterable[str] = (), numbers: Iterable[str] = ()) -> Table:
    from rich import box  # noqa: PLC0415 - as above
    from rich.table import Table  # noqa: PLC0415 - as above

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in text:
        table.add_column(name, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def rungs_table(ladder: Ladder) -> Table:
    """All figures of a ladder, one row per rung and method."""
    several = len({rung.method for rung in ladder.rungs}) > 1
    table = open_table(("rung", "method") if several else ("rung",), FIGURES)
    for rung in ladder.rungs:
        figures = format_figures(rung.figures) if rung.figures else ("", "", f"not run: {rung.problem}", "")
        table.add_row(*((rung.label, rung.method) if several else (rung.label,)), *figures)
    return table


def ladders_table(ladders: Iterable[tuple[str, Ladder]]) -> Table:
    """SQNR by rung, one row per file, method and path to a payload."""
    rows: list[tuple[str, dict[str, str]]] = []
    for file, ladder in ladders:
        for path in ladder.paths():
            last = path[-1]
            top1 = _format_top1(last.figures) if last.figures else ""
            cells = {rung.name: _format_ratio(rung) for rung in path} | ({"top-1": top1} if top1 else {})
            rows.append((f"{file}{_format_suffix(last)}", cells))
    columns = [name for name in (*_RUNGS, "top-1") if any(name in cells for _, cells in rows)]
    table = open_table(["SQNR against eager"], columns)
    for name, cells in rows:
        table.add_row(name, *(cells.get(column, "") for column in columns))
    return table


def _format_top1(worst: Worst) -> str:
    """A percentage; empty if no output is a classifier's."""
    return "" if worst.top1 is None else f"{100 * worst.top1:.1f} %"


def _format_suffix(last: Rung) -> str:
    """Distinguishes the rows of a file: specializations of a fat one, and methods other than `forward`."""
    payload = f".{'+'.join(last.specializations)}" if last.specializations else ""
    return payload if last.method == "forward" else f"{payload} {last.method}"


def _format_ratio(rung: Rung) -> str:
    return format_sqnr(rung.figures) if rung.figures else "not run"
