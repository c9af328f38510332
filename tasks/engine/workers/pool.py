"""Where stage bodies run: the pool of workers with the admission of calls to it, or the calling process."""

from __future__ import annotations

import importlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, TypeAlias

from ....errors import StageCrashed, StageError, StageFailed
from ..stage import Progressed, no_progress, reporter
from .call import HeldProcess, running_call
from .process_memory import available_memory
from .protocol import CallRequest, WorkerLimits, WorkerReport
from .warm_server import Server, SharedServer, WarmServer


@dataclass(frozen=True)
class CallChain:
    """Calls that may run in one process after another, since none leaves anything behind that alters a later one."""

    name: str  # the same for all of them. Their `python_path` is the same, too.
    goes_on: bool  # whether another call probably follows soon, so that the process waits for it


@dataclass(frozen=True)
class WorkerCall:
    """A call of a function, by its name ``package.module:name``, from JSON to JSON. The caller never imports it."""

    function: str
    argument: Any  # its only one
    limits: WorkerLimits  # past which it is killed
    memory: int | None = None  # bytes that it will probably need, for which it waits; None: its limit
    python_path: tuple[str, ...] = ()  # folders that come first on ``sys.path``
    chain: CallChain | None = None
    started: Callable[[], None] = lambda: None  # called in the caller's thread when the wait is over
    progressed: Progressed = no_progress  # called there with its progress (see `tasks.engine.stage.reporter`)


_LINGER = 10.0  # seconds that a process waits for the next call of its chain
_WARM_LOWERING = f"{__package__}.preload"
_MEMORY_SHARE = 0.8  # of the machine's memory; the rest is for the server, the pool and other programs


class Workers:
    """Runs functions in processes that are forked from a warm server: fresh ones, or those of earlier calls of a chain.

    `start` or the first `run` starts the server. Usable from many threads; as a context manager, it stops at the end.
    Processes see the environment, the working directory and the `sys.path` of the moment when the server was started.
    If this process dies, the server and all calls end.
    """

    def __init__(
        self,
        *,
        jobs: int | None = None,
        memory: int | None = None,
        preload: tuple[str, ...] = (_WARM_LOWERING,),
        address: str | None = None,
    ) -> None:
        """Starts nothing yet.

        Args:
            jobs: calls at once; by default the number of processors.
            memory: bytes that all running calls may need together; by default 80 % of the machine's. A call that needs
                more runs alone. Processes that wait for calls, at most `jobs`, do not count: they hold little.
            preload: modules that the server imports before it takes calls.
            address: of another pool's server, to use in place of an own one while it is there.
        """
        self.jobs = (os.cpu_count() or 1) if jobs is None else jobs
        self.memory = memory_for_calls() if memory is None else memory
        self._admission = Admission(jobs=self.jobs, memory=self.memory)
        self._preload = preload
        self._address = address
        self._lock = threading.RLock()  # stop() may come from a signal handler, in the thread that holds it
        self._server: Server | None = None
        self._waiting: list[tuple[str, HeldProcess]] = []  # processes and the chains they wait for, the first one first
        self._stopped = False
        self._calls = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def started(self) -> bool:
        return self._server is not None

    @property
    def calls(self) -> int:
        return self._calls

    @property
    def address(self) -> str | None:
        """Where pools of other processes of this machine find the server; None if it does not run, or is not shared."""
        return self._server.address if isinstance(self._server, WarmServer) else None

    def start(self, *, shared: bool = False) -> None:
        """Starts the server in the background, unless it runs; raises StageCrashed after `stop`."""
        self._running_server(shared=shared)

    def run(self, call: WorkerCall) -> WorkerReport:
        """Calls a function.

        Raises:
            StageFailed: the function raised, or the server's warm-up did.
            StageCrashed: the process ended without an answer, or the pool was stopped.
            StageTimedOut: killed at `limits.timeout`.
            StageOutOfMemory: killed at `limits.memory`, or by the kernel.
            ValueError: the function's name has another form.
        """
        module, _, name = call.function.partition(":")
        if not (module and name):
            raise ValueError(f"function is {call.function!r}, must be 'package.module:name'")
        chain, linger = call.chain, _LINGER if call.chain and call.chain.goes_on else 0.0
        request = CallRequest(call.function, call.argument, call.python_path, linger)
        needed = call.limits.memory if call.memory is None else call.memory
        try:
            with self._admission.place(needed, first=self.awaits(chain)) as grow:
                server = self._running_server()
                server.wait_until_ready()
                with self._lock:
                    self._calls += 1
                call.started()
                waiting = self._take_waiting(chain, server)
                with running_call(server, request, call.limits, call.progressed, grow, waiting) as running:
                    running.wait(lingers=linger > 0)
                    report = running.report(server)
        except AdmissionClosed:
            raise StageCrashed("stopped") from None
        if chain and running.answered:
            with self._lock:
                self._waiting.append((chain.name, running.process))
            self._close_waiting(0 if self._stopped else self.jobs)
        return report

    def awaits(self, chain: CallChain | None) -> bool:
        """Whether a process probably waits for the next call of a chain."""
        with self._lock:
            return chain is not None and any(name == chain.name for name, _ in self._waiting)

    def stop(self) -> None:
        """Kills every call and the server; running and waiting calls raise StageCrashed. Idempotent."""
        with self._lock:
            self._stopped = True
            server = self._server
        self._admission.close()
        if server:
            server.stop()
        self._close_waiting(0)

    def _take_waiting(self, chain: CallChain | None, server: Server) -> HeldProcess | None:
        with self._lock:
            for place, (name, process) in enumerate(self._waiting):
                if chain and name == chain.name and process.server is server:
                    return self._waiting.pop(place)[1]
        return None

    def _close_waiting(self, bound: int) -> None:
        """Ends the processes that have waited longest, except for so many."""
        with self._lock:
            while len(self._waiting) > bound:
                self._waiting.pop(0)[1].close()

    def _running_server(self, *, shared: bool = False) -> Server:
        """The server; a new one if the last one crashed, so that only its own calls fail."""
        with self._lock:
            if self._stopped:
                raise StageCrashed("stopped")
            if self._server is None or self._server.lost:
                self._server = self._others_server() or WarmServer(self._preload, shared=shared)
            return self._server

    def _others_server(self) -> Server | None:
        """The server at the pool's address, if it is there; asked for once."""
        address, self._address = self._address, None
        try:
            return SharedServer(address) if address else None
        except OSError:
            return None


class InProcess:
    """Calls functions as `Workers` does, but in this process, and in one thread at a time: torch allows no more."""

    def run(self, call: WorkerCall) -> WorkerReport:
        """Calls a function; raises StageFailed, with the cause. Global torch state is the function's to set.

        There is one call at a time, and no process to kill. What it can import is what this process's `sys.path` says.
        """
        module, _, name = call.function.partition(":")
        body = getattr(importlib.import_module(module), name)
        call.started()
        token, began = reporter.set(call.progressed), time.perf_counter()
        try:
            with _failing_as_a_stage():
                result = body(call.argument)
        finally:
            reporter.reset(token)
        return WorkerReport(result, time.perf_counter() - began, peak_memory=0, log=b"")

    def awaits(self, chain: CallChain | None) -> bool:
        """No process waits here."""
        del chain
        return False


StageRunner: TypeAlias = Workers | InProcess


@contextmanager
def as_in_a_process() -> Iterator[None]:
    """The global torch state of a fresh process, for a body that is called in the context; raises StageFailed."""
    from .entry import fresh_state  # noqa: PLC0415 - torch

    with fresh_state(), _failing_as_a_stage():
        yield


@contextmanager
def _failing_as_a_stage() -> Iterator[None]:
    from .entry import forget_old_calls  # noqa: PLC0415 - torch

    try:
        yield
    except StageError:
        raise
    except Exception as error:
        raise StageFailed.of(error) from error
    finally:
        forget_old_calls()


def memory_for_calls() -> int:
    """Bytes of this machine, or of this process's control group, that calls may need together."""
    return int(_MEMORY_SHARE * available_memory())


class AdmissionClosed(Exception):
    """No call is admitted any more."""


@dataclass(eq=False)
class _Ticket:
    """A call: the bytes it needs, and how many that came later were admitted before it."""

    memory: int
    overtaken: int = 0


class Admission:
    """First come, first served, except that calls that fit may overtake larger ones that do not, a few times each.

    A call that exceeds the whole memory is admitted when nothing else runs.
    """

    PATIENCE = 16  # how many calls may overtake a waiting one

    def __init__(self, jobs: int, memory: int) -> None:
        if jobs < 1:
            raise ValueError(f"jobs is {jobs}, must be at least 1")
        if memory < 1:
            raise ValueError(f"memory is {memory}, must be at least 1 byte")
        self._jobs = jobs
        self._memory = memory
        self._running = 0
        self._promised = 0
        self._queue: list[_Ticket] = []
        self._changed = threading.Condition()
        self._closed = False

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @contextmanager
    def place(self, memory: int, *, first: bool = False) -> Iterator[Callable[[int], None]]:
        """Waits for a place with so many bytes, and frees it at the end; raises AdmissionClosed after `close`.

        A call that comes `first` goes to the head of the queue, since a process waits for it. Yields a function to call
        with what the call really takes: where that is more, others wait for more.
        """
        ticket = _Ticket(memory)
        with self._changed:
            self._queue.insert(0 if first else len(self._queue), ticket)
            try:
                self._changed.wait_for(lambda: self._closed or self._next() is ticket)
                if self._closed:
                    raise AdmissionClosed
                for earlier in self._queue[: self._queue.index(ticket)]:
                    earlier.overtaken += 1
                self._take(1, memory)
            finally:
                self._queue.remove(ticket)
                self._changed.notify_all()  # the next in the queue may fit as well
        try:
            yield partial(self._grow, ticket)
        finally:
            with self._changed:
                self._take(-1, -ticket.memory)
                self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _grow(self, ticket: _Ticket, memory: int) -> None:
        with self._changed:
            self._take(0, max(0, memory - ticket.memory))
            ticket.memory = max(ticket.memory, memory)

    def _take(self, places: int, memory: int) -> None:
        self._running += places
        self._promised += memory

    def _next(self) -> _Ticket | None:
        """The first call that fits, of those up to the first whose patience is at its end."""
        for ticket in self._queue:
            if self._fits(ticket.memory):
                return ticket
            if ticket.overtaken >= self.PATIENCE:
                break
        return None

    def _fits(self, memory: int) -> bool:
        if self._running == 0:
            return True
        return self._running < self._jobs and self._promised + memory <= self._memory
