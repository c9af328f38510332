"""Stage bodies run in the calling process: no worker, no time limit, no memory bound."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ...errors import StageError, StageFailed
from ..stage import Progressed, no_progress, reporter
from .pool import Chain, ignore_start
from .protocol import WorkerLimits, WorkerReport


class InProcess:
    """A `StageRunner` for one thread at a time: torch and ExecuTorch do not lower two programs at once."""

    def run(
        self,
        function: str,
        argument: Any,
        limits: WorkerLimits,
        *,
        memory: int | None = None,
        python_path: tuple[str, ...] = (),
        chain: Chain | None = None,
        started: Callable[[], None] = ignore_start,
        progressed: Progressed = no_progress,
    ) -> WorkerReport:
        """Calls a function under the global torch state of a fresh process; raises StageFailed, with the cause."""
        del limits, memory  # there is one call at a time, and no process to kill
        del chain, python_path  # what the caller can import is what its own `sys.path` says
        module, _, name = function.partition(":")
        body = getattr(importlib.import_module(module), name)
        started()
        token, began = reporter.set(progressed), time.perf_counter()
        try:
            with as_in_a_process():
                result = body(argument)
        finally:
            reporter.reset(token)
        return WorkerReport(result, time.perf_counter() - began, peak_memory=0, log=b"")

    def awaits(self, chain: Chain | None) -> bool:
        """No process waits here."""
        del chain
        return False


@contextmanager
def as_in_a_process() -> Iterator[None]:
    """The global torch state of a fresh process, for a body that is called in the context; raises StageFailed."""
    from ..programs.entry import forget_old_calls, fresh_state  # noqa: PLC0415 - torch

    with fresh_state():
        try:
            yield
        except StageError:
            raise
        except Exception as error:
            raise StageFailed.of(error) from error
        finally:
            forget_old_calls()
