"""The pool of workers that run stage bodies, with the admission of calls to it; or the calling process."""

from __future__ import annotations

import enum
import importlib
import os
import select
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

from ....configs.model import Limits
from ....errors import StageCrashed, StageError, StageFailed, StageOutOfMemory, StageTimedOut, runtime_reasons
from ..keys.code import PTEFORGE
from ..stage import Progressed, no_progress, reporter
from . import protocol
from .memory import Admission, AdmissionClosed, Descendants, memory_for_calls, own_memory
from .warm_server import KILL_LIMIT, HeldProcess, Server, SharedServer, WarmServer


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
    # past either of which it is killed, with all processes that it started: wall-clock seconds of the call itself,
    # without the wait for admission or for the warm-up; bytes of anonymous memory that the call and its descendants
    # hold beyond those inherited from the warm server, or kept from earlier calls of its chain. Memory is sampled: an
    # excess of some ten milliseconds may go unnoticed.
    limits: Limits
    memory: int | None = None  # bytes that it will probably need, for which it waits; None: its limit
    python_path: tuple[str, ...] = ()  # folders that come first on ``sys.path``
    chain: CallChain | None = None
    started: Callable[[], None] = lambda: None  # called in the caller's thread when the wait is over
    progressed: Progressed = no_progress  # called there with its progress (see `tasks.engine.stage.reporter`)
    given_up: Callable[[], bool] = lambda: False  # called there regularly; the process is killed when it returns True


_LINGER = 10.0  # seconds that a process waits for the next call of its chain
_PRELOAD = f"{PTEFORGE}.tasks.lowering.preload"


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
        preload: tuple[str, ...] = (_PRELOAD,),
        address: str | None = None,
    ) -> None:
        """Starts nothing yet.

        Args:
            jobs: maximum number of concurrent calls; by default the number of processors.
            memory: bytes that all running calls may need together; by default 80 % of the machine's. A call that needs
                more runs alone. Processes that wait for calls, at most `jobs`, do not count: they hold little.
            preload: modules that the server imports before it takes calls.
            address: of another pool's server, which is used while it is there.
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
        self.calls = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def started(self) -> bool:
        return self._server is not None

    @property
    def address(self) -> str | None:
        """The server's address for other processes on this machine; None if the server is not there or not shared."""
        return self._server.address if isinstance(self._server, WarmServer) else None

    def start(self, *, shared: bool = False) -> None:
        """Starts the server in the background, unless it runs; raises StageCrashed after `stop`."""
        self._running_server(shared=shared)

    def run(self, call: WorkerCall) -> protocol.WorkerReport:
        """Calls a function.

        Raises StageFailed if the function or the server's warm-up raised, StageCrashed if the process ended without an
        answer, was given up, or the pool was stopped, StageTimedOut or StageOutOfMemory if it was killed at a limit or
        by the kernel, and ValueError if the function's name has another form.
        """
        module, _, name = call.function.partition(":")
        if not (module and name):
            raise ValueError(f"function is {call.function!r}, must be 'package.module:name'")
        chain, linger = call.chain, _LINGER if call.chain and call.chain.goes_on else 0.0
        request = protocol.CallRequest(call.function, call.argument, call.python_path, linger)
        needed = call.limits.memory if call.memory is None else call.memory
        try:
            with self._admission.admit(needed, first=self.awaits(chain)) as grow:
                server = self._running_server()
                server.wait_until_ready()
                with self._lock:
                    self.calls += 1
                call.started()
                waiting = self._take_waiting(chain, server)
                with running_call(server, request, call, grow, waiting) as running:
                    running.wait(lingers=linger > 0)
                    report = running.report()
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
            for waiting in self._waiting:
                name, process = waiting
                if chain and name == chain.name and process.server is server:
                    self._waiting.remove(waiting)
                    return process
        return None

    def _close_waiting(self, bound: int) -> None:
        """Ends the processes that have waited longest until at most `bound` are left."""
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

    def run(self, call: WorkerCall) -> protocol.WorkerReport:
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
        return protocol.WorkerReport(result, time.perf_counter() - began, peak_memory=0, log=b"")

    def awaits(self, _chain: CallChain | None) -> bool:
        """No process waits here."""
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


_TICK = 0.02  # seconds between two samples of the memory
_CHUNK = 1 << 18


@contextmanager
def running_call(
    server: Server,
    request: protocol.CallRequest,
    worker_call: WorkerCall,
    grown: Callable[[int], None],
    waiting: HeldProcess | None = None,
) -> Iterator[RunningCall]:
    """A call on a warm server, in the process that is waiting for one if it still is, else in a new one.

    The call's processes end with the context, except for one that returned a result and is to linger. `grown` is called
    with each new peak of the call's memory, in bytes. Raises StageError.
    """
    process = waiting or HeldProcess(server)
    with ExitStack() as letting_go, ExitStack() as kept, ExitStack() as handed_over:
        letting_go.callback(process.close)
        request_file = handed_over.enter_context(tempfile.TemporaryFile())
        request_file.write(request.encode())
        request_file.seek(0)
        answer, far_answer = _pipe(kept, handed_over)
        log, far_log = _pipe(kept, handed_over)
        progress, far_progress = _pipe(kept, handed_over)
        far_ends = [request_file.fileno(), far_answer, far_log, far_progress]
        call = RunningCall(worker_call, process, answer, log, progress, grown)
        started = process.take(far_ends) if waiting else None
        if started:
            call.begin(started)
        elif waiting:  # with channels of its own, since the process may have read from these
            call = kept.enter_context(running_call(server, request, worker_call, grown))
        else:
            process.fork(far_ends)
        handed_over.close()
        yield call
        if call.answered and call.process is process:
            letting_go.pop_all()


def _pipe(kept: ExitStack, handed_over: ExitStack) -> tuple[int, int]:
    near, far = os.pipe()
    kept.callback(os.close, near)
    handed_over.callback(os.close, far)
    return near, far


class _Bound(enum.Enum):
    TIME = enum.auto()
    MEMORY = enum.auto()
    NEED = enum.auto()


@dataclass(eq=False)
class RunningCall:
    """Collects the output of a call, and kills it at its bounds by closing the link: the server does the killing."""

    call: WorkerCall
    process: HeldProcess
    answer_fd: int
    log_fd: int
    progress_fd: int
    grown: Callable[[int], None]  # called with each new peak of its memory

    def __post_init__(self) -> None:
        self.answered = False  # whether the process has returned a result and lingers
        self._progress = protocol.ProgressReader(self.call.progressed)
        self._answer, self._log, self._link_stream = bytearray(), protocol.CappedLog(), b""
        self._started: protocol.Started | None = None
        self._ended: protocol.Ended | None = None
        self._linked = True
        self._start_time = self._end_time = self._sample_time = self._kill_time = 0.0
        self._killed_for: _Bound | None = None
        self._memory = self._peak = 0
        self._descendants = Descendants()

    def begin(self, started: protocol.Started) -> None:
        """The process is not forked for this call, but has taken it."""
        self._started, self._start_time = started, time.monotonic()
        self._link_stream = started.encode()  # replaces what the server sent before the process's first call

    def wait(self, *, lingers: bool) -> None:
        """Returns when the call's process or the server has ended, or a process that then `lingers` has answered."""
        poll = select.poll()
        for fd in (self.process.link.fileno(), self.answer_fd, self.log_fd, self.progress_fd):
            os.set_blocking(fd, False)
            poll.register(fd, select.POLLIN)
        while self._linked and self._ended is None and not self.answered:
            for fd, _ in poll.poll(_TICK * 1000):
                if self._read(fd) == b"":
                    poll.unregister(fd)
                    if fd == self.answer_fd and lingers:
                        self._note_answer()
            if self._started and self._ended is None and not self.answered:
                self._check_bounds(self._started, time.monotonic())
        for fd in (self.answer_fd, self.log_fd, self.progress_fd):
            self._read(fd)  # the rest: a pipe holds less than a chunk

    def report(self) -> protocol.WorkerReport:
        if self._started is None or (self._ended is None and not self.answered):
            raise self._with_log(self._lost())
        code = self._ended.code if self._ended else 0
        if code < 0:
            raise self._with_log(self._signalled(-code))
        answer = self._whole_answer() if code == 0 else None
        if answer is None:
            raise self._with_log(StageCrashed(f"exited with code {code} without an answer"))
        if answer.error is not None:
            flags = {name: getattr(answer, name) for name in ("bad_input", "user_code", "lost_object")}
            raise self._with_log(StageFailed(answer.error, **flags))
        return protocol.WorkerReport(
            result=answer.result,
            seconds=self._end_time - self._start_time,
            peak_memory=max(self._peak, answer.memory - self._started.baseline),
            log=self._log.content(),
        )

    def _whole_answer(self) -> protocol.Answer | None:
        try:
            return protocol.Answer.decode(bytes(self._answer))
        except ValueError:
            return None

    def _note_answer(self) -> None:
        """A result ends the call; a process that has none ends itself."""
        answer = self._whole_answer()
        self.answered = answer is not None and answer.error is None
        self._end_time = time.monotonic()

    def _read(self, fd: int) -> bytes | None:
        """Reads one chunk: empty at the end, None where there is nothing yet."""
        try:
            chunk = os.read(fd, _CHUNK)
        except BlockingIOError:
            return None
        except ConnectionError:
            chunk = b""
        if fd == self.answer_fd:
            self._answer += chunk
        elif fd == self.log_fd:
            self._log.add(chunk)
        elif fd == self.progress_fd:
            self._progress.add(chunk)
        else:
            self._read_link(chunk)
        return chunk

    def _read_link(self, chunk: bytes) -> None:
        self._end_time = time.monotonic()
        self._linked = bool(chunk)
        self._link_stream += chunk
        started, self._ended = protocol.decode_link(self._link_stream)
        if self._started is None and started is not None:
            self._started, self._start_time = started, self._end_time

    def _check_bounds(self, started: protocol.Started, now: float) -> None:
        if self._killed_for is not None:
            if now - self._kill_time > KILL_LIMIT:
                raise self._with_log(StageCrashed(f"process {started.pid} was killed and does not end"))
        elif now - self._start_time > self.call.limits.timeout:
            self._kill(_Bound.TIME, now)
        elif self.call.given_up():
            self._kill(_Bound.NEED, now)
        elif started.pid > 0 and now - self._sample_time >= _TICK:
            self._sample_time = now
            own = own_memory(started.pid)
            if not own:
                return  # it has just ended, and its descendants are no longer below it
            self._memory = max(0, own - started.baseline) + self._descendants.look(started.pid)
            if self._memory > self._peak:
                self._peak = self._memory
                self.grown(self._peak)
            if self._memory > self.call.limits.memory:
                self._kill(_Bound.MEMORY, now)

    def _kill(self, bound: _Bound, now: float) -> None:
        self._killed_for = bound
        self._kill_time = now
        with suppress(OSError):  # the server has closed it: the end is about to be read
            self.process.link.shutdown(socket.SHUT_WR)

    def _signalled(self, signum: int) -> StageError:
        if signum != signal.SIGKILL:
            reasons = runtime_reasons(self._log.content().decode(errors="replace"))
            killed = f"killed by {protocol.signal_name(signum)}"
            return StageCrashed(": ".join(filter(None, ("; ".join(reasons), killed))))
        held = _mebibytes(self._memory)
        if self._killed_for is _Bound.TIME:
            return StageTimedOut(f"killed at its time limit of {self.call.limits.timeout:g} s")
        if self._killed_for is _Bound.MEMORY:
            limit = _mebibytes(self.call.limits.memory)
            return StageOutOfMemory(f"killed at its memory bound of {limit}: it held {held}")
        if self._killed_for is _Bound.NEED:
            return StageCrashed("killed, since nobody needs it any more")
        return StageOutOfMemory(
            "killed by SIGKILL from outside, probably by the kernel because the machine was out of memory; "
            f"it held {held} when last seen"
        )

    def _lost(self) -> StageError:
        if self._started is not None and self._started.pid < 0:
            return StageCrashed(f"no process could be forked for it: {os.strerror(-self._started.pid)}")
        self._descendants.kill()  # with the server, nobody is left to adopt them
        return self.process.server.loss(self._started.pid if self._started else None)

    def _with_log(self, error: StageError) -> StageError:
        error.log_tail = protocol.tail_lines(self._log.content()) or error.log_tail
        return error


def _mebibytes(count: int) -> str:
    return f"{count / 2**20:.0f} MiB"
