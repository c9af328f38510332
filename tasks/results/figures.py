"""Figures of a file: how far the runtime's outputs are from eager's, and the bounds on that."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import Field

from ...artifacts.records import Record
from ...configs.places import HOST
from ...configs.verification import VerifyBounds
from .finding import Fact, Finding, of_method
from .tables import format_db, format_error, format_sqnr

if TYPE_CHECKING:
    from .delivered import Delivered

_MOST_DB = {"bfloat16": 22.0, "int8": 30.0, "float16": 34.0}
"""The highest SQNR bound that applies to outputs of a dtype, coarsest first.

One rounding to float16 (11 bits) leaves some 70 dB, and to bfloat16 (8 bits) 18 dB less; kernels round at every
operator, so networks reach little more than half of that. XNNPACK adds up in float16, too, where the processor can
(AVX512-FP16, Armv8.2): a language model of two layers reached 38.7 dB there. Of values that are quantized to int8 on
the way, by scales that are computed there, a few are rounded to the neighbour of eager's: a small language model
reaches some 60 dB.
"""

REFERENCE = "reference kernels"
"""The name of kernels in Python, where this machine has no others of a target's operators, next to names of places."""

WHOLE_FILE = "the file"  # in place of a payload's name, which has no spaces
_RUNS = 4  # of entries that a text names
_ABOUT = 100  # characters of what a place says of itself
# Kernels round elsewhere than eager: noise may be twice that of eager's, and four times that of sums in float32, whose
# order depends on the kernel.
_MOST_LOST_DB = {"": 6.0, "bfloat16": 3.0, "float16": 3.0}


@dataclass(frozen=True, slots=True)
class Case:
    """One output of one method on one input, against eager."""

    method: str
    label: str  # which input: ``example 0``, ``sample 2`` of calibration, ``drawn 1``
    output: int  # position among the flat outputs
    max_abs_error: float  # largest absolute difference
    max_relative_error: float  # `max_abs_error` divided by the largest magnitude of eager's output
    sqnr_db: float | None  # 10 log10(sum of squares of eager / of the difference); None if the outputs are equal
    payload: str = ""  # the payload of a fat file that ran; empty for a plain file
    classified: int = 0  # rows of an output of shape (rows, classes >= 2) of a floating type; 0 for other outputs
    agreeing: int = 0  # how many of those rows have their largest element in the same place as eager's
    rounded_to: str = ""  # coarsest dtype of the output or on the way: ``bfloat16``, ``int8``, ``float16``; else empty
    counted: int = 0  # elements of integers or booleans, without SQNR, unless they have 8 bits: these may be pixels
    equal: int = 0  # how many of those equal eager's
    # of its noise above that of eager's, both against what a wider dtype gives, if that is known
    lost_db: float | None = None
    # of eager against what a wider dtype gives
    eager_db: Annotated[float | None, Field(exclude=True)] = field(default=None, compare=False)
    # sums over its slices, `tasks.verify.compare.Slices`, for the figures of parts; not stored
    slices: Annotated[tuple[Any, ...], Field(exclude=True)] = field(default=(), compare=False, repr=False)

    @property
    def where(self) -> str:
        return f"method {self.method!r}, {self.label}, output {self.output}"

    @property
    def own_error(self) -> str:
        """How far eager and the file are from what a wider dtype gives; empty if that is not known."""
        if self.eager_db is None or self.lost_db is None:
            return ""
        wide = "float32" if self.rounded_to else "float64"
        return f"eager is {self.eager_db:.1f} dB from {wide}, the file {self.eager_db - self.lost_db:.1f} dB"

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

    def facts(self, where: str = "", *, columns: bool = False) -> Iterator[Fact]:
        """The figures of a file, a payload or a method for tables and comparisons; `where` names the last two."""
        error, noise = self.max_abs_error, "exact" if self.sqnr_db is None else self.sqnr_db
        words = format_error(error)
        yield Fact("numerics", f"{where}max abs error", error, words=words, column=7 * columns, lower_is_better=True)
        yield Fact("numerics", f"{where}SQNR", noise, "dB", words=format_sqnr(self), column=2 * columns)


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
            f"{of_method(self.method, self.payload)}, output {self.output}, dimension {self.dimension}, {named} of "
            f"{self.of}: {self.sqnr_db:.1f} dB{constant}; eager's are up to {self.largest:.3g}, those of the whole "
            f"output up to {self.largest_of_output:.3g}"
        )


@dataclass(frozen=True, slots=True)
class Figures(Finding):
    """The cases of a file and the worst of them: overall, by method, and by payload of a fat file."""

    role: ClassVar = "figures"

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
    by: str = HOST  # or `REFERENCE`, which ran its edge programs in its place

    @property
    def of_file(self) -> bool:
        """Whether the file itself was run; else they are those of its edge programs."""
        return WHOLE_FILE not in self.not_run

    @property
    def on_samples(self) -> bool:
        """Whether quantizers observed calibration samples."""
        return any("sample" in observed for observed in self.calibration.values())

    @property
    def calibrated(self) -> str:
        """What quantizers observed, and what the file is verified on where bounds do not apply to random inputs."""
        observed = ", ".join(dict.fromkeys(self.calibration.values()))
        if not self.drawn:
            return f"calibrated on {observed}" if observed else ""
        advice = "" if self.on_samples else "Give the model `calibration` samples; "
        return (
            f"verified on its examples{' and calibration samples' if self.on_samples else ''}: quantizers observed "
            f"{observed}, and random inputs reach {format_sqnr(self.drawn)}. {advice}`verify: {{drawn_inputs: 2}}` in "
            "the recipe holds random inputs to its bounds, too"
        )

    def brief(self) -> Self:
        return replace(self, cases=())

    def to_json(self) -> dict[str, Any]:
        """Names what ran the file only where that is not this machine's runtime."""
        fields = Finding.to_json(self)
        return {name: value for name, value in fields.items() if (name, value) != ("by", HOST)}

    @classmethod
    def facts(cls, findings: Sequence[Self], file: Delivered) -> Iterator[Fact]:
        """The worst of the file, its methods, payloads and parts; where it was run; what quantizers observed."""
        for figures in findings:
            if file.measured:
                yield from file.measured.facts(columns=True)
                yield Fact("numerics", "cases", words=str(file.measured.cases), column=8)
            else:
                yield Fact("numerics", "SQNR", words="not run", column=2)
                yield from figures.overall.facts("edge programs: ")
            for name, worst in figures.methods.items() if figures.of_file and len(figures.methods) > 1 else ():
                yield from worst.facts(f"method {name}: ")
            for name, worst in figures.payloads.items():
                yield from worst.facts(f"{name}: ")
            yield from (Fact("numerics", note=note, telling=True) for note in figures.notes)
            for part in figures.parts:
                prefix = f"{part.payload}: " if part.payload else ""
                name = f"{prefix}{part.method} output {part.output}: worst part"
                yield Fact(
                    "numerics", name, part.sqnr_db, "dB", note=str(part), telling=part.lost, listed=not part.lost
                )
            if calibrated := figures.calibrated:
                yield Fact("numerics", note=calibrated, telling=bool(figures.drawn) and not figures.on_samples)
            for payload in file.payloads:
                yield from _places(figures, payload, file)


@dataclass(frozen=True, slots=True)
class Proof(Finding):
    """The result of a payload on a place, a runtime besides that of the process that made it."""

    role: ClassVar = "proofs"
    of: ClassVar = "place"

    place: str  # as the zoo calls it
    payload: str  # empty for a plain file
    about: str  # device and driver, as the place says
    figures: Figures | None  # without its cases; None if it was not run
    not_run: str = ""  # why
    no_device: bool = False  # whether that is since a backend of the place finds no device or driver

    @classmethod
    def facts(cls, findings: Sequence[Self], file: Delivered) -> Iterator[Fact]:
        """The figures on each place, and why it did not run other payloads."""
        for place in dict.fromkeys(proof.place for proof in findings):
            proofs = [proof for proof in findings if proof.place == place]
            about = f" ({one_line(proofs[0].about)})" if proofs[0].about else ""
            ran = [f"{proof.named(file)}{format_sqnr(proof.figures.overall)}" for proof in proofs if proof.figures]
            if ran:
                yield Fact("places", note=f"on {place}{about}: {', '.join(ran)}", listed=True)
            for reason in dict.fromkeys(proof.not_run for proof in proofs if proof.not_run):
                payloads = [proof.payload or WHOLE_FILE for proof in proofs if proof.not_run == reason]
                yield Fact("places", note=f"not run on {place}: {', '.join(payloads)}: it {reason}", listed=True)

    def named(self, file: Delivered) -> str:
        """The payload before its figures; of a fat file as a whole, the one that was chosen there."""
        chosen = ", ".join(self.figures.payloads) if self.figures else ""
        if self.payload or not chosen:
            return f"{self.payload} " if self.payload else "" if file.payloads == ("",) else "the file "
        return f"the file, which chooses {chosen}, "


def one_line(about: str) -> str:
    """What a place says of itself, shortened."""
    line = ", ".join(about.split("\n"))
    return line if len(line) <= _ABOUT else f"{line[: _ABOUT - 1]}…"


def _places(figures: Figures, payload: str, file: Delivered) -> Iterator[Fact]:
    """Names the places where a payload was run, and why this machine has not run it."""
    places, where, what = file.proven_on(payload), payload and f"{payload}: ", payload or WHOLE_FILE
    proven = ", ".join(places) or "not run"
    note = f"{where}proven on: {proven}"
    by_others = not places or figures.by != HOST
    yield Fact("numerics", f"{where}proven on", proven, note=note, telling=by_others, listed=True)
    reason = file.why_not_run(payload).get(HOST, "")
    if reason and places:
        here = reason.partition("; ")[0]
        yield Fact("places", note=f"{what} was run on {proven}; not on this machine, since it {here}")
    elif reason:
        instead = "" if payload else f": {format_sqnr(figures.overall)}"
        yield Fact("places", note=f"{what} was not run: it {reason}{instead}", telling=not payload)


@dataclass(frozen=True, slots=True)
class Searched(Finding):
    """The result of a search for inputs on which a file is wrong."""

    role: ClassVar = "searched"

    seconds: float  # that it was allowed
    cases: int  # inputs on which the file was compared with its program
    refused: int  # inputs that the program refuses, or for which it returns NaN or infinity
    differing: int  # inputs for which a second call returned other bits
    worst: Case | None  # against the program, not against eager; None if all outputs were equal
    problem: str = ""  # how the worst is out of bounds; empty if it is not
    unsteady: bool = False  # whether the problem comes and goes

    @classmethod
    def facts(cls, findings: Sequence[Self], file: Delivered) -> Iterator[Fact]:  # noqa: ARG003 - the base's
        """The number of inputs, the seconds, and the worst input; it stands out where outputs differ."""
        for searched in findings:
            worst = searched.worst
            figure = format_db(worst.sqnr_db if worst else None)
            if worst and worst.counted:
                figure = f"{worst.equal} of {worst.counted} equal"
            text = f"searched {searched.cases} inputs in {searched.seconds:g} s, worst {figure}"
            text += f" at {worst.label.removeprefix('searched ')}" if worst else ""
            if searched.differing:
                text += f"; {searched.differing} returned other bits when they were repeated"
            if searched.cases:
                yield Fact("numerics", note=text, telling=bool(searched.differing))


def summarize(
    cases: Sequence[Case],
    not_run: Mapping[str, str] | None = None,
    *,
    on_examples: Collection[str] = (),
    parts: Iterable[Part] = (),
) -> Figures:
    """Figures of at least one case; random inputs of the methods `on_examples` count apart from the others."""
    bounded = judged(cases, on_examples)
    drawn = [case for case in cases if case not in bounded]
    methods = dict.fromkeys(case.method for case in bounded)
    payloads = dict.fromkeys(case.payload for case in bounded if case.payload)
    return Figures(
        worst_of(bounded),
        {name: worst_of([case for case in bounded if case.method == name]) for name in methods},
        {name: worst_of([case for case in bounded if case.payload == name]) for name in payloads},
        dict(not_run or {}),
        tuple(cases),
        worst_of(drawn) if drawn else None,
        parts=tuple(parts),
    )


def judged(cases: Iterable[Case], on_examples: Collection[str]) -> list[Case]:
    """Cases that bounds apply to: all but random inputs of the methods `on_examples`."""
    return [case for case in cases if case.method not in on_examples or not case.is_drawn]


def violations(figures: Case | Worst, bounds: VerifyBounds) -> Iterator[str]:
    """Yields a message for each figure out of bounds, except for agreement; low-precision dtypes get relaxed bounds."""
    if bounds.max_abs_error is not None and figures.max_abs_error > bounds.max_abs_error:
        yield f"max abs error {figures.max_abs_error:.3g} > {bounds.max_abs_error:.3g}"
    if bounds.max_relative_error is not None and figures.max_relative_error > bounds.max_relative_error:
        yield f"max relative error {figures.max_relative_error:.3g} > {bounds.max_relative_error:.3g}"
    if bounds.min_sqnr_db is not None and figures.sqnr_db is not None:
        least = least_sqnr(bounds.min_sqnr_db, figures.rounded_to)
        if figures.sqnr_db < least and not (isinstance(figures, Case) and is_as_good(figures, bounds)):
            errors = f" ({figures.own_error})" if isinstance(figures, Case) and figures.own_error else ""
            yield f"SQNR {figures.sqnr_db:.1f} dB < {least:.1f} dB{errors}"


def least_sqnr(bound: float, rounded_to: str) -> float:
    """The SQNR bound in dB for outputs of a dtype, see `Case.rounded_to`."""
    return min(bound, _MOST_DB.get(rounded_to, bound))


def is_as_good(case: Case, bounds: VerifyBounds) -> bool:
    """Whether an output is right whatever its SQNR: it loses no more than eager does, or enough are equal."""
    if case.lost_db is not None and case.lost_db <= _MOST_LOST_DB[case.rounded_to]:
        return True
    return bool(case.counted) and case.equal / case.counted >= (bounds.least_agreement or 0.0)


def lost_parts(parts: Iterable[Part], bounds: VerifyBounds) -> Iterator[str]:
    """Yields a message for each part that is lost and has a range of its own, where the bounds apply to parts."""
    if bounds.min_sqnr_db is not None and bounds.min_part_sqnr_db is not None:
        yield from (str(part) for part in parts if part.own_range)


def disagreements(cases: Sequence[Case], bounds: VerifyBounds) -> Iterator[str]:
    """Yields a message for each output of integers or booleans of which too few equal eager's, over all its cases.

    One case would not do: it may have a single index, which two almost equal values decide.
    """
    outputs: dict[tuple[str, int], list[Case]] = {}
    for case in cases:
        if case.counted and case.sqnr_db is None:
            outputs.setdefault((case.method, case.output), []).append(case)
    least = bounds.least_agreement
    for (method, output), of_output in outputs.items():
        share = sum(case.equal for case in of_output) / sum(case.counted for case in of_output)
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
