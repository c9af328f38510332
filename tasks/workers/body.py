"""What happens in a freshly forked stage process, up to and after the stage body."""

from __future__ import annotations

import contextlib
import importlib
import operator
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from ...errors import InputError
from ..progress import reporter
from .parent_death import die_with_parent
from .process_memory import own_memory
from .progress import ProgressWriter
from .protocol import Answer, Request

_MESSAGE_LIMIT = 4000
_LINUX_OOM_PREFERENCE = Path("/proc/self/oom_score_adj")


class StageProcess:
    """Made by the server before it forks; `run` is called in the child."""

    def __init__(self, server: int, set_death_signal: Callable[[int], None]) -> None:
        """Takes the server's process id and the function of `parent_death_signal`."""
        self._server = server
        self._set_death_signal = set_death_signal

    def run(self, request_fd: int, answer_fd: int, log_fd: int, progress_fd: int) -> NoReturn:
        """Runs the requested body, writes its answer and exits with code 0, whether it gave a result or raised.

        The exit skips Python's finalization: threads and atexit functions of a body cannot keep the process alive.
        """
        os.setsid()  # a group of its own, and no Ctrl-C from the terminal
        die_with_parent(self._set_death_signal, self._server)
        with contextlib.suppress(OSError):  # if the kernel has to choose, better a stage than the pool or the server
            _LINUX_OOM_PREFERENCE.write_text("500")
        os.dup2(log_fd, 1)
        os.dup2(log_fd, 2)
        os.close(log_fd)
        reporter.set(ProgressWriter(progress_fd))
        answer = _answer(request_fd)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # closed by the body
                stream.flush()
        with open(answer_fd, "wb") as file:
            file.write(answer)
        os._exit(0)


def _answer(request_fd: int) -> bytes:
    try:
        with open(request_fd, "rb") as file:
            request = Request.decode(file.read())
        result = _load(request)(request.argument)
        return Answer(result, None, bad_input=False, memory=own_memory(os.getpid())).encode()
    except BaseException as error:  # noqa: BLE001 - a process boundary: whatever was raised is the answer
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next  # begins in the body, not here
        with contextlib.suppress(OSError, ValueError):  # the body closed stderr
            traceback.print_exception(error)
        bad_input = isinstance(error, InputError)
        return Answer(None, _one_message(error), bad_input=bad_input, memory=own_memory(os.getpid())).encode()


def _load(request: Request) -> Callable[[Any], Any]:
    sys.path[:0] = request.python_path
    importlib.invalidate_caches()  # the server may have listed a folder before the module came into it
    module, _, name = request.function.partition(":")
    function: Callable[[Any], Any] = operator.attrgetter(name)(importlib.import_module(module))
    return function


def _one_message(error: BaseException) -> str:
    """`ExceptionType: message`; torch's messages like to begin with an empty line."""
    try:
        message = str(error).strip()
    except Exception as unprintable:  # noqa: BLE001 - the body's own class
        message = f"(its message cannot be shown: {type(unprintable).__name__})"
    if len(message) > _MESSAGE_LIMIT:
        message = f"{message[:_MESSAGE_LIMIT]} ..."
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
