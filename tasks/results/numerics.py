"""The ladder of numerics (each program of a recipe against eager), losses by node, and where quality is lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from ...artifacts.records import Record
from ...configs.verification import VerifyBounds
from .figures import Worst, violations
from .finding import Fact, Finding
from .tables import format_sqnr

if TYPE_CHECKING:
    from .delivered import Delivered

RungName = Literal["exported", "transformed", "quantized", "edge", "payload"]

CLEAN_DB = 90.0  # SQNR above this counts as this: fp32 stays above it, whatever the order of its sums
DROP_DB = 6.0  # a rung whose SQNR drops by more loses quality: the amplitude of its noise more than doubles


def rung_label(name: str, specializations: Sequence[str]) -> str:
    """The name of a rung with its specializations, for example ``edge.xnnpack+portable``."""
    return f"{name}.{'+'.join(specializations)}" if specializations else name


@dataclass(frozen=True, slots=True)
class Rung(Finding):
    """One method of a program that lowering makes, against eager on real inputs."""

    role: ClassVar = "numerics"
    of: ClassVar = "method"

    name: RungName
    specializations: tuple[str, ...]  # of a fat file, that it belongs to; empty for all
    method: str
    figures: Worst | None  # the worst over all outputs; None if it could not be run
    problem: str = ""  # why it could not be run; empty otherwise

    @property
    def label(self) -> str:
        return rung_label(self.name, self.specializations)

    @property
    def where(self) -> str:
        """The label, and the method if it is another one than `forward`."""
        return self.label if self.method == "forward" else f"{self.label} {self.method}"

    @classmethod
    def facts(cls, findings: Sequence[Self], file: Delivered) -> Iterator[Fact]:  # noqa: ARG003 - the base's
        """The SQNR of each rung, why others were not run, and the rung that loses most."""
        ladder = Rungs(tuple(findings))
        for rung in ladder.rungs:
            if rung.figures:
                noise = "exact" if rung.figures.sqnr_db is None else rung.figures.sqnr_db
                name, words = f"{rung.where}: SQNR against eager", format_sqnr(rung.figures)
                yield Fact("numerics", name, noise, "dB", words=words)
            else:
                yield Fact("numerics", note=f"{rung.where} was not run: {rung.problem}", listed=True)
        if measured := [rung for rung in ladder.rungs if rung.figures]:
            worst = max(measured, key=lambda rung: _drop(ladder, rung)[1])
            before, drop = _drop(ladder, worst)
            note = f"{worst.where} loses most: {drop:.1f} dB below {before.label if before else 'eager'}"
            yield Fact("numerics", note=note if drop > DROP_DB else "", listed=True)


@dataclass(frozen=True, slots=True)
class Rungs:
    """The rungs of a recipe, in the order of lowering."""

    rungs: tuple[Rung, ...]

    def before(self, rung: Rung) -> Rung | None:
        """The rung that this one was made from; None for the first, which was made from eager."""
        for above in reversed(self.rungs[: self.rungs.index(rung)]):
            shared = not above.specializations or set(above.specializations) >= set(rung.specializations)
            if above.method == rung.method and above.name != rung.name and shared:
                return above
        return None

    def paths(self) -> list[list[Rung]]:
        """The paths from the first rung to each last one."""
        inner = {self.before(rung) for rung in self.rungs}
        return [self._path(rung) for rung in self.rungs if rung not in inner]

    def _path(self, rung: Rung | None) -> list[Rung]:
        return [*self._path(self.before(rung)), rung] if rung else []


@dataclass(frozen=True, slots=True)
class NodeLoss:
    """One operator of a program, against its source in the program before."""

    node: str
    operator: str  # for example ``aten.convolution.default``
    sources: tuple[str, ...]  # names of the nodes that it replaces; the last one computes the same value
    module: str  # path of the module that calls it, empty for the model itself
    line: str  # file, line and function of the call in the model's code; empty if unknown
    own: Worst | None  # its own loss, given the inputs of the program before; None if there is a `problem`
    passed_on: Worst | None  # the loss of its value including that of its inputs
    problem: str = ""  # why its value cannot be compared: NaN, infinity
    # what its own loss adds to the method's outputs, as squares of noise over those of the outputs; None if unknown
    in_outputs: float | None = None

    @property
    def loses(self) -> bool:
        """Whether its value differs from that in the program before."""
        return bool(self.problem) or (self.own is not None and self.own.sqnr_db is not None)

    @property
    def order(self) -> float:
        """Sort key, in dB: the largest loss first."""
        if self.own is None:
            return float("-inf")
        return float("inf") if self.own.sqnr_db is None else self.own.sqnr_db


@dataclass(frozen=True, slots=True)
class NodeLosses(Record):
    """The losses of a program's operators."""

    nodes: tuple[NodeLoss, ...]  # those that were compared, the largest loss first
    operators: int

    @property
    def losing(self) -> tuple[NodeLoss, ...]:
        return tuple(node for node in self.nodes if node.loses)


@dataclass(frozen=True, slots=True)
class Operator(Record):
    """One operator of a payload."""

    node: str
    operator: str  # for example ``aten.convolution.default``
    inputs: tuple[str, ...]  # dtype and shape of each, for example ``float32 [2, 16]``
    output: str
    module: str  # path of the module that calls it, empty for the model itself
    line: str  # file, line and function of the call in the model's code; empty if unknown


@dataclass(frozen=True, slots=True)
class LosingPart(Record):
    """Operators that lose quality when they are lowered together, and of which no smaller part does."""

    operators: tuple[Operator, ...]
    own: Worst | None  # their outputs against torch's, given the same inputs; None if there is a `problem`
    passed_on: Worst | None  # the same of the delegate's outputs, or the method's for operators outside of delegates
    problem: str = ""  # why they cannot be compared: NaN, infinity, an error of the runtime


@dataclass(frozen=True, slots=True)
class DelegateLoss(Record):
    """One delegate of a method, run by the runtime while torch computes all other operators of the edge program."""

    position: int  # among the method's delegates, from 0 on
    backend: str
    operators: int
    own: Worst | None  # its outputs against torch's, given the same inputs; None if there is a `problem`
    passed_on: Worst | None  # the method's outputs against those of the edge program
    problem: str = ""
    loses: bool = False  # by itself
    parts: tuple[LosingPart, ...] = ()  # if it loses: where


@dataclass(frozen=True, slots=True)
class PayloadLosses(Record):
    """The operators at which a payload loses quality, compared with its edge program."""

    delegates: tuple[DelegateLoss, ...]  # the largest loss first
    together: Worst | None  # the method's outputs with all delegates run by the runtime, and the others by torch
    operators: int  # outside of delegates
    searched_outside: bool = False  # whether those operators were searched: if the delegates lose nothing
    outside: tuple[LosingPart, ...] = ()
    unfinished: bool = False  # not all lowerings were made that the search would need

    @property
    def losing(self) -> tuple[DelegateLoss, ...]:
        return tuple(delegate for delegate in self.delegates if delegate.loses)

    @property
    def parts(self) -> tuple[tuple[str, LosingPart], ...]:
        """Each part that loses, with where it is."""
        inside = [(f"delegate {delegate.position}", part) for delegate in self.losing for part in delegate.parts]
        return (*inside, *(("outside of delegates", part) for part in self.outside))

    @property
    def conclusion(self) -> str:
        """Says where quality is lost."""
        if self.losing:
            numbers = ", ".join(str(delegate.position) for delegate in self.losing)
            text = f"It is lost in {len(self.losing)} of {len(self.delegates)} delegates ({numbers})"
            undivided = [
                str(loss.position)
                for loss in self.losing
                if loss.operators > 1 and [len(part.operators) for part in loss.parts] == [loss.operators]
            ]
            if undivided:
                text += f"; in {' and '.join(undivided)}, fewer operators than all lose nothing by themselves"
        elif self.outside:
            text = "It is lost outside of delegates"
        elif self.delegates and not self.searched_outside:
            text = "No delegate loses that much by itself, but all of them together do: what each loses adds up"
        else:
            text = "Neither a delegate nor an operator outside of delegates loses it by itself: it is lost where they "
            text += "meet, as in memory planning, or in state that the method writes"
        unknown = [str(delegate.position) for delegate in self.delegates if delegate.problem and not delegate.loses]
        text += f"; delegates that do not run by themselves: {', '.join(unknown)}" if unknown else ""
        return f"{text}; the search stopped before it was done." if self.unfinished else f"{text}."


@dataclass(frozen=True, slots=True)
class Loss:
    """The first rung that loses quality."""

    rung: Rung
    before: Rung | None  # the nearest earlier rung with figures; None for eager itself
    reason: str  # the bounds or the drop, in words


def find_loss(ladder: Rungs, bounds: VerifyBounds, drop_db: float = DROP_DB) -> Loss | None:
    """The first rung outside of its bounds, else the first that is more than `drop_db` below the one before, if any."""
    measured = [(rung, rung.figures) for rung in ladder.rungs if rung.figures]
    for rung, figures in measured:
        if violated := list(violations(figures, bounds)):
            return Loss(rung, _before(ladder, rung), f"is outside of the recipe's bounds: {'; '.join(violated)}")
    for rung, _ in measured:
        before, drop = _drop(ladder, rung)
        if drop > drop_db:
            than = before.label if before else "eager"
            return Loss(rung, before, f"is {drop:.1f} dB worse than {than} ({drop_db:g} dB are allowed)")
    return None


def _before(ladder: Rungs, rung: Rung) -> Rung | None:
    before = ladder.before(rung)
    while before and not before.figures:
        before = ladder.before(before)
    return before


def _drop(ladder: Rungs, rung: Rung) -> tuple[Rung | None, float]:
    """The nearest earlier rung with figures, None for eager itself, and how many dB this one is below it."""
    before = _before(ladder, rung)
    return before, clipped_db(before.figures if before else None) - clipped_db(rung.figures)


def clipped_db(figures: Worst | None) -> float:
    """The SQNR, but at most `CLEAN_DB`, which is also that of equal outputs and of eager itself."""
    return CLEAN_DB if figures is None or figures.sqnr_db is None else min(figures.sqnr_db, CLEAN_DB)
