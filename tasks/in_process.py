"""Stage bodies run in the calling process: no worker, no time limit, no memory bound."""

from __future__ import annotations

import importlib
import time
from typing import Any

from ..errors import InputError, StageError, StageFailed
from .progress import Progressed, reporter, unheard
from .workers import WorkerLimits, WorkerReport


class InProcess:
    """A `StageRunner` for one thread at a time: torch and ExecuTorch do not lower two programs at once."""

    def run(
        self,
        function: str,
        argument: Any,
        limits: WorkerLimits,
        *,
        python_path: tuple[str, ...] = (),
        progressed: Progressed = unheard,
    ) -> WorkerReport:
        """Calls a function under the global torch state of a fresh process, so that it gives what a worker gives.

        Raises:
            StageFailed: whatever it raised, chained.
        """
        del limits, python_path  # what the caller can import is what its own `sys.path` says
        from .stages.fresh_state import fresh_state  # noqa: PLC0415 - torch

        module, _, name = function.partition(":")
        body = getattr(importlib.import_module(module), name)
        started = time.perf_counter()
        token = reporter.set(progressed)
        with fresh_state():
            try:
                result = body(argument)
            except StageError:
                raise
            except Exception as error:
                problem = f"{type(error).__name__}: {error}"
                raise StageFailed(problem, bad_input=isinstance(error, InputError)) from error
            finally:
                reporter.reset(token)
        return WorkerReport(result, time.perf_counter() - started, peak_memory=0, log=b"")
