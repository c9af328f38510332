"""Prefect's API server inside this process, for users without one."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import sqlite3
import threading
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, closing
from logging.handlers import BufferingHandler
from typing import Any

import uvicorn
from prefect.server.api import server as api_server
from prefect.server.database import provide_database_interface
from prefect.server.services.db_vacuum import (
    vacuum_events_with_retention_overrides,
    vacuum_old_events,
    vacuum_old_flow_runs,
)
from prefect.settings.context import get_current_settings

_log = logging.getLogger(__name__)

_START_LIMIT = 300.0  # seconds; the very first start creates the database, which is slow on a busy machine
_START_PAUSE = 0.1
_STOP_LIMIT = 5.0
_SQLITE_MEMORY = 16 << 20  # bytes
_UVICORN_LOG = logging.getLogger("uvicorn.error")
_VACUUMS = {"events": (vacuum_events_with_retention_overrides, vacuum_old_events), "flow_runs": (vacuum_old_flow_runs,)}
"""Prefect's functions that delete what is old, by what they are enabled as."""


class EmbeddedServer:
    """A server with the user's Prefect database, in a thread of this process, on a free local port.

    Prefect's own is a process that imports everything again, gets Ctrl-C before the run can end, and survives a kill.

    Attributes:
        url: address of its API.
    """

    def __init__(self) -> None:
        """Starts the server; returns before it is ready."""
        self._problems = BufferingHandler(capacity=100)
        self._problems.setLevel(logging.ERROR)
        _bound_sqlite()
        _UVICORN_LOG.addHandler(self._problems)
        listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}/api"
        # Prefect's queue of background tasks polls often. Except for `_VACUUMS`, its tasks are for servers that stay.
        api_server.background_worker = _no_worker  # type: ignore[attr-defined]  # imported there
        app = api_server.create_app(ephemeral=True, final=True)
        self._server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, lifespan="on"))
        self._thread = threading.Thread(target=self._serve, args=(listener,), name="prefect-server", daemon=True)
        self._thread.start()

    def wait_until_ready(self) -> None:
        """Returns when the server answers; raises RuntimeError if it cannot start."""
        try:
            # The port is open from the start, so this request waits until the server accepts it.
            with urllib.request.urlopen(f"{self.url}/health", timeout=_START_LIMIT):  # noqa: S310 - our own address
                return
        except (urllib.error.URLError, OSError) as error:
            problem = _last_error(self._problems.buffer) or str(error)
            raise RuntimeError(
                f"Prefect's server could not be started (set PREFECT_API_URL to use one that runs already): {problem}"
            ) from error

    def stop(self) -> None:
        """Stops the server, which first saves pending events. Idempotent."""
        self._server.should_exit = True
        self._thread.join(_STOP_LIMIT)
        _UVICORN_LOG.removeHandler(self._problems)

    def _serve(self, listener: socket.socket) -> None:
        with listener, asyncio.Runner() as runner:  # the port is closed too, so that no request waits forever
            try:
                runner.run(self._serve_and_vacuum(listener))
            except SystemExit:  # uvicorn's sign that the application did not start; it has logged why
                _join_connections()

    async def _serve_and_vacuum(self, listener: socket.socket) -> None:
        vacuum = asyncio.create_task(self._vacuum())
        await self._server.serve(sockets=[listener])
        vacuum.cancel()

    async def _vacuum(self) -> None:
        """Deletes old runs and events, a few at a time, as far as the user's settings enable that."""
        while not self._server.started:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(_START_PAUSE)
        enabled = get_current_settings().server.services.db_vacuum.enabled_vacuum_types
        try:
            for vacuum in (vacuum for what, vacuums in _VACUUMS.items() if what in enabled for vacuum in vacuums):
                await vacuum(db=provide_database_interface())
        except Exception as error:  # noqa: BLE001 - such as a busy database: the next run does it
            _log.info("old runs were not deleted from Prefect's database: %s", error)


@asynccontextmanager
async def _no_worker(*_: Any, **__: Any) -> AsyncIterator[None]:
    """Replaces the worker that runs the server's background tasks."""
    yield


def _bound_sqlite() -> None:
    """Bounds the memory of all connections of this process to SQLite together.

    Prefect allows each of its dozen connections 80 MB of pages, and they take it as a run of a large zoo goes on.
    """
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(f"PRAGMA soft_heap_limit = {_SQLITE_MEMORY}")


def _join_connections() -> None:
    """Waits for the threads of connections that could not be opened, which report their end to the event loop.

    aiosqlite 0.22 does not await that: a thread that finds the loop closed ends with a traceback on the terminal.
    """
    for thread in threading.enumerate():
        if "_connection_worker_thread" in thread.name:
            thread.join(_STOP_LIMIT)


def _last_error(records: Iterable[logging.LogRecord]) -> str:
    """The error at the end of the last traceback, or else the last message."""
    lines = [line for record in records for line in record.getMessage().splitlines()]
    errors = [line for line in lines if re.match(r"[\w.]+Error: ", line)]
    return next(reversed(errors or lines), "")
