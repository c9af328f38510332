"""Ctrl-C ends a run within seconds, whatever the run is waiting for."""

from __future__ import annotations

import os
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NoReturn

from .json_log import print_error

if TYPE_CHECKING:
    from .session import Session  # imports much that not every command needs

INTERRUPTED = 130
"""Exit code, as in shells: 128 + SIGINT."""

MESSAGE = "interrupted; finished stages are kept, run the same command to go on"

_PATIENCE = 3.0  # seconds for Prefect to notify its server
_noticed: list[int] = []  # signals of Ctrl-C that came while nobody else handled them


@contextmanager
def noticed_interrupts() -> Iterator[list[int]]:
    """Lists signals of Ctrl-C while the context is open. They raise KeyboardInterrupt, as they do by default."""
    if threading.current_thread() is not threading.main_thread():
        yield []  # signals only reach the main thread
        return

    def interrupt(signum: int, frame: types.FrameType | None) -> None:
        _noticed.append(signum)
        signal.default_int_handler(signum, frame)

    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
    try:
        yield _noticed
    finally:
        _noticed.clear()
        if signal.getsignal(signal.SIGINT) is interrupt:
            signal.signal(signal.SIGINT, before)


@contextmanager
def prompt_interrupt(session: Session) -> Iterator[None]:
    """Ctrl-C stops the session's workers and raises KeyboardInterrupt while the context is open.

    Prefect may then wait for threads that wait for other runs, or for a server that does not answer. After a few
    seconds, or at a second Ctrl-C, the process exits without waiting: stores survive that.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals only reach the main thread
        return

    interrupted = threading.Event()

    def interrupt(_signum: int, _frame: types.FrameType | None) -> None:
        interrupted.set()
        signal.signal(signal.SIGINT, lambda _signum, _frame: leave_interrupted())
        _abort(session, leave_interrupted)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        if _noticed:  # before, and a library has caught it
            interrupt(signal.SIGINT, None)
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if interrupted.is_set():  # again, since a library may have caught the first one
            raise KeyboardInterrupt


@contextmanager
def prompt_termination(session: Session) -> Iterator[None]:
    """SIGTERM ends the process within seconds while the context is open, whatever is running by then.

    Prefect's handler, there by now, raises an exception, which the event loop would keep in a callback or a task.
    """
    before = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return

    def terminate(signum: int, frame: types.FrameType | None) -> None:
        signal.signal(signum, signal.SIG_DFL)
        _abort(session, lambda: os.kill(os.getpid(), signum))
        before(signum, frame)

    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) == terminate:
            signal.signal(signal.SIGTERM, before)


def _abort(session: Session, leave: Callable[[], None]) -> None:
    """Stops the session's workers and records the run as interrupted; leaves the process if it does not end soon."""
    timer = threading.Timer(_PATIENCE, leave)
    timer.daemon = True
    timer.start()
    threading.Thread(target=session.recording.save, args=("interrupted",), daemon=True).start()
    session.abort()


def leave_interrupted() -> NoReturn:
    print_error(MESSAGE)
    leave(INTERRUPTED)


def leave(code: int) -> NoReturn:
    """Exits at once: no exit functions, no waiting for threads or for a server that does not answer."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # its reader is gone
            stream.flush()
    os._exit(code)
