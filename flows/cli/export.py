"""`pteforge export`."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from ...errors import PteforgeError
from ..interrupt import leave, leave_interrupted
from ..prefect_settings import server_configured
from .options import (
    AS_JSON,
    CHANGES,
    DEBUG,
    FOLDER,
    JOBS,
    MODELS,
    ON,
    PUBLISH,
    RECIPES,
    REFRESH,
    STORE,
    UNTIL,
    ZOO_OR_BUILDER,
)
from .plan import plan
from .terminal import print_json


def export(  # noqa: PLR0913 - one parameter per option
    zoo: ZOO_OR_BUILDER,
    *,
    model: MODELS = None,
    recipe: RECIPES = None,
    store: STORE = None,
    out: FOLDER = Path("out"),
    set_: CHANGES = None,
    jobs: JOBS = None,
    until: UNTIL = None,
    debug: DEBUG = False,
    on: ON = None,
    publish: PUBLISH = None,
    refresh: REFRESH = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would run, and run nothing: as `pteforge plan`.")
    ] = False,
    as_json: AS_JSON = False,
) -> None:
    """Lower the models of a zoo, verify every file, and write them out. Only what is not cached runs."""
    from ..page import NAME
    from ..session import open_session
    from ..zoo import find_models
    from .progress import observe
    from .summary import Failures, print_failures, print_published, print_summary

    if dry_run:
        plan(
            zoo,
            model=model,
            recipe=recipe,
            store=store,
            set_=set_,
            until=until,
            debug=debug,
            refresh=refresh,
            as_json=as_json,
        )
    try:
        with (
            open_session(
                zoo,
                models=model or "*",
                recipes=recipe or "*",
                store=store,
                out=out,
                overrides=tuple(set_ or ()),
                jobs=jobs,
                until=until,
                debug=debug,
                on=on,
                publish=publish,
                refresh=refresh,
            ) as session,
            session.recorded(),
        ):
            find_models(session)
            failures = Failures(None if until else session.out / NAME)
            if session.complete and not server_configured():
                outcome = session.outcome()
            else:
                from ..run_flow import run_flow

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
