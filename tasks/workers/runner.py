"""The seam between steps and where their stages run."""

from __future__ import annotations

from typing import Any, Protocol

from ..progress import Progressed, unheard
from .limits import WorkerLimits, WorkerReport


class StageRunner(Protocol):
    """Runs functions by name, from JSON to JSON: `Workers` in processes of their own, `InProcess` in this one."""

    def run(
        self,
        function: str,
        argument: Any,
        limits: WorkerLimits,
        *,
        python_path: tuple[str, ...] = (),
        progressed: Progressed = unheard,
    ) -> WorkerReport:
        """Calls a function with one JSON value.

        Args:
            function: ``package.module:name``.
            argument: a JSON value.
            limits: bounds of this call.
            python_path: folders that come first on ``sys.path``.
            progressed: told how far the function is, where it says so (see `tasks.progress.reporter`).

        Raises:
            StageError: it did not give a result.
        """
        ...
