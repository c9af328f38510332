"""The pool of workers."""

from __future__ import annotations

import os
import threading
from typing import Any, Self

from ...errors import StageCrashed
from ..progress import Progressed, unheard
from .admission import Admission, AdmissionClosed
from .call import run_call
from .limits import WorkerLimits, WorkerReport
from .process_memory import available_memory
from .protocol import Request
from .warm_server import WarmServer

_WARM_LOWERING = f"{__package__}.preload"
_MEMORY_SHARE = 0.8  # of the machine's memory; the rest is for the server, the pool and everybody else


class Workers:
    """Runs functions in fresh processes that are forked from a warm server.

    Nothing is started before it is needed: `start` and the first `run` start the server. Usable from many threads; as
    a context manager, it stops at the end. Processes see the environment, the working directory and the `sys.path` as
    they were when the server was started. If this process dies, the server and all calls end.

    Attributes:
        jobs: calls at once.
    """

    def __init__(
        self,
        *,
        jobs: int | None = None,
        memory: int | None = None,
        preload: tuple[str, ...] = (_WARM_LOWERING,),
    ) -> None:
        """Makes a pool that has started nothing yet.

        Args:
            jobs: calls at once; as many as there are processors by default.
            memory: bytes that all running calls may be promised together, by default 80 % of the machine's. A call
                that alone asks for more runs when nothing else does.
            preload: modules that the server imports before it takes calls.
        """
        self.jobs = (os.cpu_count() or 1) if jobs is None else jobs
        self._admission = Admission(
            jobs=self.jobs,
            memory=int(_MEMORY_SHARE * available_memory()) if memory is None else memory,
        )
        self._preload = preload
        self._lock = threading.RLock()  # stop() may come from a signal handler, in the thread that holds it
        self._server: WarmServer | None = None
        self._stopped = False
        self._calls = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def started(self) -> bool:
        """A server was started, whether it still runs or not."""
        return self._server is not None

    @property
    def calls(self) -> int:
        """How many calls were given a process."""
        return self._calls

    def start(self) -> None:
        """Starts the server in the background, so that its warm-up overlaps with what the caller does next.

        Does nothing when it runs; raises StageCrashed after `stop`.
        """
        self._running_server()

    def run(
        self,
        function: str,
        argument: Any,
        limits: WorkerLimits,
        *,
        python_path: tuple[str, ...] = (),
        progressed: Progressed = unheard,
    ) -> WorkerReport:
        """Calls a function with one JSON value in a process of its own, and waits for the JSON value it returns.

        Args:
            function: ``package.module:name``; looked up in the process, never imported here.
            argument: a JSON value.
            limits: bounds of this call.
            python_path: folders that come first on the process's ``sys.path``.
            progressed: told how far the function is, where it says so, in the thread that waits here.

        Raises:
            StageFailed: the function raised, or the server's warm-up did.
            StageCrashed: the process ended without an answer, or the pool was stopped.
            StageTimedOut: killed at `limits.timeout`.
            StageOutOfMemory: killed at `limits.memory`, or by the kernel.
            ValueError: the function's name has no such form.
        """
        module, _, name = function.partition(":")
        if not (module and name):
            raise ValueError(f"function is {function!r}, must be 'package.module:name'")
        request = Request(function, argument, python_path)
        try:
            with self._admission.place(limits.memory):
                server = self._running_server()
                server.wait_until_ready()
                with self._lock:
                    self._calls += 1
                return run_call(server, request, limits, progressed)
        except AdmissionClosed:
            raise StageCrashed("stopped") from None

    def stop(self) -> None:
        """Kills every call and the server; calls that run or wait raise StageCrashed. May be called again."""
        with self._lock:
            self._stopped = True
            server = self._server
        self._admission.close()
        if server:
            server.stop()

    def _running_server(self) -> WarmServer:
        """The server; a new one in place of one that was lost, whose other calls should not suffer for it."""
        with self._lock:
            if self._stopped:
                raise StageCrashed("stopped")
            if self._server is None or self._server.lost:
                self._server = WarmServer(self._preload)
            return self._server
