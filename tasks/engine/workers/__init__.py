"""Runs stage bodies in processes that are forked from a server that has imported torch and executorch.

Calls of one chain may share a process, one after another; every other call has a fresh one.

`Workers` is the pool; `InProcess` takes the same calls, and runs them in the calling process. Only
`tasks.lowering.preload` and `entry` import torch, and only the server imports the former.
"""

from .memory import memory_for_calls
from .pool import CallChain, InProcess, StageRunner, WorkerCall, Workers, as_in_a_process
from .protocol import WorkerReport

__all__ = [
    "CallChain",
    "InProcess",
    "StageRunner",
    "WorkerCall",
    "WorkerReport",
    "Workers",
    "as_in_a_process",
    "memory_for_calls",
]
