"""Runs an open session as a run of the zoo's flow, or without Prefect if that fails."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from ..run.disk import check_space
from ..run.interrupt import prompt_interrupt
from ..run.outcome import ZooOutcome
from ..run.session import Session, check_names, start_workers
from ..run.zoo import lower_rest
from .machines import check_machines
from .settings import local_run, quiet_console, send_what_is_queued, server_configured, set_embedded_defaults

if TYPE_CHECKING:
    from .embedded_server import EmbeddedServer

_log = logging.getLogger(__name__)


def run_flow(session: Session) -> ZooOutcome:
    """Runs a session's models as a run of the flow `export-zoo`, on the configured Prefect server or an embedded one.

    The result depends on the files made, not on the flow's state. If Prefect fails, the rest is lowered without it.
    Raises InputError for an unknown name in a recipe, stages that cannot run where they are to, and a disk with too
    little space, and KeyboardInterrupt at Ctrl-C, once all worker processes have ended.
    """
    with prompt_interrupt(session):
        check_machines(session)
        check_space(session)
        start_workers(session)  # its imports take seconds: let them overlap with Prefect's
        prefect = _import_prefect(session)
        check_names(session)
        if prefect:
            export_opened, server = prefect
            if server:
                session.prefect.embed()
            with session.prefect.optional(), _connected(session, server):
                asyncio.run(export_opened(session))
                if session.progress.complete:  # both the workers and Prefect's server take a while to end
                    threading.Thread(target=session.workers.stop, name="stop-workers").start()
        if not session.progress.complete:
            asyncio.run(lower_rest(session, session.local_runner()))
    return session.progress.outcome()


def _import_prefect(session: Session) -> tuple[Callable[[Session], Any], EmbeddedServer | None] | None:
    """Imports the flow, and starts a server if none is configured, which takes seconds; returns None if that fails."""
    _share_malloc_arenas()
    if not _log.isEnabledFor(logging.INFO):
        quiet_console()
    collecting = gc.isenabled()
    gc.disable()  # imports make few cycles and many objects: collecting meanwhile takes a third of their time
    try:
        embedded = not server_configured()
        if embedded:
            set_embedded_defaults()
        with warnings.catch_warnings(action="ignore"):  # such as a read-only home: failures are reported
            from .zoo_flow import export_opened  # noqa: PLC0415 - slow

        if not embedded:
            return export_opened, None
        from .embedded_server import EmbeddedServer  # noqa: PLC0415 - slow

        return export_opened, EmbeddedServer()
    except Exception as error:  # noqa: BLE001 - Prefect's, such as a home folder that cannot be written
        session.prefect.lose(error)
        return None
    finally:
        gc.freeze()  # modules stay: the collector can skip them
        if collecting:
            gc.enable()


def _share_malloc_arenas() -> None:
    """Lets Prefect's dozens of threads share two malloc arenas: with one for each, a tenth of memory is idle."""
    if sys.platform == "linux":
        with suppress(AttributeError):  # not glibc
            ctypes.CDLL(None).mallopt(-8, 2)  # M_ARENA_MAX of malloc.h


@contextmanager
def _connected(session: Session, server: EmbeddedServer | None) -> Iterator[None]:
    """Connects flows to the server; a signal that ends the flow ends the session, too."""
    from prefect.exceptions import TerminationSignal  # noqa: PLC0415 - slow, and imported by now

    with ExitStack() as stack:
        if server:
            stack.callback(server.stop)
            server.wait_until_ready()
        stack.enter_context(local_run(server.url if server else None))
        stack.callback(send_what_is_queued)
        try:
            yield
        except TerminationSignal as error:
            session.abort()
            session.recording.save("interrupted")
            signal.signal(error.signal, signal.SIG_DFL)  # Prefect's handler raised this in the event loop
            os.kill(os.getpid(), error.signal)
