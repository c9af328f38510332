"""Outcomes of recipes, sizes, figures and ladders as text and tables, for the terminal and for all pages."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import printable
from ...tasks.results.tables import format_sqnr, format_top1

if TYPE_CHECKING:
    from rich.table import Table

    from ...tasks.results.costs import MemoryUse
    from ...tasks.results.delivered import Delivered
    from ...tasks.results.figures import Proof
    from ...tasks.results.numerics import Rungs
    from ...tasks.results.tables import Table as Columns

_RUNGS = ("exported", "transformed", "quantized", "edge", "payload")


def markdown(text: str) -> str:
    """Escapes text for Markdown and HTML, on one line, also for a cell of a table."""
    return re.sub(r"[\\`*_\[\]<>|#&~]", r"\\\g<0>", printable(text.replace("\n", " ")))


def format_runtimes(runtimes: Mapping[str, str] | None) -> str:
    """Which releases of ExecuTorch open a file, and the evidence: ``... 1.0 to 1.4 (derived), 1.5 (run)``."""
    if runtimes is None:
        return "which releases of ExecuTorch open it is not known: a payload cannot be read"
    by_how: dict[str, list[str]] = {}
    for release, how in runtimes.items():
        by_how.setdefault(how, []).append(release)
    ranges = [f"{' to '.join(dict.fromkeys((names[0], names[-1])))} ({how})" for how, names in by_how.items()]
    return f"opens in ExecuTorch {', '.join(ranges)}" if ranges else "opens in no release of ExecuTorch"


def memory_header(results: Iterable[Delivered]) -> str:
    """A C++ header with the most bytes measured for methods' buffers, in namespaces by model, recipe, payload."""
    from ...tasks.results.costs import MemoryUse  # noqa: PLC0415 - completion has no time for it

    lines = ["// Written by pteforge. Sizes in bytes, on a machine with pointers of 64 bits.", "#pragma once"]
    lines += ["", "#include <cstddef>", ""]
    for result in results:
        lines.append(f"// {printable(result.name)}.pte, SHA-256 {result.sha256}")
        uses: dict[tuple[str, str], list[MemoryUse]] = {}
        for use in result.every(MemoryUse):
            uses.setdefault((use.payload, use.method), []).append(use)
        for (payload, method), measured in uses.items():
            parts = filter(None, (result.model, result.recipe, payload, method))
            lines += [f"namespace {'::'.join(map(_identifier, parts))} {{", *_constants(measured), "}", ""]
    return "\n".join(lines)


def _constants(uses: Sequence[MemoryUse]) -> Iterator[str]:
    planned = uses[0].planned
    sizes = {f"planned_{index}": size for index, size in enumerate(planned, 1)} | {"planned": sum(planned)}
    if buffers := [use.buffer for use in uses if use.buffer is not None]:
        sizes |= {"method": max(buffers), "temporary": max(use.temporary for use in uses)}
    if heaps := [use.heap for use in uses if use.heap is not None]:
        sizes["heap"] = max(heaps)
    return (f"constexpr std::size_t {name} = {size};" for name, size in sizes.items())


def _identifier(name: str) -> str:
    """Makes a name an identifier of C++."""
    return re.sub(r"\W|^(?=\d)", "_", name, flags=re.ASCII)


def places_of(results: Iterable[Delivered]) -> Iterator[str]:
    """A line for each place: how many files and payloads it ran, the worst of them, and why it did not run others."""
    from ...tasks.results.figures import Proof, one_line  # noqa: PLC0415 - as above

    proofs: dict[str, list[tuple[Delivered, Proof]]] = {}
    for result in results:
        for proof in result.every(Proof):
            proofs.setdefault(proof.place, []).append((result, proof))
    for place, proven in proofs.items():
        ran = [(result.name, proof.figures.overall) for result, proof in proven if proof.figures]
        about = f" ({one_line(proven[0][1].about)})" if proven[0][1].about else ""
        if ran:
            name, worst = min(ran, key=lambda run: math.inf if run[1].sqnr_db is None else run[1].sqnr_db)
            yield f"on {place}{about}: {len(ran)} files and payloads run, the worst {format_sqnr(worst)} ({name})"
        for reason, count in Counter(proof.not_run for _, proof in proven if proof.not_run).items():
            yield f"on {place}: {count} not run: it {reason}"


def markdown_table(names: Sequence[str], rows: Iterable[Iterable[str]], numbers: int = 0) -> Iterator[str]:
    """Lines of a table whose cells are Markdown; `numbers` is how many of the last columns hold numbers."""
    yield f"| {' | '.join(names)} |"
    yield f"|{'---|' * (len(names) - numbers)}{'--:|' * numbers}"
    yield from (f"| {' | '.join(row)} |" for row in rows)


def relative(path: Path) -> Path:
    """The path relative to the current folder, if it is inside it."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def open_table(text: Iterable[str] = (), numbers: Iterable[str] = ()) -> Table:
    from rich import box  # noqa: PLC0415 - as above
    from rich.table import Table  # noqa: PLC0415 - as above

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in text:
        table.add_column(name, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def table_of(shown: Columns) -> Table:
    """A table for the terminal. Columns of numbers do not wrap."""
    table = open_table()
    for title in shown.titles:
        number = title in shown.numbers
        table.add_column(title, justify="right" if number else "left", no_wrap=number, overflow="fold")
    for row in shown.rows:
        table.add_row(*row)
    return table


def ladders_table(ladders: Iterable[tuple[str, Rungs]]) -> Table:
    """SQNR by rung, one row per file, method and path to a payload."""
    rows: list[tuple[str, dict[str, str]]] = []
    for file, ladder in ladders:
        for path in ladder.paths():
            last = path[-1]
            cells: dict[str, str] = {
                rung.name: format_sqnr(rung.figures) if rung.figures else "not run" for rung in path
            }
            if last.figures and (top1 := format_top1(last.figures)):
                cells["top-1"] = top1
            payload = f".{'+'.join(last.specializations)}" if last.specializations else ""
            method = "" if last.method == "forward" else f" {last.method}"
            rows.append((f"{file}{payload}{method}", cells))
    columns = [name for name in (*_RUNGS, "top-1") if any(name in cells for _, cells in rows)]
    table = open_table(["SQNR against eager"], columns)
    for name, cells in rows:
        table.add_row(name, *(cells.get(column, "") for column in columns))
    return table
