"""Runs stage bodies: each call in a fresh process, forked from a server that has imported torch and executorch.

`Workers` is the pool, `StageRunner` the interface that other runners implement too. Only `preload` imports torch, and
only the server imports `preload`.
"""

from .pool import StageRunner, Workers, memory_for_calls
from .protocol import WorkerLimits, WorkerReport

__all__ = ["StageRunner", "WorkerLimits", "WorkerReport", "Workers", "memory_for_calls"]
