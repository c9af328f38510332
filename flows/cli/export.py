"""`pteforge init`, `export`, `plan`, `deploy` and `serve`: from a builder to runs of its zoo."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

from ...errors import InputError, PteforgeError, convert_os_errors, printable
from ...tasks.results.tables import format_size
from ..prefect.settings import by_pool, open_configured, quiet_console, server_configured
from ..run.interrupt import leave, leave_interrupted
from ..run.json_log import VARIABLE, log_json
from ..run.request import ExportRequest
from . import completion
from .options import AS_JSON, flag, option, takes_request
from .store import format_change
from .terminal import open_console, print_json, styled

if TYPE_CHECKING:
    from rich.console import Console

    from ...artifacts.ledger import StageRecord
    from ...artifacts.runs import FieldChange
    from ...tasks.engine.runner import StageCall
    from ..prefect.deployments import ZooDeployment
    from ..run.session import Session


def _set_format(value: str) -> str:
    if value == "json":
        log_json()
    return value


_EVENTS = "With json, log each event to standard error as one JSON object, in place of progress and tables."
_METRICS = "Add the run to metrics for Prometheus in this file, or in one named after the zoo in this folder."


@takes_request()
def export(
    request: ExportRequest,
    *,
    log_format: Annotated[
        Literal["text", "json"], typer.Option(envvar=VARIABLE, is_eager=True, callback=_set_format, help=_EVENTS)
    ] = "text",
    metrics: Annotated[Path | None, typer.Option(metavar="FILE.prom", envvar="PTEFORGE_METRICS", help=_METRICS)] = None,
    dry_run: Annotated[bool, flag("--dry-run", "Show what would run, and run nothing: as `pteforge plan`.")] = False,
    quiet: Annotated[bool, flag("--quiet", "Print only failures and the last line.", "-q")] = False,
    part: Annotated[str | None, typer.Option(hidden=True)] = None,  # RUN:ID, for a run that is a part of another one
    as_json: AS_JSON = False,
) -> None:
    """Lower the models of a zoo, verify every file, and write them out. Only what is not cached runs."""
    from ..prefect.run_flow import run_flow
    from ..reports.page import NAME
    from ..run.telemetry import check_metrics_file
    from ..run.toolchains import lower_elsewhere
    from ..run.zoo import find_models
    from .progress import Failures, observe, print_failures, print_published, print_summary

    if dry_run:
        _show_plan(request, as_json=as_json)
    as_text = not as_json and log_format == "text"
    part_of, _, part_id = part.partition(":") if part else (None, "", None)
    try:
        with (
            open_configured(request, id=part_id, part_of=part_of) as session,
            session.recording.open(metrics and check_metrics_file(metrics)),
        ):
            lower_elsewhere(session, by_pool)
            find_models(session)
            failures = Failures(None if request.until else session.out / NAME)
            if session.progress.complete and not server_configured():
                outcome = session.progress.outcome()
            else:
                with observe(session, failures, quiet=quiet or not as_text):
                    outcome = run_flow(session)
            with suppress(PteforgeError):  # raised again below, after what was made
                session.recording.publish()  # unless the flow did
            before = None if quiet or not as_text else session.recording.previous
    except KeyboardInterrupt:
        leave_interrupted()
    if as_text:
        print_failures(outcome, failures)
        print_summary(outcome, session.recording.page, before, quiet=quiet)
    published = session.recording.publish()
    exit_code = outcome.exit_code or (1 if published and published.regressions else 0)
    if as_json:
        print_json(outcome.to_json() | ({"published": published.to_json()} if published else {}))
    elif published and as_text and (published.reasons or not quiet):
        print_published(published)
    if session.prefect.lost:
        leave(exit_code)
    raise typer.Exit(exit_code)


@dataclass(frozen=True)
class Due:
    """A call of a stage that an export would run."""

    call: StageCall
    reason: str
    changes: tuple[FieldChange, ...] | None  # fields of its key that differ from its last run; None without one
    last: StageRecord | None  # its last run, for time and memory
    predicted_memory: int  # bytes that must be free before it starts


@takes_request("plan")
def plan(request: ExportRequest, *, as_json: AS_JSON = False) -> None:
    """Show which stages an export would run, and why. Runs nothing; exits with 3 if there is something to do."""
    _show_plan(request, as_json=as_json)


def _show_plan(request: ExportRequest, *, as_json: bool) -> NoReturn:
    with open_configured(request, writes=False) as session:
        cached, will_run, may_run = _planned_stages(session)
    elsewhere = {f"{model.name}/{name}": other for model in session.models for name, other in model.elsewhere.items()}
    if as_json:
        stages = [_due_json(due) for due in will_run]
        stages += [{"stage": call.title, "runs": "maybe"} for call in may_run]
        print_json({"zoo": session.zoo, "cached": cached, "stages": stages, "elsewhere": elsewhere})
    else:
        for file, toolchain in elsewhere.items():
            line = printable(f"{file} is left to its toolchain, {toolchain!r}, which plans it where it is exported")
            open_console().print(line, style="dim", soft_wrap=True)
        _print_plan(open_console(), cached, will_run, may_run)
    raise typer.Exit(3 if will_run else 0)


def _planned_stages(session: Session) -> tuple[int, list[Due], list[StageCall]]:
    """The number of cached stages, the stages that will run, and those that may run."""
    from ...artifacts.runs import differing_fields
    from ...tasks.engine.executor import REFRESHED, PlanRunner, predict_memory
    from ...tasks.engine.runner import CutShort
    from ...tasks.lowering.graph import lower_model
    from ...tasks.lowering.runs import ModelRun, run_without_loop

    refresh = session.request.refresh
    session.executor.stop_refreshing()  # cached stages are found, and run again
    runner = PlanRunner(session.executor)
    whole = set()  # keys of the stages of models whose stages are all cached
    for model in session.models:
        if record := None if refresh else session.whole_models.find(model):
            whole |= {stage.key for stage in record.stages}
            continue
        for outcome in run_without_loop(lower_model(ModelRun(runner, model))).values():
            if isinstance(outcome, Exception) and not isinstance(outcome, CutShort):
                raise outcome
    store, will_run = session.store, []
    cached = {done.key.digest(): done for done in runner.found}
    if refresh:
        for key, done in cached.items():
            memory = predict_memory(done.call, store)
            will_run.append(Due(done.call, REFRESHED, (), store.ledger.lookup(key), memory))
    for call in runner.will_run.values():
        slot = store.ledger.last(call.slot)
        changes = differing_fields(slot.fields, session.executor.key(call).fields()) if slot else None
        reason = "has not run before" if changes is None else "changed:" if changes else "its outputs are gone"
        will_run.append(Due(call, reason, changes, store.ledger.last_run(call.slot), predict_memory(call, store)))
    return 0 if refresh else len(cached.keys() | whole), will_run, runner.may_run


def _print_plan(console: Console, cached: int, will_run: list[Due], may_run: list[StageCall]) -> None:
    for due in will_run:
        needs = f"about {format_size(due.predicted_memory)} of memory"
        if due.last:
            needs = f"took {due.last.seconds:.1f} s, {format_size(due.last.peak_memory)}"
        needs = f"  ({needs})" if due.call.stage.runs_isolated(due.call.params) else ""
        line = styled(("will run ", "green"), printable(due.call.title), f"  {due.reason}", (needs, "dim"))
        console.print(line, soft_wrap=True)
        for change in due.changes or ():
            console.print(styled("         ", format_change(change)), soft_wrap=True)
    for model, count in Counter(call.model for call in may_run).items():
        console.print(f"may run  {printable(model)}: {count} later stages, where outputs change", style="dim")
    summary = f"{cached} stages cached, {len(will_run)} will run, {len(may_run)} may run"
    console.print(summary if will_run else f"nothing to do: {cached} stages cached")


def _due_json(due: Due) -> dict[str, Any]:
    changes = due.changes
    return {
        "stage": due.call.title,
        "runs": "yes",
        "changed": None if changes is None else {change.field: [change.before, change.after] for change in changes},
        "last_seconds": due.last and due.last.seconds,
        "last_peak_memory": due.last and due.last.peak_memory,
        "predicted_memory": due.predicted_memory,
    }


_EXAMPLES = Path(__file__).parents[2] / "examples" / "zoo"


def init(
    builder: Annotated[
        str | None,
        typer.Argument(
            metavar="PACKAGE.MODULE:BUILDER", show_default=False, help="The builder; or the folder for an --example."
        ),
    ] = None,
    file: Annotated[Path, typer.Argument(help="The zoo file to write.")] = Path("zoo.yaml"),
    *,
    recipe: Annotated[
        list[str] | None,
        option("A shipped recipe; may be given again.", "NAME", "xnnpack-fp32", complete=completion.shipped_recipes),
    ] = None,
    example: Annotated[
        Literal["starter"] | None, option("Write this example zoo, with the code of its models, instead.", "starter")
    ] = None,
) -> None:
    """Write a zoo file for a builder, the name of a model or a .pt2 file, with comments that say how to go on."""
    if example:
        for source in sorted(_EXAMPLES.glob(f"{example}*"), reverse=True):
            _write(Path(builder or "", source.name), source.read_text(encoding="utf-8"))
        return
    if builder is None:
        raise InputError("name a builder, such as package.module:builder, or --example starter")
    from ...configs.load import DEFAULT_RECIPE, zoo_text
    from ...configs.sources import expand_source

    folder, (kind, _) = file.absolute().parent, expand_source(builder)
    if kind == "program" and not (folder / builder).is_file():
        raise InputError(f"{builder!r} is no file in {folder}")
    optional, needed = _arguments(builder, folder) if kind == "builder" else ([], [])
    _write(file, zoo_text(builder, recipe or [DEFAULT_RECIPE], optional, needed))


def _write(file: Path, text: str) -> None:
    if file.exists():
        raise InputError(f"{file} is there already, and is not overwritten; name another file")
    with convert_os_errors(InputError, f"{file} cannot be written"):
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as opened:
            opened.write(text)
    typer.echo(f"wrote {file}" + f"; lower it with: pteforge export {file}" * (file.suffix != ".py"))


def _arguments(builder: str, folder: Path) -> tuple[Sequence[str], Sequence[str]]:
    """The optional and the needed arguments of a builder; raises InputError if there is no such builder."""
    from ...configs.base import check_object_reference
    from ...tasks.engine.keys.builder import find_builder, find_signature
    from ...tasks.engine.keys.search import ModuleSearch

    try:
        check_object_reference(builder)
    except ValueError as error:
        raise InputError(f"{builder!r} is not written as package.module:builder") from error
    finder = ModuleSearch((folder,))
    find_builder(builder, finder)
    signature = find_signature(builder, finder)
    needed = signature.needed if signature else ()
    return [name for name in signature.names if name not in needed] if signature else [], needed


_NAME = Annotated[str, option("Name of the deployment.", "NAME")]
_CRON = Annotated[str | None, option('When to run, such as "0 2 * * *".', "CRON", "no schedule")]
_ZONE = Annotated[str | None, option("Time zone of the schedule.", "ZONE", "UTC")]


@takes_request()
def deploy(
    request: ExportRequest,
    *,
    pool: Annotated[str, option("Work pool whose workers run it.", "POOL", False)],
    name: _NAME = "nightly",
    cron: _CRON = None,
    timezone: _ZONE = None,
    alerts: Annotated[
        str | None,
        option(
            "Notification block of Prefect that reports failed, crashed and missing runs, and releases that are held "
            "back by gates or withdrawn, such as slack-webhook/nights.",
            "TYPE/NAME",
            "no alerts",
        ),
    ] = None,
    upgrade_to: Annotated[
        str | None,
        option("Rehearse an upgrade to this toolchain instead, as `pteforge upgrade`.", "NAME", "none"),
    ] = None,
    fail_on: Annotated[str | None, option("Limits of what the upgrade may change.", "LIMITS", "none")] = None,
) -> None:
    """Create or update a deployment of a zoo on your Prefect server; its runs are queued, one at a time."""
    if request.on == "pool":
        request = request.model_copy(update={"overrides": (f"run.pool={pool}", *request.overrides)})
    if fail_on and not upgrade_to:
        raise InputError("--fail-on is for --upgrade-to; gates of releases are in the zoo: publish.gates")
    deployment = _deployment(request, name, cron, timezone)
    deployed = replace(deployment, alerts=alerts, upgrade_to=upgrade_to, fail_on=fail_on).apply(pool)
    typer.echo(f"{deployed.change}: {deployed.name}; start a run with: prefect deployment run {deployed.name}")
    for alert in deployed.alerts:
        typer.echo(f"alert: {alert}")


@takes_request()
def serve(request: ExportRequest, *, name: _NAME = "nightly", cron: _CRON = None, timezone: _ZONE = None) -> None:
    """Run a zoo on a schedule in this process, without workers; Ctrl-C ends it."""
    deployment = _deployment(request, name, cron, timezone)
    from ..prefect.deployments import serve as serve_deployment

    typer.echo(f"serving export-zoo/{name}; Ctrl-C ends it")
    serve_deployment(deployment)


def _deployment(request: ExportRequest, name: str, cron: str | None, timezone: str | None) -> ZooDeployment:
    if not server_configured():
        raise InputError("there is no Prefect server; start one with `prefect server start`, and set PREFECT_API_URL")
    quiet_console()
    from ..prefect.deployments import ZooDeployment

    return ZooDeployment(request, name, cron, timezone)
