"""Runs stage bodies: every call in a fresh process, forked from a server that has torch and executorch warm.

`Workers` is the pool, `StageRunner` the seam that something else may stand in. Nothing here imports torch except
`preload`, which only the server imports.
"""

from __future__ import annotations

from .limits import WorkerLimits, WorkerReport
from .pool import Workers
from .runner import StageRunner

__all__ = ["StageRunner", "WorkerLimits", "WorkerReport", "Workers"]
