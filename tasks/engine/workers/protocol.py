"""Messages between the pool, its server and the stage processes: JSON and plain numbers; nothing is pickled.

For each call the pool opens four channels:
    request     a file that holds a `CallRequest`
    answer      a pipe: the stage process writes an `Answer` and closes it
    log         a pipe: stdout and stderr of the stage process
    progress    a pipe: how far the stage process is
and for each process two:
    calls       a socket: takes the far ends of a further call's channels; the process answers with a `Started`
    link        a socket: the server sends a `Started`, and an `Ended` after the process; when the pool closes its end
                (or dies), the server kills the call's process, and when it has ended, all its descendants
The far ends of all six go to the server, which forks the process, in one message of one byte; those of a further call
go to a process that has answered one, and waits for another (`CallRequest.linger`), in such a message, too.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from ....errors import printable
from ..stage import Progressed

PROCESSES_VARIABLE = "PTEFORGE_PROCESSES"
"""Environment variable. With ``fresh``, no two stages share a worker process; with ``started``, worker processes are
started instead of forked, as they are on systems other than Linux."""


@dataclass(frozen=True)
class WorkerReport:
    """A call that returned."""

    result: Any  # the JSON value that the body returned
    seconds: float  # wall-clock time from the fork to the end of the process, or of the call in a process of a chain
    peak_memory: int  # largest sampled memory in bytes, counted as `WorkerCall.limits` does
    log: bytes  # stdout and stderr of the body; only the head and the tail of a very long one


CALL_FDS = 4
PROCESS_FDS = CALL_FDS + 2
READY = b"R"  # followed by the server's `tasks.engine.keys.loaded.code_at_start`
CALL = b"C"


class _Message:
    """Base of dataclasses that are sent as JSON."""

    def encode(self) -> bytes:
        return json.dumps(vars(self)).encode()

    @classmethod
    def decode(cls, content: bytes) -> Self:
        return cls(**json.loads(content))


@dataclass(frozen=True)
class CallRequest(_Message):
    """The call of a function."""

    function: str  # ``package.module:name``
    argument: Any
    python_path: Sequence[str]  # folders to put in front of ``sys.path``
    linger: float = 0.0  # seconds for which the process then waits for another call; 0 ends it


@dataclass(frozen=True)
class Answer(_Message):
    """The result of a body, or the error it raised."""

    result: Any  # JSON value; None with an error
    error: str | None  # ``ExceptionType: message``; None with a result
    bad_input: bool
    memory: int  # bytes of anonymous memory that the process held at its end
    lost_object: bool = False  # the error is that an object of the store was missing or damaged
    user_code: bool = False  # the error is an exception that the user's code raised


class Started(NamedTuple):
    """The process was forked, or has taken a further call."""

    pid: int  # of the process, or minus the errno with which the fork failed
    baseline: int  # bytes of anonymous memory that the process inherited, or has kept from its earlier calls

    def encode(self) -> bytes:
        return _STARTED.pack(*self)


class Ended(NamedTuple):
    """The process ended. `code` is its exit code, or minus the number of the signal that killed it."""

    code: int

    def encode(self) -> bytes:
        return _ENDED.pack(*self)


_STARTED = struct.Struct("=qq")  # of fixed size, so that the link's stream can be split
_ENDED = struct.Struct("=q")
STARTED_SIZE = _STARTED.size


def decode_link(stream: bytes) -> tuple[Started | None, Ended | None]:
    started = Started(*_STARTED.unpack_from(stream)) if len(stream) >= _STARTED.size else None
    ended = Ended(*_ENDED.unpack_from(stream, _STARTED.size)) if len(stream) >= _STARTED.size + _ENDED.size else None
    return started, ended


def signal_name(signum: int) -> str:
    """SIGSEGV for 11; `signal 40` for one that has no name."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"


def tail_lines(log: bytes) -> str:
    """The last lines of a log, safe to print: unprintable characters are escaped, bad UTF-8 is replaced.

    Tracebacks at its end have as many lines of their own, without calls between functions of installed packages. Leaves
    out libraries' deprecation warnings, and ExecuTorch's message about processors that are not a phone's.
    """
    text = log[-(256 << 10) :].decode("utf-8", errors="replace")
    lines = _without_inner_calls(_without_noise(text.rstrip().splitlines()))
    first = next((number for number, line in enumerate(lines) if line.startswith(TRACEBACK)), len(lines))
    tail = [*lines[:first][-_LINES:], *lines[first : first + 1], *lines[first + 1 :][-_LINES:]]
    return "\n".join(printable(line, keep="\t") for line in tail)


def _without_noise(lines: Iterable[str]) -> Iterator[str]:
    deprecated = False
    for line in lines:
        if not (deprecated and line.startswith("  ")):  # the line of code, which follows
            deprecated = bool(_DEPRECATED.match(line))
            if not (deprecated or _NOISE.match(line)):
                yield line


def _without_inner_calls(lines: Iterable[str]) -> list[str]:
    """Leaves out of each traceback the calls in installed packages, but for the first and the last."""
    shown: list[str] = []
    inner: list[list[str]] = []  # consecutive calls in packages, each a line that names the file, and lines of code
    for line in [*lines, ""]:
        if line.startswith('  File "') and _PACKAGES in line:
            inner.append([line])
        elif inner and line.startswith("    "):
            inner[-1].append(line)
        else:
            calls = inner if len(inner) < 4 else [inner[0], [f"  ... {len(inner) - 2} calls"], inner[-1]]
            shown += [*(part for call in calls for part in call), line]
            inner = []
    return shown[:-1]


TRACEBACK = "Traceback (most recent call last)"
_LINES = 40  # of a log
_NOISE = re.compile(r"\[cpuinfo_utils\.cpp:|W\d{4} \S+ \d+ torch/utils/_pytree\.py:")
_DEPRECATED = re.compile(r"/\S+/lib/python3\.\d+/\S+:\d+: (Future|Deprecation|PendingDeprecation)Warning: ")
_PACKAGES = f"{os.sep}site-packages{os.sep}"


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


_RECORD = struct.Struct("=qq")  # far below PIPE_BUF, so that each is written whole or not at all
_PAUSE = 0.1  # seconds between two records, so that reporting costs nothing


class ProgressWriter:
    """The stage process's end. Records that the pool does not read in time are lost."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._last = float("-inf")

    def __call__(self, done: int, total: int | None) -> None:
        """Reports the first sample, the last one, and some in between."""
        now = time.monotonic()
        if now - self._last < _PAUSE and done != total:
            return
        self._last = now
        with contextlib.suppress(OSError):  # the pipe is full, or the pool has given the call up
            os.write(self._fd, _RECORD.pack(done, -1 if total is None else total))


class ProgressReader:
    """The pool's end: calls `progressed` with the latest record."""

    def __init__(self, progressed: Progressed) -> None:
        self._progressed = progressed
        self._stream = b""

    def add(self, chunk: bytes) -> None:
        self._stream += chunk
        whole = len(self._stream) - len(self._stream) % _RECORD.size
        if whole:
            done, total = _RECORD.unpack_from(self._stream, whole - _RECORD.size)
            self._stream = self._stream[whole:]
            self._progressed(done, None if total < 0 else total)
