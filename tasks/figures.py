"""Verification figures: how far the runtime's outputs are from eager's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..configs.verify_bounds import VerifyBounds

_MOST_DB = {"bfloat16": 22.0, "float16": 40.0}
"""The most SQNR that can be asked of outputs of a type, coarsest first.

One rounding to float16 (11 bits) leaves some 70 dB, and to bfloat16 (8 bits) 18 dB less; kernels round at every
operator, so that networks come to little more than half of that.
"""


@dataclass(frozen=True, slots=True)
class Case:
    """One output of one method on one input, against eager.

    Attributes:
        method: name of the method.
        label: which input: ``example 0``, ``drawn 1``.
        output: position among the flat outputs.
        max_abs_error: largest absolute difference.
        max_relative_error: that, divided by the largest magnitude of eager's output.
        sqnr_db: signal to quantization noise ratio, 10 log10(sum of squares of eager / sum of squares of the
            difference), in dB; None where the outputs are equal.
        payload: which of a fat file's payloads ran; empty for a plain file.
        classified: rows of an output of shape (rows, classes >= 2) of a floating type; 0 for other outputs.
        agreeing: how many of them have their largest element where eager's row has it.
        rounded_to: ``float16`` or ``bfloat16`` where the output is of that type; empty for others.
    """

    method: str
    label: str
    output: int
    max_abs_error: float
    max_relative_error: float
    sqnr_db: float | None
    payload: str = ""
    classified: int = 0
    agreeing: int = 0
    rounded_to: str = ""

    @property
    def where(self) -> str:
        """Which output of what, for messages."""
        return f"method {self.method!r}, {self.label}, output {self.output}"


@dataclass(frozen=True, slots=True)
class Worst:
    """The worst figures over a set of cases, each figure by itself.

    Attributes:
        cases: how many.
        max_abs_error: the largest.
        max_relative_error: the largest.
        sqnr_db: the smallest; None where all outputs are equal.
        top1: the share of all rows of classifiers' outputs that agree with eager's; None where there are none.
        rounded_to: the coarsest type that any of the outputs is rounded to, see `Case`.
    """

    cases: int
    max_abs_error: float
    max_relative_error: float
    sqnr_db: float | None
    top1: float | None = None
    rounded_to: str = ""


@dataclass(frozen=True, slots=True)
class Figures:
    """All cases of a file and the worst of them: overall, by method, and by payload of a fat file.

    Attributes:
        overall: the worst.
        methods: by method.
        payloads: by payload; empty for a plain file.
        not_run: payloads that this machine's runtime has no backend for: why, by name.
        cases: all of them.
    """

    overall: Worst
    methods: dict[str, Worst]
    payloads: dict[str, Worst]
    not_run: dict[str, str]
    cases: tuple[Case, ...]

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Figures:
        """Inverse of `to_json`."""
        return cls(
            overall=Worst(**value["overall"]),
            methods={name: Worst(**worst) for name, worst in value["methods"].items()},
            payloads={name: Worst(**worst) for name, worst in value["payloads"].items()},
            not_run=dict(value["not_run"]),
            cases=tuple(Case(**case) for case in value["cases"]),
        )


def summarize(cases: Sequence[Case], not_run: Mapping[str, str] | None = None) -> Figures:
    """Figures of at least one case."""
    methods = dict.fromkeys(case.method for case in cases)
    payloads = dict.fromkeys(case.payload for case in cases if case.payload)
    return Figures(
        worst_of(cases),
        {name: worst_of([case for case in cases if case.method == name]) for name in methods},
        {name: worst_of([case for case in cases if case.payload == name]) for name in payloads},
        dict(not_run or {}),
        tuple(cases),
    )


def violations(figures: Case | Worst, bounds: VerifyBounds) -> Iterator[str]:
    """What about figures is outside of bounds, in words; of coarse types no more is asked than they can hold."""
    if bounds.max_abs_error is not None and figures.max_abs_error > bounds.max_abs_error:
        yield f"max abs error {figures.max_abs_error:.3g} > {bounds.max_abs_error:.3g}"
    if bounds.max_relative_error is not None and figures.max_relative_error > bounds.max_relative_error:
        yield f"max relative error {figures.max_relative_error:.3g} > {bounds.max_relative_error:.3g}"
    if bounds.min_sqnr_db is not None and figures.sqnr_db is not None:
        least = min(bounds.min_sqnr_db, _MOST_DB.get(figures.rounded_to, bounds.min_sqnr_db))
        if figures.sqnr_db < least:
            yield f"SQNR {figures.sqnr_db:.1f} dB < {least:.1f} dB"


def worst_of(cases: Sequence[Case]) -> Worst:
    """The worst of at least one case."""
    noisy = [case.sqnr_db for case in cases if case.sqnr_db is not None]
    classified = sum(case.classified for case in cases)
    return Worst(
        cases=len(cases),
        max_abs_error=max(case.max_abs_error for case in cases),
        max_relative_error=max(case.max_relative_error for case in cases),
        sqnr_db=min(noisy) if noisy else None,
        top1=sum(case.agreeing for case in cases) / classified if classified else None,
        rounded_to=next((name for name in _MOST_DB if any(case.rounded_to == name for case in cases)), ""),
    )
