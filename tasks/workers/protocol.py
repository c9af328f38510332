"""What goes between the pool, its server and the stage processes. JSON and plain numbers only; nothing is pickled.

For each call the pool makes five things and hands their far ends to the server in one message of one byte:
    request     a file that holds a `Request`
    answer      a pipe: the stage process writes an `Answer` and closes it
    log         a pipe: stdout and stderr of the stage process
    progress    a pipe: how far the stage process is, see `progress`
    link        a socket: the server sends a `Started`, and an `Ended` after the process; when the pool closes its end
                (or dies), the server kills the process group of the call
"""

from __future__ import annotations

import json
import signal
import struct
from dataclasses import asdict, dataclass
from typing import Any

CALL_FDS = 5
READY = b"R"
CALL = b"C"


@dataclass(frozen=True)
class Request:
    """What to run: `function` as ``package.module:name``, with folders to put in front of ``sys.path``."""

    function: str
    argument: Any
    python_path: tuple[str, ...]

    def encode(self) -> bytes:
        """As JSON; raises TypeError or ValueError where the argument is not a JSON value."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, content: bytes) -> Request:
        """The inverse of `encode`."""
        fields = json.loads(content)
        return cls(fields["function"], fields["argument"], tuple(fields["python_path"]))


@dataclass(frozen=True)
class Answer:
    """What a body gave: a result, or the error it raised.

    Attributes:
        result: JSON value, None where there is an error.
        error: ``ExceptionType: message``, None where there is a result.
        bad_input: the error is an InputError.
        memory: bytes of anonymous memory the process held at its end.
    """

    result: Any
    error: str | None
    bad_input: bool
    memory: int

    def encode(self) -> bytes:
        """As JSON; raises TypeError or ValueError where the result is not a JSON value."""
        return json.dumps(vars(self)).encode()

    @classmethod
    def decode(cls, content: bytes) -> Answer:
        """The inverse of `encode`; raises ValueError where the content is cut off."""
        fields = json.loads(content)
        return cls(fields["result"], fields["error"], fields["bad_input"], fields["memory"])


@dataclass(frozen=True)
class Started:
    """The process was forked.

    Attributes:
        pid: of the process, or minus the errno with which the fork failed.
        baseline: bytes of anonymous memory that the process inherited.
    """

    pid: int
    baseline: int


@dataclass(frozen=True)
class Ended:
    """The process ended. `code` is its exit code, or minus the number of the signal that killed it."""

    code: int


_STARTED = struct.Struct("=qq")
_ENDED = struct.Struct("=q")


def encode_started(started: Started) -> bytes:
    """Fixed size, so that the pool can cut the link's stream into its two messages."""
    return _STARTED.pack(started.pid, started.baseline)


def encode_ended(ended: Ended) -> bytes:
    """Comes after a `Started`."""
    return _ENDED.pack(ended.code)


def decode_link(stream: bytes) -> tuple[Started | None, Ended | None]:
    """What the link's stream says so far."""
    started = ended = None
    if len(stream) >= _STARTED.size:
        started = Started(*_STARTED.unpack_from(stream))
    if len(stream) >= _STARTED.size + _ENDED.size:
        ended = Ended(*_ENDED.unpack_from(stream, _STARTED.size))
    return started, ended


def signal_name(signum: int) -> str:
    """SIGSEGV for 11; `signal 40` for one that has no name."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"
