"""Figures of a file: how far the runtime's outputs are from eager's, scores with their bounds, memory and time."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from ...artifacts.records import Record
from ...configs.verification import VerifyBounds

if TYPE_CHECKING:
    from ...configs.model import DeviceLimits

_MOST_DB = {"bfloat16": 22.0, "int8": 30.0, "float16": 34.0}
"""The highest SQNR bound that applies to outputs of a dtype, coarsest first.

One rounding to float16 (11 bits) leaves some 70 dB, and to bfloat16 (8 bits) 18 dB less; kernels round at every
operator, so networks reach little more than half of that. XNNPACK adds up in float16, too, where the processor can
(AVX512-FP16, Armv8.2): a language model of two layers reached 38.7 dB there. Of values that are quantized to int8 on
the way, by scales that are computed there, a few are rounded to the neighbour of eager's: a small language model
reaches some 60 dB.
"""


WHOLE_FILE = "the file"
"""In place of a payload's name, which has no spaces."""


@dataclass(frozen=True, slots=True)
class Case:
    """One output of one method on one input, against eager."""

    method: str
    label: str  # which input: ``example 0``, ``sample 2`` of calibration, ``drawn 1``
    output: int  # position among the flat outputs
    max_abs_error: float  # largest absolute difference
    max_relative_error: float  # `max_abs_error` divided by the largest magnitude of eager's output
    # signal to quantization noise ratio, 10 log10(sum of squares of eager / sum of squares of the difference), in dB;
    # None if the outputs are equal
    sqnr_db: float | None
    payload: str = ""  # the payload of a fat file that ran; empty for a plain file
    classified: int = 0  # rows of an output of shape (rows, classes >= 2) of a floating type; 0 for other outputs
    agreeing: int = 0  # how many of those rows have their largest element in the same place as eager's
    # ``float16`` or ``bfloat16`` if that is the dtype of the output, or of a value that the method computes on the way;
    # ``int8`` if it quantizes some on the way; else empty
    rounded_to: str = ""
    # elements of an output of integers or booleans; 0 for other outputs. Its SQNR is None, except for integers of 8
    # bits, which may be amounts, such as pixels.
    counted: int = 0
    equal: int = 0  # how many of those equal eager's
    # by how much its noise is above that of eager's own output, both against eager in float32, in dB; None if that is
    # not known or there is none
    lost_db: float | None = None
    # sums over its slices, `tasks.verify.parts.Slices`, for the figures of parts; not stored
    slices: Annotated[tuple[Any, ...], Field(exclude=True)] = field(default=(), compare=False, repr=False)

    @property
    def where(self) -> str:
        return f"method {self.method!r}, {self.label}, output {self.output}"

    @property
    def is_drawn(self) -> bool:
        """Whether the input is a random one."""
        return self.label.startswith("drawn")


@dataclass(frozen=True, slots=True)
class Worst:
    """The worst figures over a set of cases, each figure on its own."""

    cases: int
    max_abs_error: float
    max_relative_error: float
    sqnr_db: float | None  # the smallest; None if all outputs are equal
    # the share of rows of classifiers' outputs that agree with eager's; None if there are none
    top1: float | None = None
    rounded_to: str = ""  # the coarsest of the cases' dtypes, see `Case`
    agreement: float | None = None  # the share of integers and booleans that equal eager's; None if there are none


@dataclass(frozen=True, slots=True)
class Part(Record):
    """The worst entries of an output along one of its dimensions, over all its cases."""

    method: str
    output: int
    payload: str = ""  # of a fat file; empty for a plain file
    dimension: int = 0
    of: int = 0  # entries that the dimension has
    entries: tuple[tuple[int, int], ...] = ()  # the first and the last of each run of them
    sqnr_db: float = 0.0
    largest: float = 0.0  # magnitude in eager
    largest_of_output: float = 0.0
    constant: float | None = None  # what all of it is in the file, where it varies in eager
    lost: bool = False  # whether nothing is left of how eager's values vary
    own_range: bool = False  # whether it is lost, and has much smaller values than all of the rest

    def __str__(self) -> str:
        runs = [str(first) if first == last else f"{first} to {last}" for first, last in self.entries]
        named = ", ".join(runs[:_RUNS]) + (", ..." if len(runs) > _RUNS else "")
        constant = "" if self.constant is None else f", all {f'{self.constant:.3g}' if self.constant else 'zeros'}"
        return (
            f"{_named(self.method, self.payload)}, output {self.output}, dimension {self.dimension}, {named} of "
            f"{self.of}: {self.sqnr_db:.1f} dB{constant}; eager's are up to {self.largest:.3g}, those of the whole "
            f"output up to {self.largest_of_output:.3g}"
        )


_RUNS = 4  # of entries that a text names


@dataclass(frozen=True, slots=True)
class Figures(Record):
    """All cases of a file and the worst of them: overall, by method, and by payload of a fat file."""

    overall: Worst
    methods: dict[str, Worst]
    payloads: dict[str, Worst]
    # name of a payload that this machine's runtime has no backend for, or `WHOLE_FILE` of a plain file -> reason
    not_run: dict[str, str]
    cases: tuple[Case, ...] = ()
    # random inputs that no bound applied to, which the figures above leave out; None if there are none
    drawn: Worst | None = None
    calibration: dict[str, str] = field(default_factory=dict)  # method -> what quantizers observed, as ``8 samples``
    notes: tuple[str, ...] = ()  # what else is to be known of the file, such as sizes that it was to take and does not
    parts: tuple[Part, ...] = ()  # the worst of each output, where it has less SQNR than outputs need, or is lost

    @property
    def of_file(self) -> bool:
        """Whether the file itself was run; else they are those of its edge programs."""
        return WHOLE_FILE not in self.not_run

    @property
    def on_samples(self) -> bool:
        """Whether quantizers observed calibration samples."""
        return any("sample" in observed for observed in self.calibration.values())

    @property
    def verified_on(self) -> str:
        """What bounds apply to where random inputs count apart, in words."""
        return f"its examples{' and calibration samples' if self.on_samples else ''}"


@dataclass(frozen=True, slots=True)
class Proof(Record):
    """What came of a payload on a place, a runtime besides that of the process that made it."""

    place: str  # as the zoo calls it
    payload: str  # empty for a plain file
    about: str  # device and driver, as the place says
    figures: Figures | None  # without its cases; None if it was not run
    not_run: str = ""  # why
    no_device: bool = False  # whether that is since a backend of the place finds no device or driver


@dataclass(frozen=True, slots=True)
class Searched(Record):
    """What a search over the inputs of a file has found."""

    seconds: float  # that it was given
    cases: int  # inputs on which the file was compared with its program
    refused: int  # inputs that the program refuses, or makes NaN or infinity of
    differing: int  # inputs of which a second call returned other bits
    worst: Case | None  # against the program, not against eager; None if all outputs were equal
    problem: str = ""  # how the worst is out of bounds; empty if it is not
    unsteady: bool = False  # whether it is not always so


@dataclass(frozen=True, slots=True)
class MemoryUse(Record):
    """Bytes that a method takes: planned memory, which the file says, and the rest where a place has measured it."""

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
        return _named(self.method, self.payload)


def _named(method: str, payload: str) -> str:
    """A method, and the payload of a fat file that it is in."""
    return f"method {method!r}" + (f" of payload {payload!r}" if payload else "")


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


@dataclass(frozen=True, slots=True)
class TimeShare:
    """A delegate, or an operator outside of delegates, and its share of the time of a call, as an ETDump has it."""

    name: str  # backend or operator, such as ``aten::cat.out``
    share: float  # of the whole call; the rest is the runtime's
    calls: int  # in one call of the method
    delegate: bool = False
    instructions: tuple[int, ...] = ()  # where they are in the method


@dataclass(frozen=True, slots=True)
class Timing(Record):
    """How long a method of a payload takes on a place, in seconds."""

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
        return _named(self.method, self.payload)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that is at least as large as that share of the values; there must be some."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def summarize(
    cases: Sequence[Case],
    not_run: Mapping[str, str] | None = None,
    *,
    on_examples: Collection[str] = (),
    parts: Iterable[Part] = (),
) -> Figures:
    """Figures of at least one case; random inputs of the methods `on_examples` count apart from the others."""
    every, cases = tuple(cases), judged(cases, on_examples)
    apart = [case for case in every if case not in cases]
    methods = dict.fromkeys(case.method for case in cases)
    payloads = dict.fromkeys(case.payload for case in cases if case.payload)
    return Figures(
        worst_of(cases),
        {name: worst_of([case for case in cases if case.method == name]) for name in methods},
        {name: worst_of([case for case in cases if case.payload == name]) for name in payloads},
        dict(not_run or {}),
        every,
        worst_of(apart) if apart else None,
        parts=tuple(parts),
    )


def judged(cases: Iterable[Case], on_examples: Collection[str]) -> list[Case]:
    """The cases that bounds apply to: all but random inputs of the methods `on_examples`."""
    return [case for case in cases if case.method not in on_examples or not case.is_drawn]


def violations(figures: Case | Worst, bounds: VerifyBounds) -> Iterator[str]:
    """Yields a message for each figure out of bounds, but for agreement.

    Low-precision dtypes get relaxed bounds, and outputs that lose no more than eager's of 16 bits pass any SQNR.
    """
    if bounds.max_abs_error is not None and figures.max_abs_error > bounds.max_abs_error:
        yield f"max abs error {figures.max_abs_error:.3g} > {bounds.max_abs_error:.3g}"
    if bounds.max_relative_error is not None and figures.max_relative_error > bounds.max_relative_error:
        yield f"max relative error {figures.max_relative_error:.3g} > {bounds.max_relative_error:.3g}"
    if bounds.min_sqnr_db is not None and figures.sqnr_db is not None:
        least = least_sqnr(bounds.min_sqnr_db, figures.rounded_to)
        if figures.sqnr_db < least and not (isinstance(figures, Case) and is_as_good(figures, bounds)):
            yield f"SQNR {figures.sqnr_db:.1f} dB < {least:.1f} dB"


def least_sqnr(bound: float, rounded_to: str) -> float:
    """The SQNR bound in dB for outputs of a dtype, see `Case.rounded_to`."""
    return min(bound, _MOST_DB.get(rounded_to, bound))


_MOST_LOST_DB = 3.0
"""Kernels round elsewhere than eager: noise may be twice that of eager's."""


def is_as_good(case: Case, bounds: VerifyBounds) -> bool:
    """Whether an output is right whatever its SQNR."""
    if case.lost_db is not None and case.lost_db <= _MOST_LOST_DB:
        return True
    return bool(case.counted) and case.equal / case.counted >= (bounds.least_agreement or 0.0)


def lost_parts(parts: Iterable[Part], bounds: VerifyBounds) -> Iterator[str]:
    """Yields a message for each part that is lost and has a range of its own, where the bounds apply to parts."""
    if bounds.min_sqnr_db is not None and bounds.min_part_sqnr_db is not None:
        yield from (str(part) for part in parts if part.own_range)


def disagreements(cases: Sequence[Case], bounds: VerifyBounds) -> Iterator[str]:
    """Yields a message for each output of integers or booleans of which too few equal eager's, over all its cases.

    One case may have a single index, which two almost equal values decide.
    """
    outputs: dict[tuple[str, int], list[Case]] = {}
    for case in cases:
        if case.counted and case.sqnr_db is None:
            outputs.setdefault((case.method, case.output), []).append(case)
    least = bounds.least_agreement
    for (method, output), found in outputs.items():
        share = sum(case.equal for case in found) / sum(case.counted for case in found)
        if least is not None and share < least:
            yield f"method {method!r}, output {output}: {100 * share:.1f} % equal eager's < {100 * least:g} %"


def worst_of(cases: Sequence[Case]) -> Worst:
    """The worst of at least one case."""
    noisy = [case.sqnr_db for case in cases if case.sqnr_db is not None]
    classified, counted = sum(case.classified for case in cases), sum(case.counted for case in cases)
    return Worst(
        cases=len(cases),
        max_abs_error=max(case.max_abs_error for case in cases),
        max_relative_error=max(case.max_relative_error for case in cases),
        sqnr_db=min(noisy) if noisy else None,
        top1=sum(case.agreeing for case in cases) / classified if classified else None,
        agreement=sum(case.equal for case in cases) / counted if counted else None,
        rounded_to=next((name for name in _MOST_DB if any(case.rounded_to == name for case in cases)), ""),
    )


@dataclass(frozen=True, slots=True)
class Score:
    """An evaluator's result; higher is better. The payload is empty for a plain file and for eager."""

    payload: str
    score: float


@dataclass(frozen=True, slots=True)
class Scores(Record):
    """All scores of a file, or of eager."""

    # one per payload that this machine can run, by preference; one for a plain file and for eager
    scores: tuple[Score, ...]
    not_run: Mapping[str, str]  # name of a payload that this machine's runtime has no backend for -> reason


@dataclass(frozen=True, slots=True)
class AccuracyReport(Record):
    """Scores with their bounds."""

    evaluator: str  # ``package.module:callable``
    floor: float | None
    max_drop: float | None  # how far a score may be below eager's; None if they are not compared
    eager: float | None  # the eager model's score, if they are compared
    file: Scores

    @property
    def worst(self) -> float:
        return min(score.score for score in self.file.scores)

    def misses(self) -> list[str]:
        """A line for each bound that a score misses: the payload, its score, the bound, and the difference."""
        lines = []
        for result in self.file.scores:
            score = result.score
            name = f"payload {result.payload!r}" if result.payload else "the file"
            if self.floor is not None and score < self.floor:
                lines.append(f"{name} scores {score:.6g}, {self.floor - score:.3g} below the floor of {self.floor:g}")
            drop = 0.0 if self.eager is None else self.eager - score
            # 0.985 - 0.98 is a bit more than 0.005 in binary.
            if self.max_drop is not None and drop > self.max_drop and not math.isclose(drop, self.max_drop):
                lines.append(
                    f"{name} scores {score:.6g}, {drop:.3g} below eager's {self.eager:.6g}; "
                    f"that is {drop - self.max_drop:.3g} more than the {self.max_drop:g} allowed"
                )
        return lines
