"""The pool's side of a warm server, its own or another's: waits until it is ready, hands it calls, ends them."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TypeAlias

from ....artifacts.files import abandoned, remove, staging_folder
from ....errors import CodeChanged, StageCrashed, StageError, StageFailed
from ..keys.inputs import WORKER_VARIABLES
from ..keys.loaded import changed_code, changed_files, code_at_start
from . import server
from .protocol import CALL, PROCESSES_VARIABLE, READY, STARTED_SIZE, Started, decode_link, signal_name, tail_lines

_WARM_UP_LIMIT = 900.0  # seconds, so that a preload that hangs does not hang its callers
_END_LIMIT = 5.0  # seconds for the server to kill its calls and exit
_LOG_TAIL = 1 << 16
_SHARED = ".pteforge"  # end of the name of the folder with a server's socket
_PROGRAM = """\
import sys
sys.path[:] = {path!r}
from {module} import serve
serve({control}, {parent}, {preload!r}, {listener}, forks={forks})
"""


class WarmServer:
    """One server process that imports the `preload` modules, started at once in the background.

    A thread of its own starts the process and waits for its end: the kernel ties the process to the life of the thread
    that started it, and the caller's may be short. Other processes of this user can hand it calls at its `address`, if
    it is not None; see `SharedServer`.
    """

    def __init__(self, preload: tuple[str, ...], *, shared: bool = False) -> None:
        self._preload = preload
        self._shared = ExitStack()
        self._listener, self.address = self._listen() if shared else (None, None)
        self._control, self._far_end = socket.socketpair()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self._process: subprocess.Popen[bytes] | None = None
        self._changed = threading.Condition()
        self._ready = False
        self._stopped = False
        self._failure: StageError | None = None
        self._thread = threading.Thread(target=self._own, name="pteforge-warm-server", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def lost(self) -> bool:
        """Whether the server ended after it was ready, without `stop`."""
        return self._ready and self._failure is not None and not self._stopped

    def wait_until_ready(self) -> None:
        """Raises StageFailed if the warm-up failed, StageCrashed if the server has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._failure)
            if self._failure:
                raise _again(self._failure)

    def send(self, fds: list[int]) -> None:
        """Hands over the far ends of a call's channels, see `protocol`; raises OSError if the server has ended."""
        socket.send_fds(self._control, [CALL], fds)

    def loss(self, pid: int | None = None) -> StageError:
        """The reason why a call was lost: this server ended, as the waiting thread is about to find out.

        Kills the group of the call's process `pid`: the process ends with the server, its children do not.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._failure, timeout=_END_LIMIT)
            if self._failure is None:
                return StageCrashed("the worker server dropped the call; is it out of file descriptors?")
            if pid is not None and not self._stopped:
                _kill_group(pid)
            return _again(self._failure)

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            if not self._ready and self._process:
                self._process.kill()
        with contextlib.suppress(OSError):  # already closed or ended
            self._control.shutdown(socket.SHUT_RDWR)
        self._thread.join(_END_LIMIT)
        if self._thread.is_alive() and self._process:
            self._process.kill()
            self._thread.join(_END_LIMIT)

    def _own(self) -> None:
        try:
            with self._changed:
                process = None if self._stopped else self._launch()
            self._far_end.close()
            if self._listener:
                self._listener.close()  # the server has it, and nobody else: who connects finds out that it has ended
            if process:
                self._watch(process)
        except Exception as error:  # noqa: BLE001 - the end of a thread: the callers raise it
            self._end(StageFailed(f"the worker server cannot be started: {error}"))
        else:
            self._end(StageCrashed("stopped"))
        finally:
            self._far_end.close()
            self._control.close()
            self._log.close()
            self._shared.close()

    def _listen(self) -> tuple[socket.socket | None, str | None]:
        """A socket in a private folder; none where its path is too long. Removes those of killed processes."""
        temporary = Path(tempfile.gettempdir())
        for leftover in abandoned(temporary, f"*{_SHARED}"):
            remove(leftover)
        folder = self._shared.enter_context(staging_folder(temporary, _SHARED))
        listener = self._shared.enter_context(socket.socket(socket.AF_UNIX))
        try:
            listener.bind(address := str(Path(folder, "server")))
        except OSError:
            return None, None
        listener.listen()
        return listener, address

    def _launch(self) -> subprocess.Popen[bytes]:
        program = _PROGRAM.format(
            path=[folder for folder in sys.path if isinstance(folder, str)],
            module=server.__name__,
            control=self._far_end.fileno(),
            parent=os.getpid(),
            preload=list(self._preload),
            listener=self._listener and self._listener.fileno(),
            forks=sys.platform == "linux" and os.environ.get(PROCESSES_VARIABLE) != "started",
        )
        self._process = subprocess.Popen(  # noqa: S603 - this Python, and a program of our own
            [sys.executable, "-c", program],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            pass_fds=[end.fileno() for end in (self._far_end, self._listener) if end],
            start_new_session=True,
            # OpenBLAS starts its threads when numpy is imported, and a process with threads must not fork.
            # With a fixed hash seed, the sets of a lowering have the same order in every run.
            env={**os.environ, **WORKER_VARIABLES},
        )
        return self._process

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        self._control.settimeout(_WARM_UP_LIMIT)
        warm = False
        try:
            warm = _is_ready(self._control)
        except CodeChanged as error:
            self._end(error)
            process.kill()
        except TimeoutError:
            reason = f"the worker server was not ready within {_WARM_UP_LIMIT:g} s"
            self._end(StageFailed(reason, log_tail=self._tail()))
            process.kill()
        except OSError:  # shut down by stop()
            pass
        self._control.settimeout(None)
        with self._changed:
            self._ready = warm
            self._changed.notify_all()
        code = process.wait()
        how = f"killed by {signal_name(-code)}" if code < 0 else f"exit code {code}"
        if warm:
            self._end(StageCrashed(f"the worker server ended ({how})", log_tail=self._tail()))
        else:
            self._end(StageFailed(f"the worker server failed in its warm-up ({how})", log_tail=self._tail()))

    def _end(self, failure: StageError) -> None:
        """Keeps the first failure; an end by `stop` is not a failure of the server."""
        with self._changed:
            if self._failure is None:
                self._failure = StageCrashed("stopped") if self._stopped else failure
            self._changed.notify_all()

    def _tail(self) -> str:
        size = os.fstat(self._log.fileno()).st_size
        return tail_lines(os.pread(self._log.fileno(), _LOG_TAIL, max(0, size - _LOG_TAIL)))


class SharedServer:
    """The server of a process of this machine and user that shares it; calls end with either process."""

    def __init__(self, address: str) -> None:
        """Connects to it; raises OSError if it is not there."""
        self._control = socket.socket(socket.AF_UNIX)
        self._greeting = threading.Lock()
        self._ready = self.lost = self._stopped = False
        try:
            self._control.connect(address)
        except OSError:
            self._control.close()
            raise

    def wait_until_ready(self) -> None:
        with self._greeting:
            if not self._ready:
                with contextlib.suppress(OSError):  # shut down by stop()
                    self._ready = _is_ready(self._control)
            if not self._ready:
                raise self.loss()

    def send(self, fds: list[int]) -> None:
        socket.send_fds(self._control, [CALL], fds)

    def loss(self, pid: int | None = None) -> StageError:
        """Kills the group of the call's process, as `WarmServer.loss` does."""
        self.lost = not self._stopped
        self._control.close()
        if pid is not None and self.lost:
            _kill_group(pid)
        return StageCrashed("the worker server ended" if self.lost else "stopped")

    def stop(self) -> None:
        self._stopped = True
        with contextlib.suppress(OSError):  # it has ended
            self._control.shutdown(socket.SHUT_RDWR)
        with self._greeting:
            self._control.close()


Server: TypeAlias = WarmServer | SharedServer

KILL_LIMIT = 30.0  # seconds to wait for the end of a killed process, which may be stuck in the kernel


class HeldProcess:
    """A stage process as the pool holds it: `close` has the server kill it, unless it has ended."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.link, self._far_link = socket.socketpair()
        self._calls, self._far_calls = socket.socketpair()

    def fork(self, call_fds: list[int]) -> None:
        """Has the server fork it for its first call; raises StageError if the server has ended."""
        try:
            self.server.send([*call_fds, self._far_calls.fileno(), self._far_link.fileno()])
        except OSError:
            raise self.server.loss() from None
        finally:
            self._far_link.close()
            self._far_calls.close()

    def take(self, call_fds: list[int]) -> Started | None:
        """Hands over a further call; None if the process has ended, or does not answer."""
        self._calls.settimeout(KILL_LIMIT)
        try:
            socket.send_fds(self._calls, [CALL], call_fds)
            return decode_link(self._calls.recv(STARTED_SIZE))[0]
        except OSError:
            return None

    def close(self) -> None:
        for end in (self.link, self._far_link, self._calls, self._far_calls):
            end.close()


def _is_ready(control: socket.socket) -> bool:
    """Waits until a server is, or has ended; raises CodeChanged if it has loaded other code than this process."""
    greeting = READY + code_at_start().encode()
    said = control.recv(len(greeting), socket.MSG_WAITALL)
    if said.startswith(READY) and said != greeting:
        raise changed_code(changed_files() or ["before the worker server had loaded it"])
    return said == greeting


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _again(failure: StageError) -> StageError:
    """A new exception for each caller: one raised in many threads would collect all their tracebacks."""
    return type(failure)(str(failure), log_tail=failure.log_tail)
