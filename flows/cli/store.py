"""`pteforge runs`, `why` and `store`: the runs in a store, why their stages ran, and the store's upkeep."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...artifacts.digest import is_digest
from ...errors import InputError, StoreError, first_line, printable
from ...tasks.results.tables import format_size
from . import completion
from .options import AS_JSON, STORE, argument, flag, open_existing_store, option
from .terminal import open_console, print_json, styled

if TYPE_CHECKING:
    from rich.progress import Progress
    from rich.text import Text

    from ...artifacts import gc
    from ...artifacts.runs import FieldChange, RunName, RunRecord, StageOutcome
    from ...artifacts.store import Store


_STYLES = {"ran": "green", "cached": "cyan", "failed": "bold red"}
_VALUE_LENGTH = 60
_WIDE = 100  # columns of a terminal from which the table of runs has years and seconds


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
    """List the stages of the last run: whether each ran or was cached, what had changed, and what stays on the CPU."""
    from ...tasks.results.delivered import delivered_by

    model, _, recipe = name.partition("/")
    with open_existing_store(store) as opened:
        chosen = opened.runs.with_names() if run_id is None else filter(None, [opened.runs.named(run_id)])
        named = next((named for named in chosen if model in named[1].models), None)
    if named is None:
        which = f"run {run_id!r}" if run_id else "run"
        raise InputError(f"no {which} with a model {model!r} is recorded in the store {opened.url}")
    run_name, run = named
    stages = _stages_of(run, model, recipe)
    results = {key: result for key, result in delivered_by(run).get(model, {}).items() if recipe in ("", key)}
    if as_json:
        about = {"run": run.id, "attempt": run_name.attempt, "zoo": run.zoo, "started": run.started}
        files = {key: result.described() for key, result in results.items()}
        print_json({**about, "files": files, "stages": [asdict(stage) for stage in stages]})
        return
    console = open_console()
    console.print(printable(f"{name} in run {run_name} of {run.zoo}, started {run.started}"), soft_wrap=True)
    for stage in stages:
        line = styled((f"{stage.status:<7}", _STYLES[stage.status]), f" {stage.step:<44} ", _reason(stage))
        console.print(line, soft_wrap=True)
        for change in stage.telling:
            console.print(styled("          ", format_change(change)), soft_wrap=True)
    for result in results.values():
        for fact in (fact for fact in result.notes if not fact.listed):
            console.print(printable(f"{result.name}: {fact.note}", keep="\n"), soft_wrap=True)


def runs(
    *,
    limit: Annotated[int, typer.Option(min=1, help="How many, the newest first.")] = 20,
    store: STORE = None,
    as_json: AS_JSON = False,
) -> None:
    """List the runs of a store: when, which zoo, how each ended, and how many stages it ran."""
    from rich import box
    from rich.table import Table

    from ...tasks.results.delivered import delivered_by

    with open_existing_store(store) as opened:
        shown_runs = list(islice(opened.runs.with_names(), limit))
        statuses = _statuses(opened, shown_runs)
    if as_json:
        listed = []
        for (name, run), status in zip(shown_runs, statuses, strict=True):
            files = {  # as `export --json` prints them
                model: {recipe: result.described() for recipe, result in results.items()}
                for model, results in delivered_by(run).items()
            }
            record = {**run.to_json(), "attempt": name.attempt, "status": status}
            listed.append({**record, "models": _counts(run), "files": files})
        print_json({"runs": listed})
        return
    console = open_console()
    table = Table(box=box.SIMPLE_HEAD)
    wide = console.width >= _WIDE
    start, seconds = ("started (UTC)", ("seconds",)) if wide else ("UTC", ())
    for column in ("run", start, "zoo", "status", *seconds, *_STYLES):
        wraps, number = column == "zoo", column in ("seconds", *_STYLES)
        table.add_column(column, no_wrap=not wraps, overflow="fold", justify="right" if number else "left")
    for (name, run), status in zip(shown_runs, statuses, strict=True):
        total = Counter(dict.fromkeys(_STYLES, 0))
        for count in _counts(run).values():
            total.update(count)
        cells = [str(name), run.started[0 if wide else 5 : 16].replace("T", " "), run.zoo, status]
        took = [f"{run.seconds:.1f}" for _ in seconds]
        table.add_row(*map(printable, cells), *took, *(str(total[style]) for style in _STYLES))
    console.print(table)
    for name, run in shown_runs:
        if run.release and run.release.reasons:
            console.print(printable(f"{name}: {run.release.describe()}"), soft_wrap=True)


def _statuses(store: Store, runs: Sequence[tuple[RunName, RunRecord]]) -> list[str]:
    """How runs ended; `lost` for one that was killed, whose record still says that it runs."""
    from ...artifacts.gc import lives

    statuses = [run.ending for _, run in runs]
    if "running" in statuses:
        with suppress(StoreError):  # a store that cannot be written cannot tell
            held = store.leases.held(store.clock())
            for index, (name, run) in enumerate(runs):
                if run.status == "running" and not (name.attempt == name.attempts and lives(run, held)):
                    statuses[index] = "lost"
    return statuses


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


def format_change(change: FieldChange) -> Text:
    """One field of a key: its name, and its value before and after."""
    return styled((change.field, "bold"), f": {_short(change.before)} -> {_short(change.after)}")


def _reason(stage: StageOutcome) -> str:
    if stage.status == "cached":
        return f"key {stage.key[:12]}" if stage.key else ""
    if stage.status == "failed":
        return first_line(stage.message)
    used = [f"{stage.seconds:.1f} s"]
    if stage.waited:
        used.append(f"waited {stage.queued:.1f} s")
    if stage.peak_memory:
        expected = f" (expected {format_size(stage.predicted_memory)})" if stage.predicted_memory else ""
        used.append(f"{format_size(stage.peak_memory)}{expected}")
    changed = ", ".join(change.field for change in stage.telling)
    parts = (", ".join(used), changed and f"changed since it last ran: {changed}", stage.message)
    return "; ".join(filter(None, parts))


def _short(value: Any) -> str:
    if value is None:
        return "none"
    text = value if isinstance(value, str) else json.dumps(value)
    if is_digest(text):
        return text[:12]
    return text if len(text) <= _VALUE_LENGTH else text[:_VALUE_LENGTH] + "..."


_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_LENGTHS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


app = typer.Typer(help="List, verify, clean up and copy the artifact store.", no_args_is_help=True)


@app.command("ls")
def list_store(*, store: STORE = None, as_json: AS_JSON = False) -> None:
    """Show the contents and the size of the store."""
    from ...artifacts import gc

    with open_existing_store(store) as opened:
        usage = gc.usage(opened)
    if as_json:
        print_json(asdict(usage))
        return
    typer.echo(f"{opened.url}: {usage.records} finished stages, {usage.objects} objects, {format_size(usage.size)}")
    for kind, count in sorted(usage.artifacts.items()):
        typer.echo(f"  {count:>6}  {kind:<24}{_share(usage.kinds[kind])}")
    if usage.models:
        typer.echo("by model, with what models share in each:")
    for model, share in usage.models.items():
        typer.echo(f"  {share.stages:>6}  {printable(model):<24}{_share(share)}")


def _share(share: gc.Share) -> str:
    oldest, newest = _age(share.oldest), _age(share.newest)
    return f"{format_size(share.size):>10}  {newest if oldest == newest else f'{newest} to {oldest}'} old"


def _age(finished: str) -> str:
    """How long ago a stage finished, in the largest unit that fits."""
    from ...artifacts.gc import seconds

    passed = max(0, time.time() - seconds(finished))
    unit, length = next((pair for pair in _LENGTHS if passed >= pair[1]), _LENGTHS[-1])
    return f"{passed / length:.0f} {unit}"


@app.command("verify")
def verify_store(*, store: STORE = None, as_json: AS_JSON = False) -> None:
    """Compare every object with its digest. Damaged ones are quarantined, and made again when needed."""
    from ...artifacts import gc

    with open_existing_store(store) as opened, _open_bar() as progress:
        task = progress.add_task("objects")
        report = gc.verify_store(opened, progress=lambda done, of: progress.update(task, completed=done, total=of))
    if as_json:
        print_json(asdict(report))
    else:
        typer.echo(f"{report.objects} objects, {format_size(report.size)}: {len(report.damaged)} damaged")
        done = "left, since the store is read-only" if report.read_only else "quarantined"
        for digest in report.damaged:
            typer.echo(f"  damaged, {done}: {digest}")
        if report.incomplete:
            typer.echo(f"  {len(report.incomplete)} stages will run again when they are needed")
    raise typer.Exit(1 if report.damaged else 0)


def _open_bar() -> Progress:
    """A progress bar, in terminals only, which leaves the standard streams alone."""
    from rich.progress import Progress

    console = open_console(stderr=True)
    hidden = not console.is_terminal
    return Progress(console=console, transient=True, disable=hidden, redirect_stdout=False, redirect_stderr=False)


_OTHER = Annotated[str, argument("Folder or URL of the other store.", "URL")]


@app.command()
def push(url: _OTHER, *, store: STORE = None, as_json: AS_JSON = False) -> None:
    """Copy finished stages to another store, those that it lacks."""
    _transfer(store, url, as_json=as_json)


@app.command()
def pull(url: _OTHER, *, store: STORE = None, as_json: AS_JSON = False) -> None:
    """Copy finished stages from another store, those that this one lacks."""
    _transfer(url, store, as_json=as_json)


def _transfer(source_url: str | None, target_url: str | None, *, as_json: bool) -> None:
    from ...artifacts.store import open_store, transfer

    with open_existing_store(source_url) as source, open_store(target_url) as target:
        if source.url == target.url:
            raise InputError(f"{source.url} is the store itself; give another one")
        with _open_bar() as progress:
            task = progress.add_task("stages")
            done = transfer(source, target, lambda count, of: progress.update(task, completed=count, total=of))
    if as_json:
        print_json(asdict(done))
        return
    lost = f", {done.lost} are damaged and were left out" if done.lost else ""
    typer.echo(f"copied {done.stages} stages from {source.url} to {target.url}; {done.present} were there{lost}")


@app.command()
def rekey(*, store: STORE = None, as_json: AS_JSON = False) -> None:
    """Sign a shared store with another key: PTEFORGE_NEW_SIGNING_KEY in place of PTEFORGE_SIGNING_KEY."""
    from ..prefect.settings import store_url

    url = store_url(store) or ""
    if "://" not in url or url.startswith(("file:", "local:", "memory:")):
        raise InputError(f"{url or 'the default store'} is not signed: only stores that several machines share are")
    from ...artifacts.records import NEW_KEY_VARIABLE, signing_key
    from ...artifacts.remote_files import RemoteFiles
    from ...artifacts.store import rekey

    files = RemoteFiles(url)
    done = rekey(files, signing_key(files.url), signing_key(files.url, NEW_KEY_VARIABLE))
    if as_json:
        print_json(asdict(done))
        return
    typer.echo(
        f"signed {done.records} records of {files.url} with the new key, dropped {done.dropped}; "
        "from now on, set PTEFORGE_SIGNING_KEY to it"
    )


_MAX_BYTES = (
    "Also forget stages until the rest fits, such as 20GiB: what was not used for the longest time first, "
    "and nothing that --keep-last keeps."
)


@app.command("gc")
def collect_garbage(
    *,
    store: STORE = None,
    older_than: Annotated[
        str | None, option("Also forget stages that finished before this age, such as 30d.", "AGE")
    ] = None,
    keep_newer_than: Annotated[
        str, option("Never remove objects younger than this; a running job may need them.", "AGE")
    ] = "1d",
    keep_last: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Also forget stages that the newest N runs of each zoo did not use."),
    ] = None,
    max_bytes: Annotated[str | None, option(_MAX_BYTES, "SIZE")] = None,
    dry_run: Annotated[bool, flag("--dry-run", "Only say what would be removed.")] = False,
    explain: Annotated[bool, flag("--explain", "Also say why objects are kept; with --json, of each object.")] = False,
    as_json: AS_JSON = False,
) -> None:
    """Remove objects that no finished stage needs."""
    from ...artifacts import gc

    young = _parse_age(keep_newer_than)
    old = None if older_than is None else _parse_age(older_than)
    most = None if max_bytes is None else _parse_size(max_bytes)
    with open_existing_store(store) as opened:
        report = gc.collect(
            opened, keep_newer_than=young, older_than=old, keep_last=keep_last, max_bytes=most, dry_run=dry_run
        )
    if as_json:
        print_json({name: value for name, value in asdict(report).items() if explain or name != "reasons"})
        return
    verb = "would remove" if dry_run else "removed"
    typer.echo(
        f"{verb} {report.objects_removed} objects ({format_size(report.bytes_removed)}) and {report.records_dropped} "
        f"records; kept {report.objects_kept} objects ({format_size(report.bytes_kept)})"
    )
    explained = report.kept if explain or not report.objects_removed else {}
    for reason, kept in sorted(explained.items(), key=lambda item: -item[1].size):
        typer.echo(f"  {kept.objects:>6} objects  {format_size(kept.size):>10}  {printable(reason)}")


def _parse_size(text: str) -> int:
    """Bytes of a text like ``512MiB`` or ``20GiB``; raises InputError for any other text."""
    from ...configs.base import parse_bytes

    try:
        return int(str(parse_bytes(int(text) if text.isdecimal() else text)))
    except ValueError as error:
        raise InputError(f"{error}; give --max-bytes one of these") from error


def _parse_age(text: str) -> timedelta:
    """Parses a duration like ``90s``, ``12h`` or ``30d``; raises InputError for any other text."""
    match = re.fullmatch(r"(\d+)([smhdw])", text)
    if not match:
        raise InputError(f"{text!r} is not an age; write a number and a unit, such as 90s, 12h, 30d")
    try:
        return timedelta(**{_UNITS[match[2]]: int(match[1])})
    except OverflowError as error:
        raise InputError(f"{text!r} is too long; write a shorter age, such as 30d") from error
