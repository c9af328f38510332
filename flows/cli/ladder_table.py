"""Ladders of numerics as tables: of several files in short, of one in full."""

from __future__ import annotations

from collections.abc import Iterable

from rich import box
from rich.table import Table

from ...tasks.numerics import Ladder, Rung
from ..figures_text import FIGURES, format_figures, format_sqnr, format_top1

_NAMES = ("exported", "transformed", "quantized", "edge", "payload")


def open_table() -> Table:
    """A table in the style of all of them."""
    return Table(box=box.SIMPLE_HEAD, pad_edge=False)


def rungs_table(ladder: Ladder) -> Table:
    """All figures of one ladder, one row for each rung and method."""
    table = open_table()
    several = len({rung.method for rung in ladder.rungs}) > 1
    for name in ("rung", "method") if several else ("rung",):
        table.add_column(name, overflow="fold")
    for name in FIGURES:
        table.add_column(name, justify="right")
    for rung in ladder.rungs:
        table.add_row(*((rung.label, rung.method) if several else (rung.label,)), *_figures(rung))
    return table


def ladders_table(ladders: Iterable[tuple[str, Ladder]]) -> Table:
    """SQNR by rung, one row for each file, method and way to a payload."""
    rows = [(file, {rung.name: rung for rung in way}) for file, ladder in ladders for way in ladder.ways()]
    shown = [name for name in _NAMES if any(name in way for _, way in rows)]
    table = open_table()
    table.add_column("SQNR against eager", overflow="fold")
    for name in (*shown, "top-1"):
        table.add_column(name, justify="right", no_wrap=True)
    for file, way in rows:
        last = list(way.values())[-1]
        cells = (_short(way[name]) if name in way else "" for name in shown)
        table.add_row(f"{file}{_which(last)}", *cells, format_top1(last.figures) if last.figures else "")
    return table


def _figures(rung: Rung) -> tuple[str, ...]:
    return format_figures(rung.figures) if rung.figures else ("", "", f"not run: {rung.problem}", "")


def _which(last: Rung) -> str:
    """What tells a file's rows apart: specializations of a fat one, and methods but the usual one."""
    payload = f".{'+'.join(last.specializations)}" if last.specializations else ""
    return payload if last.method == "forward" else f"{payload} {last.method}"


def _short(rung: Rung) -> str:
    return format_sqnr(rung.figures) if rung.figures else "not run"
