"""Costs of methods: memory, with limits on it, and time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from .finding import Fact, Finding, of_method
from .tables import format_seconds, format_size

if TYPE_CHECKING:
    from ...configs.model import DeviceLimits
    from .delivered import Delivered


@dataclass(frozen=True, slots=True)
class MemoryUse(Finding):
    """Bytes that a method takes: planned memory, which the file says, and the rest where a place has measured it."""

    role: ClassVar = "memory"
    of: ClassVar = "place"

    payload: str  # empty for a plain file
    method: str
    planned: tuple[int, ...]  # by memory id, from 1 on
    place: str = ""  # empty where nothing was measured
    inputs: str = ""  # ``smallest``, ``example`` or ``largest`` of those that were tried
    shapes: str = ""  # such as ``1x3x32x32, 4``
    asked: int = 0  # bytes that the method allocator was asked for, in `calls` calls
    calls: int = 0
    buffer: int | None = None  # the smallest buffer that suffices for it: with what alignment leaves out
    temporary: int = 0  # the same of the temporary allocator, which is reset after each operator
    # what backends and kernels take from the heap at most while the method is loaded and called, and once it is loaded,
    # with what a backend makes once for all methods; None if that is not known
    heap: int | None = None
    heap_loaded: int | None = None

    @property
    def figures(self) -> dict[str, int | None]:
        """Bytes by the names of limits; None for those that are not known."""
        planned = sum(self.planned)
        known = self.buffer is not None and self.heap is not None
        total = planned + (self.buffer or 0) + self.temporary + (self.heap or 0)
        return {"planned": planned, "method": self.buffer, "total": total if known else None}

    @property
    def where(self) -> str:
        return of_method(self.method, self.payload)

    def __str__(self) -> str:
        """One line, in bytes, since boards have few."""
        planned = f"{self.where} takes bytes: planned {' + '.join(f'{size:,}' for size in self.planned) or '0'}"
        if self.buffer is None:
            return f"{planned}; no place has measured the rest"
        method = f"method {self.asked:,} in {self.calls} calls (a buffer of {self.buffer:,})"
        known = self.heap is not None
        heap = f", heap {self.heap:,} at most and {self.heap_loaded or 0:,} after loading" if known else ""
        shapes = f" ({self.shapes})" if self.shapes else ""
        inputs = f"on {self.place}, {self.inputs} inputs{shapes}"
        return f"{planned}, {method}, temporary {self.temporary:,}{heap}; {inputs}"

    @classmethod
    def facts(cls, findings: Sequence[Self], file: Delivered) -> Iterator[Fact]:  # noqa: ARG003 - the base's
        """The most that a method takes on a place; a line for each, and its buffer."""
        totals = [total for use in findings if (total := use.figures["total"]) is not None]
        if totals:
            yield Fact("memory", "memory", max(totals), "B", column=5, lower_is_better=True)
        for use in findings:
            compared = use.buffer if use.inputs == "example" else None
            name = f"{use.payload}{use.payload and ': '}{use.method} on {use.place}"
            yield Fact("memory", name, compared, "B", note=str(use) if use.place else "", listed=True)


def exceeded(uses: Sequence[MemoryUse], limits: DeviceLimits) -> Iterator[str]:
    """Yields a message for each method and limit that it exceeds, or of which no payload was measured."""
    for name, limit in limits.written.items():
        unknown = dict.fromkeys(use.method for use in uses)
        largest: dict[str, tuple[int, MemoryUse]] = {}
        for use in uses:
            size = use.figures[name]
            if size is not None:
                unknown.pop(use.method, None)
                largest[use.where] = max(largest.get(use.where, (0, use)), (size, use), key=lambda entry: entry[0])
        for where, (size, use) in largest.items():
            if size > limit:
                on = f" on {use.place}, {use.inputs} inputs ({use.shapes})" if name != "planned" else ""
                yield f"{where} takes {size:,} bytes{on}, and `limits.device.{name}` allows {limit:,}"
        for method in unknown:
            yield f"no place has measured method {method!r}, which `limits.device.{name}` holds to {limit:,} bytes"


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
        """One line."""
        load, first, usual, p95 = map(format_seconds, (self.load, self.first, self.median, self.p95))
        calls = f"{usual} (median of {self.calls}), p95 {p95}, first {first}, load {load}"
        memory = f", peak memory {format_size(self.peak_memory)}" if self.peak_memory else ""
        delegated = sum(share.share for share in self.shares if share.delegate)
        within = f", {delegated:.0%} of a call in delegates" if self.shares else ""
        return f"{self.where} on {self.place}: {calls}{memory}{within}"

    @classmethod
    def facts(cls, findings: Sequence[Self], file: Delivered) -> Iterator[Fact]:  # noqa: ARG003 - the base's
        """The latency of the first method of the first payload that was timed, and a line for each."""
        for timing in findings[:1]:
            yield Fact("times", "latency", timing.median, "s", column=4, lower_is_better=True)
        for timing in findings:
            name = f"latency of {timing.where} on {timing.place} ({timing.machine})"
            yield Fact("times", name, timing.median, "s", note=str(timing), listed=True)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that is at least as large as that share of the values; there must be some."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
