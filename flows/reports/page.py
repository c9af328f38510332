"""The page about a zoo's last run, ``out/index.html``: one file that needs no server and no script."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from ...artifacts.digest import digest_json
from ...artifacts.files import open_input, replace_file
from ...artifacts.runs import RunRecord, Runs, StageOutcome
from ...errors import InputError, first_line, printable
from ...tasks.results.delivered import Delivered, Failure, delivered_by
from ...tasks.results.tables import format_db
from .comparison import Block, FileMap, map_of
from .figures_text import format_seconds, format_size, notes, proven_text

NAME = "index.html"
_TEMPLATE = Path(__file__).with_name("page.html.jinja")
_MARK = '<meta name="pteforge-content" content="{}">'
_HEAD = 4096  # bytes of the page that have the mark
_RUNS_READ = 30  # records that are looked at for earlier runs of the zoo
_RUNS_SHOWN = 12
_WIDTH, _HEIGHT = 360, 150  # of a treemap, in its own units; text in it stays legible on a phone
_DIGEST = re.compile(r"[0-9a-f]{32,}")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True)
class Change:
    """How a figure changed since an earlier run, in words, and whether that is good."""

    text: str
    tone: Literal["better", "worse", "same"]


@dataclass(frozen=True, slots=True)
class Tile:
    """Where a block is drawn."""

    block: Block
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Trend:
    """A figure over runs, oldest first."""

    label: str
    first: str
    last: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class FileReport:
    """What came of a recipe of a model, and how it is drawn.

    Attributes:
        link: of the file, relative to the page; empty if there is none.
        problem: why there is no map of the file.
    """

    result: Delivered
    link: str = ""
    size_change: Change | None = None
    sqnr_change: Change | None = None
    map: FileMap | None = None
    tiles: tuple[Tile, ...] = ()
    trends: tuple[Trend, ...] = ()
    problem: str = ""

    @property
    def sqnr(self) -> str:
        return _sqnr(self.result)

    @property
    def meant(self) -> bool:
        """Whether the recipe has a target that delegates."""
        return set(self.result.targets) != {"portable"}

    @property
    def delegated(self) -> str:
        """The share of delegated calls, of each payload."""
        payloads = self.map.payloads if self.map else ()
        shares = {payload.name: payload.delegated for payload in payloads}
        said = {name: "unknown" if share is None else f"{100 * share:.0f}\u00a0%" for name, share in shares.items()}
        return ", ".join(f"{name} {share}".strip() for name, share in said.items())

    @property
    def legend(self) -> tuple[Block, ...]:
        """The blocks of the file by kind, largest first."""
        sizes: dict[str, int] = {}
        for tile in self.tiles:
            sizes[tile.block.kind] = sizes.get(tile.block.kind, 0) + tile.block.size
        return tuple(Block(kind, kind.replace("_", " "), size) for kind, size in sizes.items())


@dataclass(frozen=True, slots=True)
class ModelReport:
    """A model: its recipes by name, and its stages, longest first."""

    name: str
    files: Mapping[str, FileReport]
    stages: tuple[StageOutcome, ...]

    @property
    def longest(self) -> float:
        return max((stage.seconds for stage in self.stages), default=0.0)

    @property
    def failed(self) -> int:
        return sum(file.result.status == "failed" for file in self.files.values())


def write_page(record: RunRecord, runs: Runs, out: Path) -> bool:
    """Writes the page about a run; returns False if it has the same content already.

    Times and what was cached are no content: a run in which nothing changed leaves the page as it is.

    Raises:
        OSError: the page cannot be written.
        StoreUnusable: earlier runs cannot be read.
    """
    others = (run for run in islice(runs.of_zoo(record.zoo), _RUNS_READ) if run.id != record.id)
    earlier = list(others) if _of_a_part(record) else []
    record = with_the_rest(record, earlier)
    page, mark = out / NAME, _MARK.format(content_digest(record))
    with suppress(OSError), open_input(page) as file:
        if mark.encode() in file.read(_HEAD):
            return False
    earlier += others
    replace_file(page, render(record, earlier, out, mark).encode("utf-8", "backslashreplace"), out)
    return True


def with_the_rest(record: RunRecord, earlier: Iterable[RunRecord]) -> RunRecord:
    """A run of a part of a zoo, with what runs before it, newest first, made of the rest in the same folder."""
    parts = [record]
    for run in earlier:
        if not _of_a_part(parts[-1]):
            break
        if run.parameters.get("out") == record.parameters.get("out") and not run.parameters.get("until"):
            parts.append(run)
    files: dict[str, Mapping[str, Any]] = {}
    stages: dict[str, tuple[StageOutcome, ...]] = {}
    for run in reversed(parts):
        files |= {model: {**files.get(model, {}), **recipes} for model, recipes in run.files.items()}
        stages |= {model: outcomes for model, outcomes in run.models.items() if model in run.files}
    return replace(record, files=files, models=stages)


def _of_a_part(record: RunRecord) -> bool:
    return any(record.parameters.get(name, "*") != "*" for name in ("models", "recipes"))


def content_digest(record: RunRecord) -> str:
    """SHA-256 of what the page says about a run, without times and without what was cached."""
    files = {
        model: {recipe: _lasting(entry) for recipe, entry in recipes.items()} for model, recipes in record.files.items()
    }
    release = record.release and record.release.to_json()
    return digest_json([record.zoo, record.version, record.commit, record.status, files, release])


def _lasting(entry: Mapping[str, Any]) -> dict[str, Any]:
    changing = {"seconds", *(("status",) if entry.get("status") in ("made", "cached") else ())}
    name = {key: Path(entry[key]).name for key in ("path", "rejected") if entry.get(key)}
    return {key: value for key, value in entry.items() if key not in changing} | name


def render(record: RunRecord, earlier: Sequence[RunRecord], out: Path, mark: str = "") -> str:
    """The page as HTML. Earlier runs of the zoo come newest first; `mark` is an element for the page's head."""
    from jinja2 import Environment, StrictUndefined  # noqa: PLC0415 - slow import that a cached run does not need
    from markupsafe import Markup  # noqa: PLC0415 - as above

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_plain
    )
    environment.filters |= {"size": format_size, "seconds": _seconds, "short": _short, "latency": format_seconds}
    delivered = delivered_by(record)
    models = []
    for name, recipes in delivered.items():
        files = {
            result.recipe: _file(result, earlier, out) if result.path else FileReport(result)
            for result in recipes.values()
        }
        stages = sorted(record.models.get(name, ()), key=lambda stage: -stage.seconds)
        models.append(ModelReport(name, files, tuple(stages)))
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    return template.render(
        mark=Markup(mark),  # noqa: S704 - a digest
        run=record,
        time=f"{datetime.fromisoformat(record.started).astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC",
        selection=_selection(record.parameters),
        models=models,
        notes=notes,
        proven=proven_text,
        recipes=list(dict.fromkeys(recipe for model in models for recipe in model.files)),
        failures=list(_failures(delivered)),
        totals=_totals(record, delivered),
        width=_WIDTH,
        height=_HEIGHT,
    )


def _file(result: Delivered, earlier: Sequence[RunRecord], out: Path) -> FileReport:
    """Reports about a file; runs before it come newest first."""
    before = filter(None, (Delivered.of_run(run, result.model, result.recipe) for run in earlier))
    history = list(islice((each for each in before if each.path), _RUNS_SHOWN - 1))
    last = history[0] if history else None
    path = out / result.model / f"{result.recipe}.pte"
    mapped, problem = None, ""
    try:
        mapped = map_of(path, [path.with_suffix(".ptd")] if result.data else [])
    except (InputError, OSError) as error:
        problem = first_line(error)
    return FileReport(
        result,
        link="./" + quote(f"{result.name}.pte"),
        size_change=size_change(result.size, last.size) if last else None,
        sqnr_change=sqnr_change(result, last) if last else None,
        map=mapped,
        tiles=treemap(mapped.blocks, _WIDTH, _HEIGHT) if mapped else (),
        trends=tuple(_trends([*reversed(history), result])),
        problem=problem,
    )


def _trends(files: Sequence[Delivered]) -> Iterator[Trend]:
    """Size and SQNR over runs that made the file, if there are at least two."""
    if len(files) > 1:
        sizes = [result.size for result in files]
        yield Trend("size", format_size(sizes[0]), format_size(sizes[-1]), sparkline(sizes, 120, 28))
    measured = [sqnr_db for result in files if (sqnr_db := result.sqnr_db) is not None]
    if len(measured) > 1:
        yield Trend("SQNR", format_db(measured[0]), format_db(measured[-1]), sparkline(measured, 120, 28))


def size_change(size: int, before: int) -> Change:
    if size == before:
        return Change("=", "same")
    percent = 100 * (size - before) / before if before else float("inf")
    text = f"{percent:+.1f} %" if abs(percent) >= 0.05 else f"{size - before:+} B"
    return Change(text, "better" if size < before else "worse")


def sqnr_change(result: Delivered, last: Delivered) -> Change:
    now, before = result.sqnr_db, last.sqnr_db
    if now is None or before is None:
        same = _sqnr(result) == _sqnr(last)
        return Change(
            "=" if same else f"was {_sqnr(last)}", "same" if same else "worse" if before is None else "better"
        )
    if f"{now - before:.1f}" in ("0.0", "-0.0"):
        return Change("=", "same")
    return Change(f"{now - before:+.1f} dB", "better" if now > before else "worse")


def _sqnr(result: Delivered) -> str:
    return format_db(result.sqnr_db) if result.figures else "not measured"


def _failures(delivered: Mapping[str, Mapping[str, Delivered]]) -> Iterator[tuple[str, list[str], Failure]]:
    """Each step that failed: its model, all recipes that need it, and why."""
    for model, recipes in delivered.items():
        failed = [(result.recipe, result.failure) for result in recipes.values() if result.failure]
        for step in dict.fromkeys(failure.step for _, failure in failed):
            of_step = [(recipe, failure) for recipe, failure in failed if failure.step == step]
            yield model, [recipe for recipe, _ in of_step], of_step[0][1]


def _totals(record: RunRecord, delivered: Mapping[str, Mapping[str, Delivered]]) -> dict[str, int]:
    files = [result for recipes in delivered.values() for result in recipes.values()]
    stages = [stage for stages in record.models.values() for stage in stages]
    return {
        "models": len(delivered),
        "verified": sum(result.verified for result in files),
        "failed": sum(result.status == "failed" for result in files),
        "skipped": sum(result.status == "not applicable" for result in files),
        "bytes": sum(result.size for result in files),
        "ran": sum(stage.status == "ran" for stage in stages),
        "cached": sum(stage.status == "cached" for stage in stages),
    }


def _selection(parameters: Mapping[str, Any]) -> str:
    """What of the zoo was asked for; empty for all of it."""
    chosen = {name: parameters.get(name) or "*" for name in ("models", "recipes")}
    named = [f"{name} {globs}" for name, globs in chosen.items() if globs != "*"]
    return ", ".join([*named, *(f"with {change}" for change in parameters.get("overrides") or ())])


def _seconds(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"


def _short(block: Block) -> str:
    """The block's label; only the start of a digest."""
    return f"{block.label[:8]}…" if _DIGEST.fullmatch(block.label) else block.label


def _plain(value: object) -> object:
    """What the template shows: text without terminal colours, safe to print."""
    return printable(_COLOURS.sub("", value), keep="\n\t\u00a0") if type(value) is str else value


def treemap(blocks: Sequence[Block], width: float, height: float) -> tuple[Tile, ...]:
    """Fills a rectangle with tiles, largest first, whose areas are in proportion to the blocks' sizes.

    Squarified (Bruls, Huizing and van Wijk, 2000): a row takes another block as long as its tiles get more square.
    """
    rest = sorted((block for block in blocks if block.size > 0), key=lambda block: -block.size)
    left = sum(block.size for block in rest)
    x = y = 0.0
    tiles: list[Tile] = []
    while rest:
        side, scale = min(width, height), width * height / left
        count = 1
        while count < len(rest) and _worst(rest[: count + 1], side, scale) <= _worst(rest[:count], side, scale):
            count += 1
        row, rest = rest[:count], rest[count:]
        total = sum(block.size for block in row)
        left -= total
        depth, along = total * scale / side, 0.0
        for block in row:
            length = side * block.size / total
            if width >= height:
                tiles.append(Tile(block, x, y + along, depth, length))
            else:
                tiles.append(Tile(block, x + along, y, length, depth))
            along += length
        if width >= height:
            x, width = x + depth, width - depth
        else:
            y, height = y + depth, height - depth
    return tuple(tiles)


def _worst(row: Sequence[Block], side: float, scale: float) -> float:
    """The largest ratio of sides of a row's tiles; 1 is a square. The row is sorted, largest first."""
    depth = sum(block.size for block in row) * scale / side
    lengths = row[0].size * scale / depth, row[-1].size * scale / depth
    return max(max(length / depth, depth / length) for length in lengths)


def sparkline(values: Sequence[float], width: float, height: float) -> tuple[tuple[float, float], ...]:
    """Points of a line through values, from left to right; the largest value is on top."""
    low, high = min(values), max(values)
    step = width / max(len(values) - 1, 1)
    return tuple(
        (round(index * step, 1), round(height * ((high - value) / (high - low) if high > low else 0.5), 1))
        for index, value in enumerate(values)
    )
