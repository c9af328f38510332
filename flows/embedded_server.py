"""Prefect's API server inside this process, where the user has none."""

from __future__ import annotations

import logging
import re
import socket
import threading
import urllib.error
import urllib.request

import uvicorn
from prefect.server.api.server import create_app

from ..errors import PteforgeError

_START_LIMIT = 300.0  # seconds; the first start of all makes the database, slowly on a busy machine
_STOP_LIMIT = 5.0
_UVICORN_LOG = "uvicorn.error"
_RAISED = re.compile(r"[\w.]+Error: ")


class EmbeddedServer:
    """A server with the user's Prefect database, in a thread of this process, listening on a free port of this machine.

    Prefect starts one by itself, but as a process of its own: that takes another copy of its imports, gets the
    terminal's Ctrl-C before the run could be ended, and goes on for ever where this process is killed.

    Attributes:
        url: of its API.
    """

    def __init__(self) -> None:
        """Starts the server; returns before it is ready."""
        self._problems = _Problems()
        logging.getLogger(_UVICORN_LOG).addHandler(self._problems)
        listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}/api"
        app = create_app(ephemeral=True, final=True)
        self._server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, lifespan="on"))
        self._thread = threading.Thread(target=self._serve, args=(listener,), name="prefect-server", daemon=True)
        self._thread.start()

    def wait_until_ready(self) -> None:
        """Returns when the server answers; raises PteforgeError where it cannot start."""
        try:
            # The port is open from the start, so this waits in line until the server takes it.
            with urllib.request.urlopen(f"{self.url}/health", timeout=_START_LIMIT):  # noqa: S310 - our own address
                return
        except (urllib.error.URLError, OSError) as error:
            problems = self._problems.text() or str(error)
            raise PteforgeError(
                f"Prefect's server could not be started (set PREFECT_API_URL to use one that runs already): {problems}"
            ) from error

    def stop(self) -> None:
        """Ends the server, which first writes down what it was told. May be called again."""
        self._server.should_exit = True
        self._thread.join(_STOP_LIMIT)
        logging.getLogger(_UVICORN_LOG).removeHandler(self._problems)

    def _serve(self, listener: socket.socket) -> None:
        with listener:  # closed where the start fails, too: nobody waits in line for ever
            try:
                self._server.run(sockets=[listener])
            except SystemExit:  # how uvicorn says that the application did not start; it has logged why
                return


class _Problems(logging.Handler):
    """Keeps what uvicorn has to say about a failed start."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps the message."""
        self._texts.append(record.getMessage())

    def text(self) -> str:
        """The error that the last traceback ends with, else the last message."""
        lines = [line for text in self._texts for line in text.splitlines()]
        errors = [line for line in lines if _RAISED.match(line)]
        return next(reversed(errors or lines), "")
