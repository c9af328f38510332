"""Tables that people read, wherever they are shown, and how figures are written in them."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .figures import Worst
    from .numerics import Rungs

FIGURES = ("max abs error", "relative", "SQNR", "top-1")
_DEAR = 1.5  # times its largest payload, from which on a fat file costs more than it may be worth


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text. Its own text is the table in columns; a notebook shows it as HTML."""

    titles: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: tuple[str, ...] = ()  # titles of the columns that are aligned to the right
    caption: str = ""  # a line above it

    def __str__(self) -> str:
        lines = [self.titles, *self.rows] if any(self.titles) else self.rows
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        signs = [">" if title in self.numbers else "<" for title in self.titles]
        text = (
            "  ".join(f"{cell:{sign}{width}}" for cell, sign, width in zip(line, signs, widths, strict=True)).rstrip()
            for line in lines
        )
        return "\n".join([*filter(None, [self.caption]), *text])

    def _repr_html_(self) -> str:
        def row(cells: tuple[str, ...], tag: str) -> str:
            aligned = ("right" if title in self.numbers else "left" for title in self.titles)
            shown = zip(cells, aligned, strict=True)
            text = (f'<{tag} style="text-align: {end}">{html.escape(cell)}</{tag}>' for cell, end in shown)
            return f"<tr>{''.join(text)}</tr>"

        bold = f"<b>{html.escape(self.caption)}</b>"
        caption = f"<caption style='text-align: left'>{bold}</caption>" if self.caption else ""
        head = f"<thead>{row(self.titles, 'th')}</thead>" if any(self.titles) else ""
        return f"<table>{caption}{head}<tbody>{''.join(row(cells, 'td') for cells in self.rows)}</tbody></table>"


def in_html(part: Table | str) -> str:
    """A table or a paragraph, for a notebook."""
    if isinstance(part, Table):
        return part._repr_html_()
    return f"<p style='white-space: pre-wrap'>{html.escape(part)}</p>"


def rungs_of(ladder: Rungs) -> Table:
    """All figures of a ladder, one row per rung and method."""
    several = len({rung.method for rung in ladder.rungs}) > 1
    rows: list[tuple[str, ...]] = []
    for rung in ladder.rungs:
        figures = format_figures(rung.figures) if rung.figures else ("", "", f"not run: {rung.problem}", "")
        rows.append((rung.label, *([rung.method] if several else []), *figures))
    return Table(("rung", *(["method"] if several else []), *FIGURES), tuple(rows), FIGURES)


def format_size(size: float) -> str:
    """Formats a size, such as 1023 B, 1.0 KiB, 3.4 MiB."""
    from pydantic import ByteSize  # noqa: PLC0415 - imported by every command, also for completion

    return ByteSize(size).human_readable(separator=" ")


def fat_cost(size: int, payloads: Mapping[str, int]) -> str:
    """The size of a fat file compared with its largest payload, and advice if that is much."""
    largest = max(payloads, key=payloads.__getitem__)
    ratio = size / max(payloads[largest], 1)
    advice = "; payloads share weights, and these are few or differ: ship plain files, or what `pteforge thin` keeps"
    cost = f"{ratio:.2f} times its largest payload ({largest}, {format_size(payloads[largest])})"
    return cost + advice * (ratio >= _DEAR)


def format_seconds(seconds: float) -> str:
    """Formats a measured time, such as 12.3 us, 1.23 ms, 4.56 s."""
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def format_db(sqnr_db: float | None) -> str:
    """Formats a ratio in dB, or ``exact`` for outputs that equal eager's."""
    return "exact" if sqnr_db is None else f"{sqnr_db:.1f} dB"


def format_error(error: float) -> str:
    return f"{error:.2g}"


def format_sqnr(worst: Worst) -> str:
    if worst.sqnr_db is None and worst.agreement is not None and worst.agreement < 1:
        return f"{100 * worst.agreement:.1f} % equal"
    return format_db(worst.sqnr_db)


def format_top1(worst: Worst) -> str:
    """A percentage; empty if no output is a classifier's."""
    return "" if worst.top1 is None else f"{100 * worst.top1:.1f} %"


def format_figures(worst: Worst) -> tuple[str, str, str, str]:
    """All of `FIGURES`, in their order."""
    errors = format_error(worst.max_abs_error), format_error(worst.max_relative_error)
    return *errors, format_sqnr(worst), format_top1(worst)
