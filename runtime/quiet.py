"""Hides the output of libraries on standard error: warnings, logs, graphs of failed exports."""

from __future__ import annotations

import contextlib
import logging
import re
import sys
import threading
import warnings
from collections.abc import Iterator
from functools import cache
from typing import Any

from ..errors import is_of_user

_THEIRS = re.compile(rf"-packages/(executorch|timm|torch|torchao|torchvision|transformers)/|{re.escape(__file__)}")
_one = threading.RLock()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Drops warnings of installed packages, and the logs and output of ExecuTorch and torch.

    Keeps logged errors and output of the user's code. It changes the process, and does nothing if a thread is in it.
    """
    if not _one.acquire(blocking=False):
        yield
        return
    stderr, emit = sys.stderr, logging.StreamHandler.emit
    filtered = _Filtered(stderr)

    def emit_some(handler: logging.StreamHandler[Any], record: logging.LogRecord) -> None:
        hidden = record.levelno < logging.ERROR and _THEIRS.search(record.pathname)
        if not hidden or handler.stream not in (stderr, filtered):
            emit(handler, record)

    try:
        logging.StreamHandler.emit = emit_some  # type: ignore[method-assign, assignment]  # torch makes its handler late
        with warnings.catch_warnings(), contextlib.redirect_stderr(filtered):
            shown = warnings.showwarning

            def show(message: Warning | str, category: type[Warning], filename: str, *more: Any) -> None:
                if filename in ("<stdin>", "<string>") or is_of_user(filename):
                    shown(message, category, filename, *more)

            warnings.showwarning = show  # type: ignore[assignment]  # `more` is what the module passes on
            yield
    finally:
        logging.StreamHandler.emit = emit  # type: ignore[method-assign]  # as above
        _one.release()


class _Filtered:
    """A text stream that drops the output of libraries."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        if not _THEIRS.search(sys._getframe(1).f_code.co_filename):  # noqa: SLF001 - which code writes
            self._stream.write(text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@cache
def load_runtime() -> None:
    """Imports ExecuTorch's runtime and starts its threads, which makes it print about the processor."""
    with quiet():
        import executorch.kernels.quantized  # noqa: F401, PLC0415 - kernels that quantized programs need
        from executorch.extension.pybindings import portable_lib  # noqa: PLC0415 - takes seconds

        portable_lib._threadpool_get_thread_count()  # noqa: SLF001 - nothing public starts them
