"""Ctrl-C ends a run within seconds, whatever it waits for."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from .session import Session, Unobserved

INTERRUPTED = 130
"""Exit code, as shells have it for SIGINT."""

_PATIENCE = 5.0  # seconds for Prefect to tell its server


@contextmanager
def prompt_interrupt(session: Session) -> Iterator[None]:
    """For as long as the context is open, Ctrl-C ends the session's workers and raises KeyboardInterrupt.

    Prefect may then wait for threads that wait for other runs, or for a server that does not answer. After some
    seconds, or at a second Ctrl-C, the process ends without them: stores are made for that.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread is interrupted
        return

    def interrupt(_signum: int, _frame: types.FrameType | None) -> None:
        signal.signal(signal.SIGINT, lambda _signum, _frame: leave_interrupted())
        timer = threading.Timer(_PATIENCE, leave_interrupted)
        timer.daemon = True
        timer.start()
        session.observer = Unobserved()  # that stages were stopped is no news
        session.workers.stop()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def leave_interrupted() -> NoReturn:
    """Says so and ends this process now."""
    sys.stderr.write("interrupted; finished stages are kept, run the same command to go on\n")
    leave(INTERRUPTED)


def leave(code: int) -> NoReturn:
    """Ends this process now: no exit functions, no waiting for threads, or for a server that does not answer."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
            stream.flush()
    os._exit(code)
