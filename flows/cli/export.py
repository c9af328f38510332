"""`pteforge export`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ..interrupt import leave, leave_interrupted
from ..outcome import ZooOutcome
from ..prefect_settings import server_configured
from ..session import Session, open_session
from .options import CHANGES, JOBS, STORE
from .progress import observe
from .summary import print_failures, print_summary


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(export)


def export(  # noqa: PLR0913 - its options
    zoo: Annotated[Path, typer.Argument(help="The zoo file.", show_default=False)],
    *,
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="GLOB", help="Only models whose names match; may be given again.", show_default="all"),
    ] = None,
    recipe: Annotated[
        list[str] | None,
        typer.Option(metavar="GLOB", help="Only recipes whose names match; may be given again.", show_default="all"),
    ] = None,
    store: STORE = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the files go: DIR/MODEL/RECIPE.pte.")] = Path("out"),
    set_: CHANGES = None,
    jobs: JOBS = None,
    until: Annotated[
        str | None, typer.Option(metavar="STAGE", help="Stop after this stage.", show_default="files are made")
    ] = None,
    debug: Annotated[
        bool,
        typer.Option(
            "--debug", help="Stack traces in the files, and an ETRecord and maps of debug handles beside them."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON on standard output.")] = False,
) -> None:
    """Lower the models of a zoo, verify every file, and write them out. Only what is not cached runs."""
    try:
        with open_session(
            zoo,
            models=",".join(model or "*"),
            recipes=",".join(recipe or "*"),
            store=store,
            out=out,
            overrides=tuple(set_ or ()),
            jobs=jobs,
            until=until,
            debug=debug,
        ) as session:
            outcome = _run(session, zoo, quiet=as_json)
    except KeyboardInterrupt:
        leave_interrupted()
    if as_json:
        typer.echo(json.dumps(outcome.to_json(), indent=2))
    else:
        print_summary(outcome)
        print_failures(outcome)
    if session.server_lost:
        leave(outcome.exit_code)
    raise typer.Exit(outcome.exit_code)


def _run(session: Session, zoo: Path, *, quiet: bool) -> ZooOutcome:
    if session.settle_from_ledger() and not server_configured():
        session.record()
        return session.outcome()
    from ..run_flow import run_flow  # noqa: PLC0415 - a cached run gets by without

    with observe(session, quiet=quiet):
        return run_flow(session, zoo)
