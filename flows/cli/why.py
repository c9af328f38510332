"""`pteforge why`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from ...artifacts.runs import RunRecord, StageOutcome
from ...errors import InputError
from .options import STORE, open_existing_store

_STYLES = {"ran": "green", "cached": "cyan", "failed": "bold red"}
_SHOWN = 60


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(why)


def why(
    name: Annotated[str, typer.Argument(metavar="MODEL[/RECIPE]", show_default=False, help="What to explain.")],
    *,
    store: STORE = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say for each stage of the last run whether it ran or was cached, and what had changed for those that ran."""
    model, _, recipe = name.partition("/")
    with open_existing_store(store) as opened:
        run = opened.runs.latest(model)
    if run is None:
        raise InputError(f"no run with a model {model!r} is recorded in the store {opened.url}")
    stages = _stages_of(run, model, recipe)
    if as_json:
        typer.echo(json.dumps({"zoo": run.zoo, "started": run.started, "stages": [_json(s) for s in stages]}, indent=2))
        return
    console = Console()
    console.print(f"{name} in the run of {run.zoo} at {run.started}", highlight=False)
    for stage in stages:
        _print(console, stage)


def _stages_of(run: RunRecord, model: str, recipe: str) -> Sequence[StageOutcome]:
    stages = run.models[model]
    chosen = [stage for stage in stages if not recipe or recipe in stage.recipes]
    if not stages:
        raise InputError(f"no stage of {model!r} ran or was found in its last run")
    if not chosen:
        known = sorted({name for stage in stages for name in stage.recipes})
        raise InputError(f"the last run of {model!r} had no recipe {recipe!r}; it had {', '.join(known)}")
    return chosen


def _print(console: Console, stage: StageOutcome) -> None:
    line = Text.assemble((f"{stage.status:<7}", _STYLES[stage.status]), f" {stage.step:<44} ", _reason(stage))
    console.print(line, soft_wrap=True)
    for change in stage.telling:
        console.print(
            Text.assemble("          ", (change.field, "bold"), f": {_short(change.before)} -> {_short(change.after)}"),
            soft_wrap=True,
        )


def _reason(stage: StageOutcome) -> str:
    match stage.status:
        case "cached":
            return f"key {stage.key[:12]}" if stage.key else ""
        case "failed":
            return stage.message.splitlines()[0] if stage.message else ""
    took = f"{stage.seconds:.1f} s"
    if changes := stage.telling:
        return f"{took}; changed since it last ran: {', '.join(change.field for change in changes)}"
    return f"{took}; {stage.message}" if stage.message else took


def _short(value: Any) -> str:
    if value is None:
        return "none"
    text = value if isinstance(value, str) else json.dumps(value)
    if len(text) == 64 and all(c in "0123456789abcdef" for c in text):
        return text[:12]
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def _json(stage: StageOutcome) -> dict[str, Any]:
    return asdict(stage)
