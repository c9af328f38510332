"""`pteforge runs` and `pteforge why`: what runs did, and why their stages ran."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...errors import InputError, StoreError, first_line, printable
from ..reports.figures_text import format_size
from . import completion
from .options import AS_JSON, STORE, argument, open_existing_store, option
from .terminal import open_console, print_json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from ...artifacts.runs import FieldChange, RunRecord, StageOutcome
    from ...artifacts.store import Store

_STYLES = {"ran": "green", "cached": "cyan", "failed": "bold red"}
_LIMIT = 60


def why(
    name: Annotated[str, argument("What to explain.", "MODEL[/RECIPE]", complete=completion.recorded)],
    *,
    run_id: Annotated[
        str | None,
        option("A run that `pteforge runs` lists.", "ID", "the last", name="--run", complete=completion.runs),
    ] = None,
    store: STORE = None,
    as_json: AS_JSON = False,
) -> None:
    """List the stages of the last run: whether each ran or was cached, and what had changed for those that ran."""
    model, _, recipe = name.partition("/")
    with open_existing_store(store) as opened:
        run = next((run for run in opened.runs if model in run.models and run.id.startswith(run_id or "")), None)
    if run is None:
        which = f"run {run_id!r}" if run_id else "run"
        raise InputError(f"no {which} with a model {model!r} is recorded in the store {opened.url}")
    stages = _stages_of(run, model, recipe)
    if as_json:
        print_json(
            {"run": run.id, "zoo": run.zoo, "started": run.started, "stages": [asdict(stage) for stage in stages]}
        )
        return
    console = open_console()
    console.print(printable(f"{name} in the run of {run.zoo} at {run.started}"), soft_wrap=True)
    for stage in stages:
        _print(console, stage)


def runs(
    *,
    limit: Annotated[int, typer.Option(min=1, help="How many, the newest first.")] = 20,
    store: STORE = None,
    as_json: AS_JSON = False,
) -> None:
    """List the runs of a store: when, which zoo, how each ended, and how many stages it ran."""
    from rich import box
    from rich.table import Table

    with open_existing_store(store) as opened:
        shown_runs = list(islice(opened.runs, limit))
        statuses = _statuses(opened, shown_runs)
    if as_json:
        shown = [
            {**run.to_json(), "status": statuses[run.id], "models": _counts(run), "files": _described(run)}
            for run in shown_runs
        ]
        print_json({"runs": shown})
        return
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("run", "started (UTC)", "zoo", "status"):
        table.add_column(column, no_wrap=column != "zoo")
    for column in ("seconds", "ran", "cached", "failed"):
        table.add_column(column, justify="right")
    for run in shown_runs:
        total = Counter(dict.fromkeys(_STYLES, 0))
        for count in _counts(run).values():
            total.update(count)
        started, status = run.started[:16].replace("T", " "), statuses[run.id]
        cells = [run.id[:8], started, run.zoo, status, f"{run.seconds:.1f}"]
        table.add_row(*map(printable, cells), *(str(total[status]) for status in _STYLES))
    console = open_console()
    console.print(table)
    for run in shown_runs:
        if run.release and run.release.reasons:
            console.print(printable(f"{run.id[:8]}: {run.release.describe()}"), soft_wrap=True)


def _statuses(store: Store, known: Sequence[RunRecord]) -> dict[str, str]:
    """How runs ended, by id; `lost` if one was killed, which leaves its record as it was the last time."""
    from ...artifacts.gc import lives

    statuses = {run.id: run.ending for run in known}
    if "running" in statuses.values():
        with suppress(StoreError):  # a store that cannot be written does not tell
            held = store.leases.held(store.clock())
            statuses |= {run.id: "lost" for run in known if run.status == "running" and not lives(run, held)}
    return statuses


def _described(run: RunRecord) -> dict[str, Any]:
    """What it made of each model and recipe, as ``pteforge export --json`` says it."""
    from ...tasks.results.delivered import delivered_by

    return {
        model: {recipe: made.described() for recipe, made in recipes.items()}
        for model, recipes in delivered_by(run).items()
    }


def _counts(run: RunRecord) -> dict[str, Counter[str]]:
    """How many stages of each model ran, were cached and failed."""
    return {model: Counter(stage.status for stage in stages) for model, stages in run.models.items()}


def _stages_of(run: RunRecord, model: str, recipe: str) -> Sequence[StageOutcome]:
    stages = run.models[model]
    selected = [stage for stage in stages if not recipe or recipe in stage.recipes]
    if not stages:
        raise InputError(f"no stage of {model!r} ran or was found in its last run")
    if not selected:
        names = sorted({name for stage in stages for name in stage.recipes})
        raise InputError(f"the last run of {model!r} had no recipe {recipe!r}; it had {', '.join(names)}")
    return selected


def _print(console: Console, stage: StageOutcome) -> None:
    from rich.text import Text

    line = Text.assemble((f"{stage.status:<7}", _STYLES[stage.status]), f" {stage.step:<44} ", _reason(stage))
    console.print(line, soft_wrap=True)
    for change in stage.telling:
        console.print(Text.assemble("          ", format_change(change)), soft_wrap=True)


def format_change(change: FieldChange) -> Text:
    """One field of a key: its name, and its value before and after."""
    from rich.text import Text

    return Text.assemble((change.field, "bold"), f": {_short(change.before)} -> {_short(change.after)}")


def _reason(stage: StageOutcome) -> str:
    match stage.status:
        case "cached":
            return f"key {stage.key[:12]}" if stage.key else ""
        case "failed":
            return first_line(stage.message)
    parts = [", ".join(_needed(stage))]
    if changes := stage.telling:
        parts.append(f"changed since it last ran: {', '.join(change.field for change in changes)}")
    if stage.message:
        parts.append(stage.message)
    return "; ".join(parts)


def _needed(stage: StageOutcome) -> Iterator[str]:
    """The time and memory of a stage that ran."""
    yield f"{stage.seconds:.1f} s"
    if stage.waited:
        yield f"waited {stage.queued:.1f} s"
    if stage.peak_memory:
        expected = f" (expected {format_size(stage.predicted_memory)})" if stage.predicted_memory else ""
        yield f"{format_size(stage.peak_memory)}{expected}"


def _short(value: Any) -> str:
    from ...artifacts.digest import is_digest

    if value is None:
        return "none"
    text = value if isinstance(value, str) else json.dumps(value)
    if is_digest(text):
        return text[:12]
    return text if len(text) <= _LIMIT else text[:_LIMIT] + "..."
