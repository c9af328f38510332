"""Exit codes of commands, and commands that survive a crash of the native code that they call."""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ParamSpec

import typer

from ...errors import InputError, PteforgeError
from ..run.interrupt import INTERRUPTED, MESSAGE, leave, noticed_interrupts

_Options = ParamSpec("_Options")

_PR_SET_PDEATHSIG = 1


@dataclass
class Ending:
    """How a command ended."""

    code: int = 0


@contextmanager
def exit_code() -> Iterator[Ending]:
    """Runs a command in its context, and makes an exit code of what it raises; its errors go to standard error.

    A failure after Ctrl-C is an interruption: libraries make other errors of it, for example imports of C code.
    """
    end = Ending()
    with noticed_interrupts() as interrupts:
        try:
            yield end
        except PteforgeError as error:
            sys.stderr.write(f"error: {error}\n")
            end.code = 2 if isinstance(error, InputError) else 1
        except KeyboardInterrupt:
            sys.stderr.write(MESSAGE)
            end.code = INTERRUPTED
        except typer.Exit as error:
            end.code = error.exit_code
        except SystemExit as error:
            end.code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
        except Exception:
            if not interrupts:
                raise
            end.code = 1
        if interrupts and end.code == 1:
            sys.stderr.write(MESSAGE)
            end.code = INTERRUPTED


def in_child(command: Callable[_Options, None]) -> Callable[_Options, None]:
    """The command in a child process, so that a crash of ExecuTorch's runtime is told, with the signal.

    In a process with several threads, which cannot be forked safely, the command runs as it is.
    """

    @functools.wraps(command)
    def run(*args: _Options.args, **options: _Options.kwargs) -> None:
        if len(os.listdir("/proc/self/task")) > 1:  # noqa: PTH208 - only their number counts
            command(*args, **options)
            return
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child == 0:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            with exit_code() as end:
                command(*args, **options)
            leave(end.code)
        _wait(child, options.get("file"))

    return run


def _wait(child: int, file: object) -> None:
    """Ends as the child does."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the child has got it, too
    try:
        _, status = os.waitpid(child, 0)
    finally:
        signal.signal(signal.SIGINT, before)
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        raise PteforgeError(
            f"ExecuTorch's runtime crashed ({name}) while it loaded or ran {file}: the file is damaged, or was made "
            "for another version of ExecuTorch; export it again"
        )
    raise typer.Exit(os.WEXITSTATUS(status))
