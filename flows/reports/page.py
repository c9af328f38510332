"""The page about a run, without a server or need for scripts: ``out/index.html``, and the last ones by name."""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args
from urllib.parse import quote

from ...artifacts.digest import digest_json
from ...artifacts.files import open_input, replace_file
from ...artifacts.runs import RunRecord, Runs, StageOutcome
from ...errors import InputError, first_line, printable
from ...tasks.results.accuracy import FoundQuantization, ScoredFile
from ...tasks.results.delivered import Delivered, columns_of, delivered_by
from ...tasks.results.tables import format_size
from .changes import Change, Compared, State, changes_since, is_of_a_part, runs_before, with_the_rest
from .comparison import Block, FileMap, map_of

NAME = "index.html"
_PAGE = re.compile(r"run-[0-9]{8}T[0-9]{6}-\w+\.html", re.ASCII)
_PAGES_KEPT = 20
_MARK = '<meta name="pteforge-content" content="{}">'
_HEAD = 4096  # bytes of the page that have the mark
_FEW = 30  # files that are all listed at once
_RUNS_SHOWN = 12
_WIDTH, _HEIGHT = 360, 150  # of a treemap, in its own units; text in it stays legible on a phone
_DIGEST = re.compile(r"[0-9a-f]{32,}")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True)
class Tile:
    """Position and size of a block."""

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
class Dot:
    """A file that a search has scored, and its position."""

    file: ScoredFile
    x: float
    y: float
    front: bool  # whether no other file is both as small and as good


@dataclass(frozen=True, slots=True)
class FileReport(Compared):
    """The outcome of a recipe of a model, or of all of its recipes that failed with the same problem."""

    recipes: tuple[str, ...]  # names; `result` is that of the first
    stages: tuple[StageOutcome, ...]  # of the recipes, longest first
    link: str = ""  # to the file, relative to the page; empty if there is none
    held_back: tuple[str, ...] = ()  # reasons of release gates
    changes: Mapping[str, Change] = field(default_factory=dict)  # since the last run, by column
    map: FileMap | None = None
    tiles: tuple[Tile, ...] = ()
    trends: tuple[Trend, ...] = ()
    trials: tuple[Dot, ...] = ()  # files that a search has scored
    problem: str = ""  # why there is no map of the file

    @property
    def label(self) -> str:
        again = self.result.failure and self.before and self.before.failure
        return "failed again" if again else "held back" if self.held_back else self.state

    @property
    def targets(self) -> tuple[str, ...]:
        """Targets of its specializations; of the last run if it failed."""
        return self.result.targets or (self.before.targets if self.before else ())

    @property
    def release(self) -> str:
        """The release of ExecuTorch that the file was made with; empty if there is no file."""
        return self.result.toolchain.get("executorch", "").partition(" ")[0]

    @property
    def worse(self) -> bool:
        """Whether it is worse than before: it fails now, or a release gate or a figure got worse."""
        tones = [change.tone for change in self.changes.values()]
        return bool(self.held_back) or "worse" in tones or self.label == "failed"

    @property
    def meant(self) -> bool:
        """Whether the recipe has a target that delegates."""
        return set(self.result.targets) != {"portable"}

    @property
    def legend(self) -> tuple[Block, ...]:
        """The blocks of the file by kind, largest first."""
        sizes: dict[str, int] = {}
        for tile in self.tiles:
            sizes[tile.block.kind] = sizes.get(tile.block.kind, 0) + tile.block.size
        return tuple(Block(kind, kind.replace("_", " "), size) for kind, size in sizes.items())


def write_page(record: RunRecord, runs: Runs, out: Path) -> bool:
    """Writes the page about a run, with links to pages of earlier ones; returns False if it exists already.

    Times and cached stages do not count as content: a run that changed nothing keeps its zoo's page, which becomes
    ``index.html`` again if another zoo's was. OSError if it cannot be written, StoreUnusable if runs cannot be read.
    """
    others = runs_before(record.id, record.zoo, runs)
    earlier = list(others) if is_of_a_part(record) else []
    record = with_the_rest(record, earlier)
    page, mark = out / NAME, _MARK.format(content_digest(record))
    if _has_mark(page, mark):
        return False
    zoo = re.sub(r"\W+", "_", record.zoo, flags=re.ASCII)[:50] or "_"
    pages = sorted((path for path in out.glob("run-*.html") if _PAGE.fullmatch(path.name)), reverse=True)
    last = next((path for path in pages if path.stem.endswith(f"-{zoo}")), None)
    if last and _has_mark(last, mark):
        content = last.read_bytes()
    else:
        earlier += others
        started = datetime.fromisoformat(record.started).astimezone(UTC)
        named = out / f"run-{started:%Y%m%dT%H%M%S}-{zoo}.html"
        linked = [path.name for path in pages[: _PAGES_KEPT - 1] if path != named]
        content = render(record, earlier, out, mark, linked).encode("utf-8", "backslashreplace")
        replace_file(named, content, out)
        for path in pages[_PAGES_KEPT - 1 :]:
            path.unlink(missing_ok=True)
    replace_file(page, content, out)
    return True


def _has_mark(page: Path, mark: str) -> bool:
    with suppress(OSError), open_input(page) as file:
        return mark.encode() in file.read(_HEAD)
    return False


def content_digest(record: RunRecord) -> str:
    """SHA-256 of the page's content, without times and the difference between made and cached."""
    files = {
        model: {recipe: _lasting(entry) for recipe, entry in recipes.items()} for model, recipes in record.files.items()
    }
    release = record.release and record.release.to_json()
    return digest_json([record.zoo, record.version, record.commit, record.status, files, release])


def _lasting(entry: Mapping[str, Any]) -> dict[str, Any]:
    changing = {"seconds", *(("status",) if entry.get("status") in ("made", "cached") else ())}
    name = {key: Path(entry[key]).name for key in ("path", "rejected") if entry.get(key)}
    return {key: value for key, value in entry.items() if key not in changing} | name


def render(
    record: RunRecord, earlier: Sequence[RunRecord], out: Path, mark: str = "", pages: Sequence[str] = ()
) -> str:
    """The page as HTML: `earlier` runs come newest first, `mark` goes into the head, `pages` are in the folder."""
    from jinja2 import Environment, StrictUndefined  # noqa: PLC0415 - slow import that a cached run does not need
    from markupsafe import Markup  # noqa: PLC0415 - as above

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_plain
    )
    environment.filters |= {"size": format_size, "seconds": _seconds, "short": _short, "hash": _hash}
    delivered = delivered_by(record)
    files = [file for model in delivered for file in _of_model(record, delivered[model], earlier, out)]
    files.sort(key=lambda file: not file.worse)
    groups = {state: [file for file in files if file.state == state] for state in get_args(State)}
    template = environment.from_string(Path(__file__).with_name("page.html.jinja").read_text(encoding="utf-8"))
    return template.render(
        mark=Markup(mark),  # noqa: S704 - a digest
        run=record,
        pages=pages,
        time=f"{datetime.fromisoformat(record.started).astimezone(UTC):%Y-%m-%d %H:%M} UTC",
        selection=_selection(record.parameters),
        files=files,
        groups={state: alike for state, alike in groups.items() if alike},
        few=_FEW,
        columns=[*columns_of(file.result for file in files).values()],
        one_release=len({file.release for file in files if file.release}) < 2,
        totals=_totals(record, delivered),
        width=_WIDTH,
        height=_HEIGHT,
    )


def _of_model(
    record: RunRecord, recipes: Mapping[str, Delivered], earlier: Sequence[RunRecord], out: Path
) -> Iterator[FileReport]:
    """Reports about a model's files, and one for recipes that failed alike; earlier runs come newest first."""
    groups: dict[str | tuple[str, str], list[Delivered]] = {}  # by recipe, or by stage and problem of the failure
    for recipe, result in recipes.items():
        failure = result.failure
        groups.setdefault((failure.stage, failure.problem) if failure else recipe, []).append(result)
    for alike in groups.values():
        yield _file(record, alike[0], tuple(result.recipe for result in alike), earlier, out)


def _file(
    record: RunRecord, result: Delivered, recipes: tuple[str, ...], earlier: Sequence[RunRecord], out: Path
) -> FileReport:
    before = [*filter(None, (Delivered.of_run(run, result.model, result.recipe) for run in earlier))]
    stages = [stage for stage in record.models.get(result.model, ()) if set(recipes) & set(stage.recipes)]
    stages.sort(key=lambda stage: -stage.seconds)
    report = FileReport(result, before[0] if before else None, recipes, tuple(stages))
    if not result.path:
        return report
    history = [delivered for delivered in before if delivered.path][: _RUNS_SHOWN - 1]
    path, mapped, problem = out / result.model / f"{result.recipe}.pte", None, ""
    try:
        mapped = map_of(path, [path.with_suffix(".ptd")] if result.data else [])
    except (InputError, OSError) as error:
        problem = first_line(error)
    reasons = record.release.reasons if record.release else ()
    return replace(
        report,
        link="./" + quote(f"{result.name}.pte"),
        held_back=tuple(reason for reason in reasons if reason.startswith(f"{result.name}: ")),
        changes=changes_since(result, history[0]) if history else {},
        map=mapped,
        tiles=treemap(mapped.blocks, _WIDTH, _HEIGHT) if mapped else (),
        trends=tuple(_trends([*reversed(history), result])),
        trials=scatter(search.attempts, _WIDTH, _HEIGHT) if (search := result.get(FoundQuantization)) else (),
        problem=problem,
    )


def _trends(files: Sequence[Delivered]) -> Iterator[Trend]:
    """Size and SQNR over runs that made the file, where at least two have a number."""
    for name in ("size", "SQNR"):
        facts = [file.columns[name] for file in files if isinstance(file.value(name), int | float)]
        if len(facts) > 1:
            yield Trend(name, facts[0].text, facts[-1].text, sparkline([fact.number for fact in facts], 120, 28))


def _totals(record: RunRecord, delivered: Mapping[str, Mapping[str, Delivered]]) -> dict[str, int]:
    files = [result for recipes in delivered.values() for result in recipes.values()]
    stages = [stage for stages in record.models.values() for stage in stages]
    return {
        "models": len(delivered),
        "files": len(files),
        "verified": sum(result.verified for result in files),
        "bytes": sum(result.size for result in files),
        "ran": sum(stage.status == "ran" for stage in stages),
        "cached": sum(stage.status == "cached" for stage in stages),
    }


def _selection(parameters: Mapping[str, Any]) -> str:
    """The selected models, recipes and overrides; empty for the whole zoo as it is."""
    parts = [f"{name} {globs}" for name in ("models", "recipes") if (globs := parameters.get(name) or "*") != "*"]
    return ", ".join([*parts, *(f"with {change}" for change in parameters.get("overrides") or ())])


def _hash(script: str) -> str:
    """The digest by which the page's policy allows its own script only."""
    return b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _seconds(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"


def _short(block: Block) -> str:
    """The block's label; only the start of a digest."""
    return f"{block.label[:8]}…" if _DIGEST.fullmatch(block.label) else block.label


def _plain(value: object) -> object:
    """A value for the template: text is safe to print and has no terminal colours."""
    return printable(_COLOURS.sub("", value), keep="\n\t\u00a0") if type(value) is str else value


def scatter(files: Sequence[ScoredFile], width: float, height: float) -> tuple[Dot, ...]:
    """Places scored files by size, to the right, and score, upwards; none where earlier versions noted no sizes."""
    files = [file for file in files if not file.problem]
    sizes, scores = {file.size for file in files}, {file.score for file in files}
    if not all(sizes):
        return ()
    across, up = max(sizes) - min(sizes), max(scores) - min(scores)
    return tuple(
        Dot(
            file,
            width * (file.size - min(sizes)) / across if across else width / 2,
            height * (1 - (file.score - min(scores)) / up) if up else height / 2,
            # no file is as small and scores higher, or is smaller and scores as high
            front=not any(
                other.size <= file.size and other.score >= file.score
                for other in files
                if (other.size, other.score) != (file.size, file.score)
            ),
        )
        for file in files
    )


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
