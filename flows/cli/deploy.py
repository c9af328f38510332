"""`pteforge deploy` and `pteforge serve`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...errors import InputError
from ..prefect_settings import quiet_console, server_configured
from .options import FOLDER, JOBS, ON, PUBLISH, STORE, ZOO

if TYPE_CHECKING:
    from ..deployments import ZooDeployment

NAME = Annotated[str, typer.Option(metavar="NAME", help="Name of the deployment.")]
CRON = Annotated[
    str | None, typer.Option(metavar="CRON", help='When to run, such as "0 2 * * *".', show_default="no schedule")
]
TIMEZONE = Annotated[str | None, typer.Option(metavar="ZONE", help="Time zone of the schedule.", show_default="UTC")]


def deploy(  # noqa: PLR0913 - one parameter per option
    zoo: ZOO,
    *,
    pool: Annotated[str, typer.Option(metavar="POOL", help="Work pool whose workers run it.", show_default=False)],
    name: NAME = "nightly",
    cron: CRON = None,
    timezone: TIMEZONE = None,
    store: STORE = None,
    out: FOLDER = Path("out"),
    jobs: JOBS = None,
    on: ON = None,
    publish: PUBLISH = None,
    alerts: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE/NAME",
            help="Notification block of Prefect that reports failed, crashed and missing runs, and releases that were "
            "held back, such as slack-webhook/nights.",
            show_default="no alerts",
        ),
    ] = None,
) -> None:
    """Create or update a deployment of a zoo on your Prefect server; it runs one at a time, later runs wait."""
    overrides = (f"run.pool={pool}",) if on == "pool" else ()
    deployment = _deployment(zoo, name, cron, timezone, store, out, jobs, publish)
    deployed = replace(deployment, on=on, overrides=overrides, alerts=alerts).apply(pool)
    typer.echo(f"{deployed.change}: {deployed.name}; start a run with: prefect deployment run {deployed.name}")
    for alert in deployed.alerts:
        typer.echo(f"alert: {alert}")


def serve(
    zoo: ZOO,
    *,
    name: NAME = "nightly",
    cron: CRON = None,
    timezone: TIMEZONE = None,
    store: STORE = None,
    out: FOLDER = Path("out"),
    jobs: JOBS = None,
    publish: PUBLISH = None,
) -> None:
    """Run a zoo on a schedule in this process, without workers; Ctrl-C ends it."""
    deployment = _deployment(zoo, name, cron, timezone, store, out, jobs, publish)
    from ..deployments import serve as serve_deployment

    typer.echo(f"serving export-zoo/{name}; Ctrl-C ends it")
    serve_deployment(deployment)


def _deployment(  # noqa: PLR0917 - as above
    zoo: Path,
    name: str,
    cron: str | None,
    timezone: str | None,
    store: str | None,
    out: Path,
    jobs: int | None,
    publish: str | None,
) -> ZooDeployment:
    if not server_configured():
        raise InputError(
            "there is no Prefect server to deploy to; start one with `prefect server start`, and set PREFECT_API_URL"
        )
    quiet_console()
    from ..deployments import ZooDeployment

    return ZooDeployment(zoo, name, cron=cron, timezone=timezone, store=store, out=out, jobs=jobs, publish=publish)
