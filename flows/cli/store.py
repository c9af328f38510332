"""`pteforge store`: looking at a store, checking it, cleaning it up."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from datetime import timedelta
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from ...artifacts import gc
from ...errors import InputError
from .options import STORE, open_existing_store
from .summary import format_size

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_JSON = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    group = typer.Typer(help="Look at the artifact store, check it, clean it up.", no_args_is_help=True)
    group.command("ls")(list_store)
    group.command("verify")(verify_store)
    group.command("gc")(collect_garbage)
    app.add_typer(group, name="store")


def list_store(*, store: STORE = None, as_json: _JSON = False) -> None:
    """Say what is in the store and how much room it takes."""
    with open_existing_store(store) as opened:
        usage = gc.usage(opened)
    if as_json:
        typer.echo(json.dumps(asdict(usage), indent=2))
        return
    typer.echo(f"{opened.url}: {usage.records} finished stages, {usage.objects} objects, {format_size(usage.size)}")
    for kind, count in sorted(usage.artifacts.items()):
        typer.echo(f"  {count:>6}  {kind}")


def verify_store(*, store: STORE = None, as_json: _JSON = False) -> None:
    """Read every object and compare it with its digest; damaged ones are moved aside and made again when needed."""
    console = Console(stderr=True)
    bar = Progress(console=console, transient=True, disable=not console.is_terminal)
    with open_existing_store(store) as opened, bar as progress:
        task = progress.add_task("objects")
        report = gc.verify_store(opened, progress=lambda done, of: progress.update(task, completed=done, total=of))
    if as_json:
        typer.echo(json.dumps(asdict(report), indent=2))
    else:
        typer.echo(f"{report.objects} objects, {format_size(report.size)}: {len(report.damaged)} damaged")
        for digest in report.damaged:
            typer.echo(f"  damaged, moved aside: {digest}")
        if report.incomplete:
            typer.echo(f"  {len(report.incomplete)} stages will run again when they are needed")
    raise typer.Exit(1 if report.damaged else 0)


def collect_garbage(
    *,
    store: STORE = None,
    older_than: Annotated[
        str | None, typer.Option(metavar="AGE", help="Also forget stages that finished longer ago, such as 30d.")
    ] = None,
    keep_newer_than: Annotated[
        str, typer.Option(metavar="AGE", help="Never remove objects younger than this; a running job may need them.")
    ] = "1d",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    as_json: _JSON = False,
) -> None:
    """Remove objects that no finished stage needs."""
    young = parse_age(keep_newer_than)
    old = None if older_than is None else parse_age(older_than)
    with open_existing_store(store) as opened:
        report = gc.collect(opened, keep_newer_than=young, older_than=old, dry_run=dry_run)
    if as_json:
        typer.echo(json.dumps(asdict(report), indent=2))
        return
    verb = "would remove" if dry_run else "removed"
    typer.echo(
        f"{verb} {report.objects_removed} objects ({format_size(report.bytes_removed)}) and {report.records_dropped} "
        f"records; kept {report.objects_kept} objects ({format_size(report.bytes_kept)})"
    )


def parse_age(text: str) -> timedelta:
    """A span of time such as ``90s``, ``12h``, ``30d``; raises InputError for anything else."""
    match = re.fullmatch(r"(\d+)([smhdw])", text)
    if not match:
        raise InputError(f"{text!r} is not an age; write a number and a unit, such as 90s, 12h, 30d")
    try:
        return timedelta(**{_UNITS[match[2]]: int(match[1])})
    except OverflowError as error:
        raise InputError(f"{text!r} is more than a computer can count; write a shorter age, such as 30d") from error
