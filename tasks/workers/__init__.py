"""Runs stage bodies: every call in a fresh process, forked from a server that has torch and executorch warm.

`Workers` is the pool. Nothing here imports torch except `preload`, which only the server imports.
"""

from __future__ import annotations

from .limits import WorkerLimits, WorkerReport
from .pool import Workers

__all__ = ["WorkerLimits", "WorkerReport", "Workers"]
