"""What came of recipes, sizes, figures and ladders as text and tables, for the terminal and for all pages."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ...errors import printable
from ...tasks.results.tables import (
    FIGURES,
    calibration_text,
    format_db,
    format_error,
    format_figures,
    format_sqnr,
    format_top1,
)

if TYPE_CHECKING:
    from rich.table import Table

    from ...tasks.results.delivered import Delivered
    from ...tasks.results.figures import MemoryUse, Proof, Searched, Timing, Worst
    from ...tasks.results.numerics import Ladder
    from ...tasks.results.tables import Table as Columns

FOUND = ".found.yaml"
"""The ending of the name of a recipe that a search has found."""

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


def format_runtimes(runtimes: Mapping[str, str] | None) -> str:
    """Which releases of ExecuTorch open a file, by how that is known: ``... 1.0 to 1.4 (derived), 1.5 (run)``."""
    if runtimes is None:
        return "which releases of ExecuTorch open it is not known: a payload cannot be read"
    by_how: dict[str, list[str]] = {}
    for release, how in runtimes.items():
        by_how.setdefault(how, []).append(release)
    said = [f"{' to '.join(dict.fromkeys((names[0], names[-1])))} ({how})" for how, names in by_how.items()]
    return f"opens in ExecuTorch {', '.join(said)}" if said else "opens in no release of ExecuTorch"


def format_score(score: float) -> str:
    return f"{score:.4g}"


def format_seconds(seconds: float) -> str:
    """For example 12.3 us, 1.23 ms, 4.56 s: a time that was measured."""
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


COLUMNS: Mapping[str, Callable[[Delivered, Worst | None], str]] = {
    "size": lambda result, _: format_size(result.size),
    "max abs error": lambda _, worst: format_error(worst.max_abs_error) if worst else "",
    "SQNR": lambda _, worst: format_sqnr(worst) if worst else "",
    "cases": lambda _, worst: str(worst.cases) if worst else "",
    "accuracy": lambda result, _: format_accuracy(result),
    "memory": lambda result, _: "" if result.largest_use is None else format_size(result.largest_use),
    "latency": lambda result, _: "" if result.latency is None else format_seconds(result.latency),
}
"""What tables of files say of each, and of what was run."""

_OPTIONAL = frozenset({"accuracy", "memory", "latency"})  # columns that only tables have in which they say something
_LEAST = ("cases", "max abs error")  # columns that a narrow table leaves out, one after another


def cells(result: Delivered) -> dict[str, str]:
    """The `COLUMNS` of a file; nothing without one."""
    return {name: of(result, result.measured) for name, of in COLUMNS.items()} if result.path else {}


def column_choices(files: Iterable[Delivered]) -> Iterator[list[str]]:
    """The columns of a table of files: all that say something, and fewer and fewer for narrow terminals."""
    said = [cells(result) for result in files]
    names = [name for name in COLUMNS if name not in _OPTIONAL or any(each.get(name) for each in said)]
    yield names
    for left_out in _LEAST:
        names = [name for name in names if name != left_out]
        yield names


_DEAR = 1.5  # times its largest payload, from which on a fat file costs more than it may be worth


def fat_cost(size: int, payloads: Mapping[str, int]) -> tuple[str, str]:
    """What a fat file costs by its largest payload, and advice where that is much; in words."""
    largest = max(payloads, key=lambda name: payloads[name])
    ratio = size / max(payloads[largest], 1)
    advice = "payloads share weights, and these are few or differ: ship plain files, or what `pteforge thin` keeps"
    text = f"{ratio:.2f} times its largest payload ({largest}, {format_size(payloads[largest])})"
    return text, advice if ratio >= _DEAR else ""


class Note(NamedTuple):
    """What else is to be known of a file; whether that asks for something to be done, or stands in a list, too."""

    text: str
    telling: bool = False
    listed: bool = False


def notes(result: Delivered) -> Iterator[Note]:
    """What does not apply, was searched for, quantized, kept on the CPU, left out or not run; models' notes as such."""
    name, figures = result.name, result.figures
    if result.reason:
        yield Note(f"{name} does not apply: {result.reason}")
    if result.search and result.path:
        share, scored = result.size / result.search.float_size, len(result.search.attempts)
        yield Note(
            f"{name}, in floating point: {result.search.label}; {share:.2f} of the floating-point size; "
            f"{scored} files were scored; the recipe is in {relative(result.path.with_suffix(FOUND))}"
        )
    if figures:
        yield from (Note(f"{result.model}: {note}", telling=True) for note in figures.notes)
        yield from (Note(f"{name}: {part}", telling=part.lost, listed=not part.lost) for part in figures.parts)
        observed = ", ".join(dict.fromkeys(figures.calibration.values()))
        if figures.drawn:
            yield Note(f"{name} is {calibration_text(figures)}", telling=not figures.on_samples)
        elif observed:
            yield Note(f"{name} is calibrated on {observed}")
    yield from _note_of_search(name, result.searched)
    for method, reached in result.quantization.items():
        of_method = f", method {method}" if len(result.quantization) > 1 else ""
        yield Note(f"{name}{of_method}: {reached}", reached.is_little)
    yield from (Note(f"{name}: {line}") for line in result.on_cpu)
    if len(result.payload_sizes) > 1 and result.size:
        cost, advice = fat_cost(result.size, result.payload_sizes)
        text = f"{name} takes {format_size(result.size)}, {cost}"
        yield Note(f"{text}; {advice}" if advice else text)
    for payload, reason in result.left_out.items():
        yield Note(f"{name} is without {payload}: {reason}", telling=True)
    yield from _proofs(result)
    yield from (Note(f"{name}: {memory_text(use)}", listed=True) for use in result.memory if use.place)
    for timing in result.timings:
        yield Note(f"{name}: {timing_text(timing)}", listed=True)


def _proofs(result: Delivered) -> Iterator[Note]:
    """Where payloads were not run and why, and what came of them on places besides this machine's runtime."""
    from ...configs.places import HOST  # noqa: PLC0415 - completion has no time for it
    from ...tasks.results.figures import WHOLE_FILE  # noqa: PLC0415 - as above

    for payload in result.payloads if result.figures else ():
        proven, reasons, what = result.proven_on(payload), result.why_not_run(payload), payload or WHOLE_FILE
        if HOST in reasons and proven:
            here = reasons[HOST].partition("; ")[0]
            yield Note(f"{result.name}: {what} was run on {', '.join(proven)}; not on this machine, since it {here}")
        elif HOST in reasons:
            instead = "" if payload or not result.figures else f": {format_sqnr(result.figures.overall)}"
            yield Note(f"{result.name}: {what} was not run: it {reasons[HOST]}{instead}", telling=not payload)
    for place in dict.fromkeys(proof.place for proof in result.proofs):
        proofs = [proof for proof in result.proofs if proof.place == place]
        about = f" ({one_line(proofs[0].about)})" if proofs[0].about else ""
        ran = [f"{_named(result, proof)}{format_sqnr(proof.figures.overall)}" for proof in proofs if proof.figures]
        if ran:
            yield Note(f"{result.name} on {place}{about}: {', '.join(ran)}", listed=True)
        for reason in dict.fromkeys(proof.not_run for proof in proofs if proof.not_run):
            payloads = [proof.payload or WHOLE_FILE for proof in proofs if proof.not_run == reason]
            yield Note(f"{result.name}: not run on {place}: {', '.join(payloads)}: it {reason}", listed=True)


def memory_text(use: MemoryUse) -> str:
    """What a method takes, in one line; in bytes, since boards have few."""
    said = [f"planned {' + '.join(f'{size:,}' for size in use.planned) or '0'}"]
    if use.buffer is None:
        return f"{use.where} takes bytes: {said[0]}; no place has measured the rest"
    said.append(f"method {use.asked:,} in {use.calls} calls (a buffer of {use.buffer:,})")
    said.append(f"temporary {use.temporary:,}")
    said += [] if use.heap is None else [f"heap {use.heap:,} at most and {use.heap_loaded or 0:,} after loading"]
    shapes = f" ({use.shapes})" if use.shapes else ""
    return f"{use.where} takes bytes: {', '.join(said)}; on {use.place}, {use.inputs} inputs{shapes}"


def timing_text(timing: Timing) -> str:
    """How long a method takes, in one line."""
    load, first, usual, p95 = map(format_seconds, (timing.load, timing.first, timing.median, timing.p95))
    of_calls = f"{usual} (median of {timing.calls}), p95 {p95}, first {first}, load {load}"
    memory = f", peak memory {format_size(timing.peak_memory)}" if timing.peak_memory else ""
    delegated = sum(share.share for share in timing.shares if share.delegate)
    within = f", {delegated:.0%} of a call in delegates" if timing.shares else ""
    return f"{timing.where} on {timing.place}: {of_calls}{memory}{within}"


def memory_header(results: Iterable[Delivered]) -> str:
    """A C++ header with the sizes of buffers that methods need: the largest that were measured, in bytes.

    A namespace for each model has one for each recipe, payload of a fat file and method.
    """
    lines = ["// Written by pteforge. Sizes in bytes, on a machine with pointers of 64 bits.", "#pragma once"]
    lines += ["", "#include <cstddef>", ""]
    for result in results:
        lines.append(f"// {printable(result.name)}.pte, SHA-256 {result.sha256}")
        uses: dict[tuple[str, str], list[MemoryUse]] = {}
        for use in result.memory:
            uses.setdefault((use.payload, use.method), []).append(use)
        for (payload, method), found in uses.items():
            parts = filter(None, (result.model, result.recipe, payload, method))
            lines += [f"namespace {'::'.join(map(_identifier, parts))} {{", *_constants(found), "}", ""]
    return "\n".join(lines)


def _constants(uses: Sequence[MemoryUse]) -> Iterator[str]:
    """Lines for one method."""
    planned = uses[0].planned
    sizes = {f"planned_{index}": size for index, size in enumerate(planned, 1)} | {"planned": sum(planned)}
    if buffers := [use.buffer for use in uses if use.buffer is not None]:
        sizes |= {"method": max(buffers), "temporary": max(use.temporary for use in uses)}
    if heaps := [use.heap for use in uses if use.heap is not None]:
        sizes["heap"] = max(heaps)
    return (f"constexpr std::size_t {name} = {size};" for name, size in sizes.items())


def _identifier(name: str) -> str:
    """A name as C++ takes it."""
    plain = re.sub(r"\W", "_", name, flags=re.ASCII)
    return f"_{plain}" if plain[:1].isdigit() else plain


def places_of(results: Iterable[Delivered]) -> Iterator[str]:
    """A line for each place: how many files and payloads it ran, the worst of them, and why it did not run others."""
    proofs: dict[str, list[tuple[Delivered, Proof]]] = {}
    for result in results:
        for proof in result.proofs:
            proofs.setdefault(proof.place, []).append((result, proof))
    for place, made in proofs.items():
        ran = [(result.name, proof.figures.overall) for result, proof in made if proof.figures]
        about = f" ({one_line(made[0][1].about)})" if made[0][1].about else ""
        if ran:
            name, worst = min(ran, key=lambda each: math.inf if each[1].sqnr_db is None else each[1].sqnr_db)
            yield f"on {place}{about}: {len(ran)} files and payloads run, the worst {format_sqnr(worst)} ({name})"
        for reason, count in Counter(proof.not_run for _, proof in made if proof.not_run).items():
            yield f"on {place}: {count} not run: it {reason}"


def _named(result: Delivered, proof: Proof) -> str:
    """The payload before its figures; of a fat file as a whole, the one that was chosen there."""
    chosen = ", ".join(proof.figures.payloads) if proof.figures else ""
    if proof.payload or not chosen:
        return f"{proof.payload} " if proof.payload else "" if result.payloads == ("",) else "the file "
    return f"the file, which chooses {chosen}, "


def one_line(about: str) -> str:
    """What a place says of itself, shortened."""
    line = ", ".join(about.split("\n"))
    return line if len(line) <= _ABOUT else f"{line[: _ABOUT - 1]}…"


_ABOUT = 100


def proven_text(places: Sequence[str]) -> str:
    return ", ".join(places) or "not run"


def _note_of_search(name: str, searched: Searched | None) -> Iterator[Note]:
    if searched and searched.cases:
        worst = searched.worst
        reached = (
            f"{worst.equal} of {worst.counted} equal"
            if worst and worst.counted
            else format_db(worst.sqnr_db if worst else None)
        )
        place = f" at {worst.label.removeprefix('searched ')}" if worst else ""
        often = f"; {searched.differing} returned other bits when they were repeated" if searched.differing else ""
        text = f"{name}: searched {searched.cases} inputs in {searched.seconds:g} s, worst {reached}{place}{often}"
        yield Note(text, telling=bool(often))


def model_tables(recipes: Iterable[Delivered]) -> Iterator[tuple[str, str, list[dict[str, Any]]]]:
    """Tables about a model, each with its kind and what it is about: scores by payload, and the rungs of ladders."""
    recipes = tuple(recipes)
    yield (
        "accuracy",
        "Accuracy of {}",
        [
            {
                "recipe": result.recipe,
                "payload": score.payload,
                "score": score.score,
                "eager": result.accuracy.eager,
                "floor": result.accuracy.floor,
                "max drop": result.accuracy.max_drop,
            }
            for result in recipes
            if result.accuracy
            for score in result.accuracy.file.scores
        ],
    )
    rungs = [(result, rung) for result in recipes if result.ladder for rung in result.ladder.rungs]
    yield (
        "numerics",
        "{}: each program against eager",
        [
            {"recipe": result.recipe, "rung": rung.label, "method": rung.method}
            | dict(zip(FIGURES, format_figures(rung.figures) if rung.figures else [None] * len(FIGURES), strict=True))
            | {"problem": rung.problem}
            for result, rung in rungs
        ],
    )


def markdown_table(names: Sequence[str], rows: Iterable[Iterable[str]], numbers: int = 0) -> Iterator[str]:
    """Lines of a table whose cells are Markdown; `numbers` is how many of the last columns hold numbers."""
    yield f"| {' | '.join(names)} |"
    yield f"|{'---|' * (len(names) - numbers)}{'--:|' * numbers}"
    yield from (f"| {' | '.join(row)} |" for row in rows)


def relative(path: Path) -> Path:
    """The path as seen from the current folder, if it is below it."""
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


def ladders_table(ladders: Iterable[tuple[str, Ladder]]) -> Table:
    """SQNR by rung, one row per file, method and path to a payload."""
    rows: list[tuple[str, dict[str, str]]] = []
    for file, ladder in ladders:
        for path in ladder.paths():
            last = path[-1]
            top1 = format_top1(last.figures) if last.figures else ""
            ratios = {rung.name: format_sqnr(rung.figures) if rung.figures else "not run" for rung in path}
            payload = f".{'+'.join(last.specializations)}" if last.specializations else ""
            method = "" if last.method == "forward" else f" {last.method}"
            rows.append((f"{file}{payload}{method}", ratios | ({"top-1": top1} if top1 else {})))
    columns = [name for name in (*_RUNGS, "top-1") if any(name in cells for _, cells in rows)]
    table = open_table(["SQNR against eager"], columns)
    for name, cells in rows:
        table.add_row(name, *(cells.get(column, "") for column in columns))
    return table


def format_accuracy(result: Delivered) -> str:
    """The lowest score of a file's payloads, and its difference from eager's."""
    if result.accuracy is None:
        return ""
    worst, eager = result.accuracy.worst, result.accuracy.eager
    return format_score(worst) + ("" if eager is None else f" ({worst - eager:+.2g})")
