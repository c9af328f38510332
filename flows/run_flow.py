"""Running a session as a run of the zoo's flow."""

from __future__ import annotations

import gc
import logging
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import PteforgeError
from .interrupt import prompt_interrupt
from .outcome import ZooOutcome
from .prefect_settings import local_run, quiet_console, send_what_is_queued, server_configured, set_embedded_defaults
from .session import Session, prepared

if TYPE_CHECKING:
    from prefect import Flow

    from .embedded_server import EmbeddedServer

_log = logging.getLogger(__name__)


def _import_prefect(*, embedded: bool) -> tuple[Flow[..., Any], EmbeddedServer | None]:
    """The zoo's flow, and a server that has been started where one is to be embedded. Takes seconds."""
    if embedded:
        set_embedded_defaults()
    collecting = gc.isenabled()
    gc.disable()  # imports make few cycles and many objects: collecting meanwhile takes a third of their time
    try:
        from .export_zoo import export_zoo  # noqa: PLC0415 - slow

        if not embedded:
            return export_zoo, None
        from .embedded_server import EmbeddedServer  # noqa: PLC0415 - slow

        return export_zoo, EmbeddedServer()
    finally:
        if collecting:
            gc.enable()


def run_flow(session: Session, zoo: Path) -> ZooOutcome:
    """Runs a session's models as a run of the flow `export-zoo`, on the configured Prefect server or an embedded one.

    The result is judged by what was made, not by the flow's state: a server that goes away does not undo work.

    Raises:
        PteforgeError: Prefect could not run the flow at all.
        KeyboardInterrupt: at Ctrl-C; all worker processes have ended.
    """
    with ExitStack() as stack:
        stack.enter_context(prompt_interrupt(session))
        if not session.complete_from_ledger:
            session.workers.start()  # its imports take seconds: let them overlap with Prefect's
        if not _log.isEnabledFor(logging.INFO):
            quiet_console()
        export_zoo, server = _import_prefect(embedded=not server_configured())
        session.check_names()
        if server:
            stack.callback(server.stop)
            server.wait_until_ready()
        stack.enter_context(local_run(server.url if server else None))
        stack.callback(send_what_is_queued)
        token = prepared.set(session)
        stack.callback(prepared.reset, token)
        try:
            export_zoo(zoo, out=session.out, return_state=True)
        except Exception as error:
            if not session.complete_from_ledger:
                raise PteforgeError(
                    f"Prefect could not run the flow: {type(error).__name__}: {error}; "
                    "check the server that PREFECT_API_URL or your Prefect profile names"
                ) from error
            if not session.server_lost:
                _log.warning("Prefect could not record the run, which is complete: %s", error)
            session.server_lost = True
    if not session.complete_from_ledger:
        raise PteforgeError("the Prefect flow ended before all models were through; its logs say why")
    return session.outcome()
