"""The share of methods' work that delegates do, and why each other call is outside of delegates."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from .finding import Fact, Finding

if TYPE_CHECKING:
    from .delivered import Delivered

NOT_TAKEN = "the backend's partitioner does not take it"

_WAYS_OUT = (
    (r"keepdim=True", "write `x.mean((2, 3), keepdim=True).flatten(1)`, which computes the same"),
    (r"averaging 4D tensors", "average images over height and width, with keepdim=True"),
    (r"dtype|fp16|precision", "give it float32 values, or leave the layer out of quantization"),
    (r"[Dd]ynamic|[Ss]ymbolic|inferred|resize", "fix that size, or give the model `buckets` of sizes"),
    (r"ceil mode", "leave ceil_mode out, and pad the input instead"),
    (r"power", "write powers as products"),
    (r"negative padding", "slice the tensor instead"),
    (r"alpha != 1", "multiply by alpha first"),
    (r"concatenation of", "concatenate fewer tensors at once"),
    (r"last dim|trailing dimension", "move that dimension to the end"),
)
_IN_GENERAL = (
    "a CPU kernel runs it; where `pteforge bench` finds it slow, write it with operators that the backend takes"
)


@dataclass(frozen=True, slots=True)
class OutsideCalls:
    """The calls of an operator that are outside of delegates for one reason."""

    operator: str  # as in ``aten.mean.dim``
    why: str
    calls: int
    operations: int  # of all of them
    kept_on_cpu: bool = False  # whether a limit of the target leaves them there

    @property
    def way_out(self) -> str:
        """What makes a backend take them, as far as that is known."""
        return next((advice for reason, advice in _WAYS_OUT if re.search(reason, self.why)), _IN_GENERAL)


@dataclass(frozen=True, slots=True)
class MethodWork(Finding):
    """The arithmetic of a method, as its partitioned program has it. The payload is empty for a plain file.

    A multiplication and an addition are two operations; others than convolutions and products of matrices have one for
    each element of their largest tensor. Dimensions of dynamic size count with their example's.
    """

    role: ClassVar = "delegation"
    of: ClassVar = "method"

    payload: str
    method: str
    delegated: int  # operations inside of delegates
    outside: tuple[OutsideCalls, ...] = ()  # most operations first

    @property
    def operations(self) -> int:
        """Operations inside of delegates and outside of them."""
        return self.delegated + sum(calls.operations for calls in self.outside)

    def to_json(self) -> dict[str, Any]:
        return {**Finding.to_json(self), "share": delegated_share([self])}

    @classmethod
    def facts(cls, findings: Sequence[Self], file: Delivered) -> Iterator[Fact]:
        """The share of each payload; of each method, with reason and way out for each operator outside of delegates."""
        payloads = dict.fromkeys(work.payload for work in findings)
        shares = {name: delegated_share(work for work in findings if work.payload == name) for name in payloads}
        known = {name: share for name, share in shares.items() if share is not None}
        words = ", ".join(f"{name} {format_share(share)}".strip() for name, share in known.items())
        yield Fact("delegation", "delegated", _percentage(delegated_share(findings)), "%", words=words, column=6)
        kept: dict[tuple[str, str], Counter[str]] = {}
        outside = [(work.payload, calls) for work in findings for calls in work.outside]
        for payload, calls in [(payload, calls) for payload, calls in outside if calls.kept_on_cpu]:
            kept.setdefault((payload, calls.why), Counter())[calls.operator] += calls.calls
        for (payload, why), operators in kept.items():
            left = ", ".join(f"{number} {operator}" for operator, number in operators.items())
            yield Fact("delegation", note=f"{payload or ' '.join(file.targets)} leaves {left} to the CPU: {why}")
        for work in findings:
            share = delegated_share([work])
            part = "nothing" if share is None else format_share(share)
            where = " of payload ".join(filter(None, (f"method {work.method}", work.payload)))
            note = "\n  ".join([f"{where}: {part} of the operations are delegated", *work.reasons()])
            yield Fact("delegation", where, _percentage(share), "%", note=note, listed=True)

    def reasons(self) -> Iterator[str]:
        """A line for each operator outside of delegates: how much it is, why it is there, and the way out."""
        for calls in self.outside:
            share = format_share(calls.operations / max(self.operations, 1))
            times = f"{calls.calls} call{'s' * (calls.calls != 1)}, {share} of the operations"
            yield f"{calls.operator}, {times}: {calls.why}; {calls.way_out}"


def delegated_share(methods: Iterable[MethodWork]) -> float | None:
    """The share of operations of several methods that are inside of delegates; None where there are none at all."""
    methods = tuple(methods)
    total = sum(work.operations for work in methods)
    return sum(work.delegated for work in methods) / total if total else None


def _percentage(share: float | None) -> float | None:
    return None if share is None else round(100 * share, 1)


def format_share(share: float) -> str:
    """A percentage that is rounded to 0 or 100 only where it is just that."""
    text = f"{100 * share:.0f}"
    return "below 1 %" if text == "0" and share else "above 99 %" if text == "100" and share < 1 else f"{text} %"
