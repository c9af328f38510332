"""Bytes that methods take, and limits on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from .finding import Fact, Finding, of_method

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
    # what backends and kernels have from the heap at most, while the method is loaded and called, and once it is
    # loaded, with what a backend makes once for all methods, since each is measured in a process of its own; None if
    # that is not known
    heap: int | None = None
    heap_loaded: int | None = None

    @property
    def figures(self) -> dict[str, int | None]:
        """What limits apply to, by their names; None for what is not known."""
        planned = sum(self.planned)
        known = self.buffer is not None and self.heap is not None
        total = planned + (self.buffer or 0) + self.temporary + (self.heap or 0)
        return {"planned": planned, "method": self.buffer, "total": total if known else None}

    @property
    def where(self) -> str:
        return of_method(self.method, self.payload)

    def __str__(self) -> str:
        """In one line; in bytes, since boards have few."""
        said = [f"planned {' + '.join(f'{size:,}' for size in self.planned) or '0'}"]
        if self.buffer is None:
            return f"{self.where} takes bytes: {said[0]}; no place has measured the rest"
        said.append(f"method {self.asked:,} in {self.calls} calls (a buffer of {self.buffer:,})")
        said.append(f"temporary {self.temporary:,}")
        if self.heap is not None:
            said.append(f"heap {self.heap:,} at most and {self.heap_loaded or 0:,} after loading")
        shapes = f" ({self.shapes})" if self.shapes else ""
        return f"{self.where} takes bytes: {', '.join(said)}; on {self.place}, {self.inputs} inputs{shapes}"

    @classmethod
    def facts(cls, found: Sequence[Self], file: Delivered) -> Iterator[Fact]:  # noqa: ARG003 - the base's
        """The most that a method takes on a place; a line for each, and its buffer."""
        totals = [total for use in found if (total := use.figures["total"]) is not None]
        if totals:
            yield Fact("memory", "memory", max(totals), "B", column=5)
        for use in found:
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
                largest[use.where] = max(largest.get(use.where, (0, use)), (size, use), key=lambda found: found[0])
        for where, (size, use) in largest.items():
            if size > limit:
                on = f" on {use.place}, {use.inputs} inputs ({use.shapes})" if name != "planned" else ""
                yield f"{where} takes {size:,} bytes{on}, and `limits.device.{name}` allows {limit:,}"
        for method in unknown:
            yield f"no place has measured method {method!r}, which `limits.device.{name}` holds to {limit:,} bytes"
