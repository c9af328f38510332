"""How far a call has come: told by its process while it runs, over a pipe that never makes it wait."""

from __future__ import annotations

import contextlib
import os
import struct
import time

from ..progress import Progressed

_RECORD = struct.Struct("=qq")  # far below PIPE_BUF, so that each is written whole or not at all
_PAUSE = 0.1  # seconds between two records, so that counting costs nothing


class ProgressWriter:
    """The end of the process that runs the call. What the pool does not read in time is lost."""

    def __init__(self, fd: int) -> None:
        """Takes over the pipe's end."""
        os.set_blocking(fd, False)
        self._fd = fd
        self._last = float("-inf")

    def __call__(self, done: int, total: int | None) -> None:
        """Tells of the first sample, of the last one, and of some between."""
        now = time.monotonic()
        if now - self._last < _PAUSE and done != total:
            return
        self._last = now
        with contextlib.suppress(OSError):  # the pipe is full, or the pool has given the call up
            os.write(self._fd, _RECORD.pack(done, -1 if total is None else total))


class ProgressReader:
    """The pool's end."""

    def __init__(self, progressed: Progressed) -> None:
        """Tells `progressed` of what comes."""
        self._progressed = progressed
        self._stream = b""

    def add(self, chunk: bytes) -> None:
        """Takes what was read; of several records only the last one is news."""
        self._stream += chunk
        whole = len(self._stream) - len(self._stream) % _RECORD.size
        if whole:
            done, total = _RECORD.unpack_from(self._stream, whole - _RECORD.size)
            self._stream = self._stream[whole:]
            self._progressed(done, None if total < 0 else total)
