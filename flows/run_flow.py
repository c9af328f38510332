"""Running a session as a Prefect flow from an ordinary command."""

from __future__ import annotations

import logging
from pathlib import Path

from ..errors import PteforgeError
from .outcome import ZooOutcome
from .prefect_settings import quiet_console, set_embedded_defaults, without_heartbeat
from .session import Session, prepared

_log = logging.getLogger(__name__)


def run_flow(session: Session, zoo: Path) -> ZooOutcome:
    """Runs a session's models as a run of the flow `export-zoo`, on the configured Prefect server or an embedded one.

    The result is judged by what was made, not by the flow's state: a server that goes away does not undo work.

    Raises:
        PteforgeError: Prefect could not run the flow at all.
    """
    if not session.complete_from_ledger:
        session.workers.start()  # its imports take seconds: let them overlap with Prefect's
        session.check_operators()
    set_embedded_defaults()
    if not _log.isEnabledFor(logging.INFO):
        quiet_console()
    from .export_zoo import export_zoo  # noqa: PLC0415 - imports Prefect, which takes a second

    token = prepared.set(session)
    try:
        with without_heartbeat():
            export_zoo(zoo, out=session.out, return_state=True)
    except Exception as error:
        if len(session.outcomes) < len(session.models):
            raise PteforgeError(
                f"Prefect could not run the flow: {type(error).__name__}: {error}; "
                "check the server that PREFECT_API_URL or your Prefect profile names"
            ) from error
        _log.warning("everything was made, but Prefect could not record the end of the run: %s", error)
    finally:
        prepared.reset(token)
    if len(session.outcomes) < len(session.models):
        raise PteforgeError("the Prefect flow ended before all models were through; its logs say why")
    return session.outcome()
