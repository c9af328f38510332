"""Prefect's API server for the length of one command, where the user has none."""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request

from ..errors import PteforgeError

_START_LIMIT = 300.0  # seconds; the first start of all makes the database, slowly on a busy machine
_STOP_LIMIT = 5.0
_LOG_TAIL = 2000
_PROGRAM = """\
import sys
sys.path[:] = {path!r}
from {module} import serve
serve({listener})
"""


class EmbeddedServer:
    """A server process with the user's Prefect database, listening on a free port of this machine.

    Prefect starts one by itself, but that one gets the terminal's Ctrl-C before the run could be ended, and goes on
    for ever where this process is killed. This one is out of the terminal's reach and ends with this process.

    Attributes:
        url: of its API.
    """

    def __init__(self) -> None:
        """Starts the process; returns before it is ready.

        It is stopped when Python exits: not before, since that is when Prefect sends what it has not sent yet.
        """
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
            self.url = f"http://127.0.0.1:{listener.getsockname()[1]}/api"
            program = _PROGRAM.format(path=sys.path, module=__name__, listener=listener.fileno())
            self._process = subprocess.Popen(  # noqa: S603 - this Python, and a program of our own
                [sys.executable, "-c", program],
                stdin=subprocess.PIPE,  # its end tells that this process has ended, however it did
                stdout=self._log,
                stderr=self._log,
                pass_fds=[listener.fileno()],
                start_new_session=True,
            )
        atexit.register(self.stop)

    def wait_until_ready(self) -> None:
        """Returns when the server answers; raises PteforgeError where it cannot start."""
        try:
            # The port is open from the start, so this waits in line until the server takes it.
            with urllib.request.urlopen(f"{self.url}/health", timeout=_START_LIMIT):  # noqa: S310 - our own address
                return
        except (urllib.error.URLError, OSError) as error:
            raise PteforgeError(
                "Prefect's server could not be started (set PREFECT_API_URL to use one that runs already): "
                f"{error}\n{self._tail()}"
            ) from error

    def stop(self) -> None:
        """Ends the process. May be called again."""
        if self._log.closed:
            return
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_LIMIT)
        self._process.kill()
        self._process.communicate()
        self._log.close()
        atexit.unregister(self.stop)

    def _tail(self) -> str:
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), _LOG_TAIL, max(0, size - _LOG_TAIL)).decode(errors="replace").strip()


def serve(listener: int) -> None:
    """The main program of the server.

    Args:
        listener: descriptor of the listening socket.
    """
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import uvicorn  # noqa: PLC0415 - only in this process
    from prefect.server.api.server import create_app  # noqa: PLC0415 - likewise

    config = uvicorn.Config(create_app(ephemeral=True, final=True), log_level="error", lifespan="on")
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=listener)])


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(0)
