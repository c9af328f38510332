"""How long methods take on places."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from .finding import Fact, Finding, of_method
from .tables import format_seconds, format_size

if TYPE_CHECKING:
    from .delivered import Delivered


@dataclass(frozen=True, slots=True)
class TimeShare:
    """A delegate, or an operator outside of delegates, and its share of the time of a call, as an ETDump has it."""

    name: str  # backend or operator, such as ``aten::cat.out``
    share: float  # of the whole call; the rest is the runtime's
    calls: int  # in one call of the method
    delegate: bool = False
    instructions: tuple[int, ...] = ()  # where they are in the method


@dataclass(frozen=True, slots=True)
class Timing(Finding):
    """How long a method of a payload takes on a place, in seconds."""

    role: ClassVar = "timings"
    of: ClassVar = "place"

    payload: str  # empty for a plain file
    method: str
    place: str
    machine: str  # what the place says of itself, or the processor of the host
    load: float
    first: float  # the first call
    median: float  # of the calls after the first
    p95: float
    calls: int  # how many that are
    peak_memory: int  # resident bytes at most, beyond those before loading; 0 if that is not known
    shares: tuple[TimeShare, ...] = ()  # largest first, of traced calls, which are not among those above
    untraced: str = ""  # why there are no shares

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What has to be equal for two timings to be compared."""
        return self.place, self.machine, self.payload, self.method

    @property
    def where(self) -> str:
        return of_method(self.method, self.payload)

    def __str__(self) -> str:
        """In one line."""
        load, first, usual, p95 = map(format_seconds, (self.load, self.first, self.median, self.p95))
        of_calls = f"{usual} (median of {self.calls}), p95 {p95}, first {first}, load {load}"
        memory = f", peak memory {format_size(self.peak_memory)}" if self.peak_memory else ""
        delegated = sum(share.share for share in self.shares if share.delegate)
        within = f", {delegated:.0%} of a call in delegates" if self.shares else ""
        return f"{self.where} on {self.place}: {of_calls}{memory}{within}"

    @classmethod
    def facts(cls, found: Sequence[Self], file: Delivered) -> Iterator[Fact]:  # noqa: ARG003 - the base's
        """The latency of the first method of the first payload that was timed, and a line for each."""
        for timing in found[:1]:
            yield Fact("times", "latency", timing.median, "s", column=4)
        for timing in found:
            name = f"latency of {timing.where} on {timing.place} ({timing.machine})"
            yield Fact("times", name, timing.median, "s", note=str(timing), listed=True)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that is at least as large as that share of the values; there must be some."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
