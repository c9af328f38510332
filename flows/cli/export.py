"""`pteforge export`."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

import typer

from ...errors import PteforgeError
from ..prefect.settings import server_configured
from ..run.interrupt import leave, leave_interrupted
from ..run.request import ExportRequest
from .options import AS_JSON, takes_request
from .plan import show_plan
from .terminal import print_json


@takes_request()
def export(
    request: ExportRequest,
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would run, and run nothing: as `pteforge plan`.")
    ] = False,
    as_json: AS_JSON = False,
) -> None:
    """Lower the models of a zoo, verify every file, and write them out. Only what is not cached runs."""
    from ..reports.page import NAME
    from ..run.session import open_session
    from ..run.zoo import find_models
    from .progress import observe
    from .summary import Failures, print_failures, print_published, print_summary

    if dry_run:
        show_plan(request, as_json=as_json)
    try:
        with open_session(request) as session, session.recorded():
            find_models(session)
            failures = Failures(None if request.until else session.out / NAME)
            if session.complete and not server_configured():
                outcome = session.outcome()
            else:
                from ..prefect.run_flow import run_flow

                with observe(session, failures, quiet=as_json):
                    outcome = run_flow(session)
            with suppress(PteforgeError):  # raised again below, after what was made
                session.publish()  # unless the flow did
    except KeyboardInterrupt:
        leave_interrupted()
    if not as_json:
        print_failures(outcome, failures)
        print_summary(outcome, session.page)
    published = session.publish()
    exit_code = outcome.exit_code or (1 if published and published.regressions else 0)
    if as_json:
        print_json({**outcome.to_json(), **({"published": published.to_json()} if published else {})})
    elif published:
        print_published(published)
    if session.server_lost:
        leave(exit_code)
    raise typer.Exit(exit_code)
