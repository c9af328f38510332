"""What one call may use, and what it did use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class WorkerLimits:
    """Bounds of one call; past either of them its process group is killed.

    Attributes:
        timeout: wall-clock seconds of the call itself; waiting for a free place or for the warm-up does not count.
        memory: bytes of anonymous memory that the call may hold beyond what it inherited from the warm server.
            Sampled, so a short excess of less than some ten milliseconds may go unseen.
    """

    timeout: float
    memory: int

    def __post_init__(self) -> None:
        if not self.timeout > 0:
            raise ValueError(f"timeout is {self.timeout}, must be more than 0 seconds")
        if not self.memory > 0:
            raise ValueError(f"memory is {self.memory}, must be more than 0 bytes")


@dataclass(frozen=True)
class WorkerReport:
    """A call that gave its answer.

    Attributes:
        result: the JSON value that the body returned.
        seconds: wall-clock time from the fork to the end of the process.
        peak_memory: largest sampled memory in bytes, counted as `WorkerLimits.memory` counts it.
        log: what the body wrote to stdout and stderr; of a very long one its head and its tail.
    """

    result: Any
    seconds: float
    peak_memory: int
    log: bytes
