"""One call, as the pool sees it: hands it to the server, enforces its limits, judges how it ended."""

from __future__ import annotations

import enum
import os
import select
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

from ....errors import StageCrashed, StageError, StageFailed, StageOutOfMemory, StageTimedOut, runtime_reasons
from ..stage import Progressed
from .process_memory import Descendants, own_memory
from .protocol import (
    CALL,
    STARTED_SIZE,
    Answer,
    CallRequest,
    Ended,
    ProgressReader,
    Started,
    WorkerLimits,
    WorkerReport,
    decode_link,
    signal_name,
    tail_lines,
)
from .warm_server import Server

_TICK = 0.02  # seconds between two samples of the memory
_KILL_LIMIT = 30.0  # seconds to wait for the end of a killed process, which may be stuck in the kernel
_CHUNK = 1 << 18


class HeldProcess:
    """A stage process as the pool holds it: `close` has the server kill it, unless it has ended."""

    def __init__(self, server: Server) -> None:
        """Starts nothing yet."""
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
        self._calls.settimeout(_KILL_LIMIT)
        try:
            socket.send_fds(self._calls, [CALL], call_fds)
            return decode_link(self._calls.recv(STARTED_SIZE))[0]
        except OSError:
            return None

    def close(self) -> None:
        for end in (self.link, self._far_link, self._calls, self._far_calls):
            end.close()


@contextmanager
def running_call(
    server: Server,
    request: CallRequest,
    limits: WorkerLimits,
    progressed: Progressed,
    grown: Callable[[int], None],
    waiting: HeldProcess | None = None,
) -> Iterator[RunningCall]:
    """A call on a warm server, of the process that is waiting for one, if it still is; else of a new one.

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
        call = RunningCall(limits, process, answer, log, progress, ProgressReader(progressed), grown)
        started = process.take(far_ends) if waiting else None
        if started:
            call.begin(started)
        elif waiting:  # with channels of its own, since the process may have read from these
            call = kept.enter_context(running_call(server, request, limits, progressed, grown))
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


class RunningCall:
    """Collects the output of a call, and kills it at its bounds by closing the link: the server does the killing."""

    def __init__(
        self,
        limits: WorkerLimits,
        process: HeldProcess,
        answer: int,
        log: int,
        progress: int,
        progress_reader: ProgressReader,
        grown: Callable[[int], None],
    ) -> None:
        self.process = process
        self._limits = limits
        self._link = process.link
        self._answer_fd = answer
        self._log_fd = log
        self._progress_fd = progress
        self._progress = progress_reader
        self._grown = grown
        self._link_stream = b""
        self._answer = bytearray()
        self._log = CappedLog()
        self._started: Started | None = None
        self._ended: Ended | None = None
        self._linked = True
        self.answered = False  # whether the process has returned a result and lingers
        self._start_time = self._end_time = self._sample_time = self._kill_time = 0.0
        self._killed_for: _Bound | None = None
        self._memory = self._peak = 0
        self._descendants = Descendants()

    def begin(self, started: Started) -> None:
        """The process is not forked for this call, but has taken it."""
        self._started, self._start_time = started, time.monotonic()
        self._link_stream = started.encode()  # in place of what the server sent before the process's first call

    def wait(self, *, lingers: bool) -> None:
        """Returns when the server has closed the link: the call's process has ended, or the server has.

        Also when a process that then `lingers` has returned a result.
        """
        poll = select.poll()
        for fd in (self._link.fileno(), self._answer_fd, self._log_fd, self._progress_fd):
            os.set_blocking(fd, False)
            poll.register(fd, select.POLLIN)
        while self._linked and self._ended is None and not self.answered:
            for fd, _ in poll.poll(_TICK * 1000):
                if self._read(fd) == b"":
                    poll.unregister(fd)
                    if fd == self._answer_fd and lingers:
                        self._check_answer()
            if self._started and self._ended is None and not self.answered:
                self._check_bounds(self._started, time.monotonic())
        for fd in (self._answer_fd, self._log_fd, self._progress_fd):
            self._read(fd)  # the rest: a pipe holds less than a chunk

    def report(self, server: Server) -> WorkerReport:
        if self._started is None or (self._ended is None and not self.answered):
            raise self._with_log(self._lost(server))
        code = self._ended.code if self._ended else 0
        if code < 0:
            raise self._with_log(self._signalled(-code))
        answer = self._whole_answer() if code == 0 else None
        if answer is None:
            raise self._with_log(StageCrashed(f"exited with code {code} without an answer"))
        if answer.error is not None:
            failed = StageFailed(
                answer.error, bad_input=answer.bad_input, user_code=answer.user_code, lost_object=answer.lost_object
            )
            raise self._with_log(failed)
        return WorkerReport(
            result=answer.result,
            seconds=self._end_time - self._start_time,
            peak_memory=max(self._peak, answer.memory - self._started.baseline),
            log=self._log.content(),
        )

    def _whole_answer(self) -> Answer | None:
        try:
            return Answer.decode(bytes(self._answer))
        except ValueError:
            return None

    def _check_answer(self) -> None:
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
        if fd == self._answer_fd:
            self._answer += chunk
        elif fd == self._log_fd:
            self._log.add(chunk)
        elif fd == self._progress_fd:
            self._progress.add(chunk)
        else:
            self._read_link(chunk)
        return chunk

    def _read_link(self, chunk: bytes) -> None:
        self._end_time = time.monotonic()
        self._linked = bool(chunk)
        self._link_stream += chunk
        started, self._ended = decode_link(self._link_stream)
        if self._started is None and started is not None:
            self._started, self._start_time = started, self._end_time

    def _check_bounds(self, started: Started, now: float) -> None:
        if self._killed_for is not None:
            if now - self._kill_time > _KILL_LIMIT:
                raise self._with_log(StageCrashed(f"process {started.pid} was killed and does not end"))
        elif now - self._start_time > self._limits.timeout:
            self._kill(_Bound.TIME, now)
        elif started.pid > 0 and now - self._sample_time >= _TICK:
            self._sample_time = now
            own = own_memory(started.pid)
            if not own:
                return  # it has just ended, and its descendants are no longer below it
            self._memory = max(0, own - started.baseline) + self._descendants.look(started.pid)
            if self._memory > self._peak:
                self._peak = self._memory
                self._grown(self._peak)
            if self._memory > self._limits.memory:
                self._kill(_Bound.MEMORY, now)

    def _kill(self, bound: _Bound, now: float) -> None:
        self._killed_for = bound
        self._kill_time = now
        with suppress(OSError):  # the server has closed it: the end is about to be read
            self._link.shutdown(socket.SHUT_WR)

    def _signalled(self, signum: int) -> StageError:
        if signum != signal.SIGKILL:
            reasons = runtime_reasons(self._log.content().decode(errors="replace"))
            return StageCrashed(": ".join(filter(None, ("; ".join(reasons), f"killed by {signal_name(signum)}"))))
        held = _mebibytes(self._memory)
        if self._killed_for is _Bound.TIME:
            return StageTimedOut(f"killed at its time limit of {self._limits.timeout:g} s")
        if self._killed_for is _Bound.MEMORY:
            return StageOutOfMemory(f"killed at its memory bound of {_mebibytes(self._limits.memory)}: it held {held}")
        return StageOutOfMemory(
            "killed by SIGKILL from outside, probably by the kernel because the machine was out of memory; "
            f"it held {held} when last seen"
        )

    def _lost(self, server: Server) -> StageError:
        if self._started is not None and self._started.pid < 0:
            return StageCrashed(f"no process could be forked for it: {os.strerror(-self._started.pid)}")
        self._descendants.kill()  # with the server, nobody is left to adopt them
        return server.loss(self._started.pid if self._started else None)

    def _with_log(self, error: StageError) -> StageError:
        error.log_tail = tail_lines(self._log.content()) or error.log_tail
        return error


def _mebibytes(count: int) -> str:
    return f"{count / 2**20:.0f} MiB"


class CappedLog:
    """The output of a process, at most `limit` bytes of it: half from the head and half from the tail."""

    def __init__(self, limit: int = 1 << 20) -> None:
        self._half = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0

    def add(self, chunk: bytes) -> None:
        free = self._half - len(self._head)
        self._head += chunk[:free]
        self._tail += chunk[free:]
        if len(self._tail) > 2 * self._half:  # trimmed now and then, so that a byte is moved at most once or twice
            self._trim()

    def content(self) -> bytes:
        """Everything, or head and tail around a line that says how many bytes were left out."""
        self._trim()
        gap = b"\n[... %d bytes left out ...]\n" % self._dropped if self._dropped else b""
        return bytes(self._head) + gap + bytes(self._tail)

    def _trim(self) -> None:
        excess = len(self._tail) - self._half
        if excess > 0:
            del self._tail[:excess]
            self._dropped += excess
