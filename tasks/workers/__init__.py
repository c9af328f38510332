"""Runs stage bodies in processes that are forked from a server that has imported torch and executorch.

Calls of one chain may share a process, one after another; every other call has a fresh one.

`Workers` is the pool, `StageRunner` the interface that other runners implement too. Only `preload` imports torch, and
only the server imports `preload`.
"""

from .pool import Chain, StageRunner, Workers, memory_for_calls
from .protocol import WorkerLimits, WorkerReport

__all__ = ["Chain", "StageRunner", "WorkerLimits", "WorkerReport", "Workers", "memory_for_calls"]
