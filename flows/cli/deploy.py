"""`pteforge deploy` and `pteforge serve`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ...errors import InputError
from ..prefect.settings import quiet_console, server_configured
from ..run.request import ExportRequest
from .options import option, takes_request

if TYPE_CHECKING:
    from ..prefect.deployments import ZooDeployment

NAME = Annotated[str, option("Name of the deployment.", "NAME")]
CRON = Annotated[str | None, option('When to run, such as "0 2 * * *".', "CRON", "no schedule")]
TIMEZONE = Annotated[str | None, option("Time zone of the schedule.", "ZONE", "UTC")]


@takes_request()
def deploy(
    request: ExportRequest,
    *,
    pool: Annotated[str, option("Work pool whose workers run it.", "POOL", False)],
    name: NAME = "nightly",
    cron: CRON = None,
    timezone: TIMEZONE = None,
    alerts: Annotated[
        str | None,
        option(
            "Notification block of Prefect that reports failed, crashed and missing runs, and releases that were "
            "held back, such as slack-webhook/nights.",
            "TYPE/NAME",
            "no alerts",
        ),
    ] = None,
) -> None:
    """Create or update a deployment of a zoo on your Prefect server; it runs one at a time, later runs wait."""
    if request.on == "pool":
        request = request.model_copy(update={"overrides": (f"run.pool={pool}", *request.overrides)})
    deployed = _deployment(request, name, cron, timezone, alerts).apply(pool)
    typer.echo(f"{deployed.change}: {deployed.name}; start a run with: prefect deployment run {deployed.name}")
    for alert in deployed.alerts:
        typer.echo(f"alert: {alert}")


@takes_request()
def serve(request: ExportRequest, *, name: NAME = "nightly", cron: CRON = None, timezone: TIMEZONE = None) -> None:
    """Run a zoo on a schedule in this process, without workers; Ctrl-C ends it."""
    deployment = _deployment(request, name, cron, timezone)
    from ..prefect.deployments import serve as serve_deployment

    typer.echo(f"serving export-zoo/{name}; Ctrl-C ends it")
    serve_deployment(deployment)


def _deployment(
    request: ExportRequest, name: str, cron: str | None, timezone: str | None, alerts: str | None = None
) -> ZooDeployment:
    if not server_configured():
        raise InputError(
            "there is no Prefect server to deploy to; start one with `prefect server start`, and set PREFECT_API_URL"
        )
    quiet_console()
    from ..prefect.deployments import ZooDeployment

    return ZooDeployment(request, name, cron, timezone, alerts)
