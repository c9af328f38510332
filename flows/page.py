"""The page about a zoo's last run, ``out/index.html``: one file that needs no server and no script."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from ..artifacts.digest import digest_json
from ..artifacts.files import replace_file
from ..artifacts.opening import open_input, read_sidecar
from ..artifacts.runs import RunRecord, Runs, StageOutcome
from ..errors import InputError, first_line, printable
from ..tasks.diagnosis import Finding
from ..tasks.quantization import Quantization, quantization_by_method
from .figures_text import format_db, format_size
from .file_map import Block, FileMap, PayloadMap, Tile, map_of, sparkline, treemap

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
class Trend:
    """A figure over runs, oldest first."""

    label: str
    first: str
    last: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class FileReport:
    """A recipe of a model.

    Attributes:
        entry: the file, as in ``pteforge export --json``.
        link: of the file, relative to the page; empty if there is none.
        meant: whether the recipe has a target that delegates.
        problem: why there is no map of the file.
    """

    recipe: str
    entry: Mapping[str, Any]
    link: str
    sqnr: str
    size_change: Change | None
    sqnr_change: Change | None
    map: FileMap | None
    tiles: tuple[Tile, ...]
    trends: tuple[Trend, ...]
    meant: bool
    problem: str = ""

    @property
    def status(self) -> str:
        status: str = self.entry["status"]
        return status

    @property
    def quantization(self) -> Mapping[str, Quantization]:
        """What quantization reached, by method."""
        return quantization_by_method(self.entry.get("quantization"))

    @property
    def delegated(self) -> str:
        """The share of delegated calls, of each payload."""
        payloads = self.map.payloads if self.map else ()
        return ", ".join(f"{payload.name} {_share(payload)}".strip() for payload in payloads)

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
        return sum(file.status == "failed" for file in self.files.values())


@dataclass(frozen=True, slots=True)
class FailureReport:
    """A step of a model that failed, once for all recipes that need it."""

    model: str
    recipes: tuple[str, ...]
    step: str
    problem: str
    findings: tuple[Finding, ...]
    log: str


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
    changing = {"seconds", *(("status",) if entry["status"] in ("made", "cached") else ())}
    name = {key: Path(entry[key]).name for key in ("file", "data", "rejected") if entry.get(key)}
    return {key: value for key, value in entry.items() if key not in changing} | name


def render(record: RunRecord, earlier: Sequence[RunRecord], out: Path, mark: str = "") -> str:
    """The page as HTML.

    Args:
        record: the run.
        earlier: earlier runs of the zoo, newest first.
        out: folder of the files.
        mark: an HTML element for the page's head.
    """
    from jinja2 import Environment, StrictUndefined  # noqa: PLC0415 - slow import that a cached run does not need
    from markupsafe import Markup  # noqa: PLC0415 - as above

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_plain
    )
    environment.filters |= {"size": format_size, "seconds": _seconds, "short": _short}
    models = [_model(record, earlier, name, out) for name in record.files]
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    return template.render(
        mark=Markup(mark),  # noqa: S704 - a digest
        run=record,
        time=_time(record.started),
        selection=_selection(record.parameters),
        models=models,
        recipes=list(dict.fromkeys(recipe for model in models for recipe in model.files)),
        failures=list(_failures(record)),
        totals=_totals(record),
        width=_WIDTH,
        height=_HEIGHT,
    )


def _model(record: RunRecord, earlier: Sequence[RunRecord], name: str, out: Path) -> ModelReport:
    files = {
        recipe: _file(name, recipe, entry, [run.files.get(name, {}).get(recipe, {}) for run in earlier], out)
        for recipe, entry in record.files[name].items()
    }
    stages = sorted(record.models.get(name, ()), key=lambda stage: -stage.seconds)
    return ModelReport(name, files, tuple(stages))


def _file(
    model: str, recipe: str, entry: Mapping[str, Any], earlier: Iterable[Mapping[str, Any]], out: Path
) -> FileReport:
    """Reports about a recipe; `earlier` has its entries of earlier runs, newest first, empty where there was none."""
    made = bool(entry.get("file"))
    history = [found for found in earlier if found.get("file")] if made else []
    last = history[0] if history else None
    path = out / model / f"{recipe}.pte"
    mapped, problem = None, ""
    if made:
        try:
            mapped = map_of(path, path.with_suffix(".ptd") if entry.get("data") else None)
        except (InputError, OSError) as error:
            problem = first_line(error)
    return FileReport(
        recipe=recipe,
        entry=entry,
        link="./" + quote(f"{model}/{recipe}.pte") if made else "",
        sqnr=_sqnr(entry) if made else "",
        size_change=_size_change(entry["size"], last["size"]) if last else None,
        sqnr_change=_sqnr_change(entry, last) if last else None,
        map=mapped,
        tiles=treemap(mapped.blocks, _WIDTH, _HEIGHT) if mapped else (),
        trends=tuple(_trends([*reversed(history[: _RUNS_SHOWN - 1]), entry])),
        meant=_delegating(path.with_suffix(".json")),
        problem=problem,
    )


def _delegating(provenance: Path) -> bool:
    """Whether a file's recipe has a target other than portable; True if that is not known."""
    try:
        targets = json.loads(read_sidecar(provenance))["specializations"].values()
        return any(target["name"] != "portable" for target in targets)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return True


def _trends(entries: Sequence[Mapping[str, Any]]) -> Iterator[Trend]:
    """Size and SQNR over runs that made the file, if there are at least two."""
    if len(entries) > 1:
        sizes = [entry["size"] for entry in entries]
        points = sparkline(sizes, 120, 28)
        yield Trend("size", format_size(sizes[0]), format_size(sizes[-1]), points)
    measured = [entry for entry in entries if entry.get("sqnr_db") is not None]
    if len(measured) > 1:
        points = sparkline([entry["sqnr_db"] for entry in measured], 120, 28)
        yield Trend("SQNR", _sqnr(measured[0]), _sqnr(measured[-1]), points)


def _size_change(size: int, before: int) -> Change:
    if size == before:
        return Change("=", "same")
    percent = 100 * (size - before) / before if before else float("inf")
    text = f"{percent:+.1f} %" if abs(percent) >= 0.05 else f"{size - before:+} B"
    return Change(text, "better" if size < before else "worse")


def _sqnr_change(entry: Mapping[str, Any], last: Mapping[str, Any]) -> Change:
    now, before = entry.get("sqnr_db"), last.get("sqnr_db")
    if now is None or before is None:
        same = _sqnr(entry) == _sqnr(last)
        return Change(
            "=" if same else f"was {_sqnr(last)}", "same" if same else "worse" if before is None else "better"
        )
    if f"{now - before:.1f}" in ("0.0", "-0.0"):
        return Change("=", "same")
    return Change(f"{now - before:+.1f} dB", "better" if now > before else "worse")


def _sqnr(entry: Mapping[str, Any]) -> str:
    """As the terminal shows it."""
    measured = entry.get("sqnr_db") is not None or entry.get("max_abs_error") is not None
    return format_db(entry.get("sqnr_db")) if measured else "not measured"


def _share(payload: PayloadMap) -> str:
    share = payload.delegated
    return "unknown" if share is None else f"{100 * share:.0f}\u00a0%"


def _failures(record: RunRecord) -> Iterator[FailureReport]:
    for model, files in record.files.items():
        steps: dict[str, list[str]] = {}
        for recipe, entry in files.items():
            if entry["status"] == "failed":
                steps.setdefault(entry["step"], []).append(recipe)
        for step, recipes in steps.items():
            entry = files[recipes[0]]
            log = entry["log_tail"]
            if entry["bad_input"]:  # the message says what the traceback does
                log = log.partition("Traceback (most recent call last)")[0]
            findings = tuple(Finding.from_json(found) for found in entry.get("findings", ()))
            yield FailureReport(model, tuple(recipes), step, entry["problem"], findings, log.strip("\n"))


def _totals(record: RunRecord) -> dict[str, int]:
    entries = [entry for files in record.files.values() for entry in files.values()]
    stages = [stage for stages in record.models.values() for stage in stages]
    return {
        "models": len(record.files),
        "verified": sum(bool(entry.get("file") and entry.get("verified", True)) for entry in entries),
        "failed": sum(entry["status"] == "failed" for entry in entries),
        "skipped": sum(entry["status"] == "not applicable" for entry in entries),
        "bytes": sum(entry.get("size") or 0 for entry in entries),
        "ran": sum(stage.status == "ran" for stage in stages),
        "cached": sum(stage.status == "cached" for stage in stages),
    }


def _selection(parameters: Mapping[str, Any]) -> str:
    """What of the zoo was asked for; empty for all of it."""
    chosen = {name: parameters.get(name) or "*" for name in ("models", "recipes")}
    named = [f"{name} {globs}" for name, globs in chosen.items() if globs != "*"]
    return ", ".join([*named, *(f"with {change}" for change in parameters.get("overrides") or ())])


def _time(started: str) -> str:
    return f"{datetime.fromisoformat(started).astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _seconds(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"


def _short(block: Block) -> str:
    """The block's label; only the start of a digest."""
    return f"{block.label[:8]}…" if _DIGEST.fullmatch(block.label) else block.label


def _plain(value: object) -> object:
    """What the template shows: text without terminal colours, safe to print."""
    return printable(_COLOURS.sub("", value), keep="\n\t\u00a0") if type(value) is str else value
