"""Adversarial inputs: a search for those that a file computes worst, which are run again on later files."""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from ...configs.verification import InputSearch, VerifyBounds
from ...errors import SourceError, VerificationFailed
from ...formats.pte.contents import Method, TensorSpec, shape_problem
from ..engine.stage import Progressed
from ..results.figures import Case, Searched, disagreements, violations
from ..usercode import inputs as drawing
from ..usercode.inputs import StoredCase, same_shapes
from .compare import compare_all
from .running import ExpectedCall, Loadable, TorchProgram

KINDS = ("shuffled", "zeros", "ones", "constant", "one-hot", "negative", "large", "mixed", "small", "denormal")
"""Values of inputs: the examples', and others. A quantized program cannot distinguish the last two from zeros."""

_LEAST = 24  # inputs that are tried even on a slow machine, unless that takes four times as long as the recipe allows
_SHRINKS = 64  # smaller inputs that are tried
_ROUNDINGS = 3  # runs of a program with errors of rounding
_ROUNDING = 8.0  # by this factor, an output may be further off than in those

Calls = list[list[Any]]  # flat inputs of each call


class Found(NamedTuple):
    """The result of a search: calls of a method on one loaded program, of which the last one is compared."""

    method: str
    calls: Calls
    label: str  # for example ``searched [3, 17], one-hot (number 12)``


@dataclass(frozen=True)
class Judge:
    """Compares a file's outputs with a program's, unless rounding decides them.

    Zeros, constants and large numbers cancel each other, or lie on the edge of a step, so that equally right programs
    differ. An output that is out of bounds therefore counts only if it is much further off than the program's own, once
    each of its operators has rounded in another way (Monte Carlo arithmetic).
    """

    method: str
    program: TorchProgram
    bounds: VerifyBounds
    rounding: str = ""  # that of the method's stored examples

    def expected(self, flat: Sequence[Any]) -> list[Any] | None:
        """The program's outputs; None if it refuses the inputs, or returns NaN or infinity."""
        try:
            outputs = self.program.run(flat)
        except Exception:  # noqa: BLE001 - whatever an operator or an assertion raises
            return None
        finite = (bool(value.isfinite().all()) for value in outputs if isinstance(value, torch.Tensor))
        return outputs if all(finite) else None

    def compare(self, outputs: Sequence[Any], stored: StoredCase) -> tuple[Case | None, str]:
        """The worst output, and why it is wrong, if it is; None if it cannot be compared, or rounding decides it."""
        try:
            cases = list(compare_all(outputs, stored, method=self.method, rounding=self.rounding))
        except VerificationFailed as error:
            sized = len(outputs) == len(stored.expected) and same_shapes(outputs, stored.expected)
            return None, "" if sized and self._is_rounding(stored, ()) else str(error)
        outside = {}
        for case in cases:
            if lines := [*violations(case, self.bounds), *disagreements([case], self.bounds)]:
                outside[case] = f"{case.where}: {'; '.join(lines)}"
        if outside and self._is_rounding(stored, tuple(outside)):
            return None, ""
        return min(outside or cases, key=decibels, default=None), "; ".join(outside.values())

    def run_calls(self, program: Loadable, found: Found, expected: Sequence[Any]) -> tuple[Case | None, str]:
        """Makes calls on a freshly loaded program, and compares the outputs of the last one."""
        try:
            *_, outputs = program.run([ExpectedCall(found.method, flat, (), found.label) for flat in found.calls])
        except VerificationFailed as error:
            return None, str(error)
        return self.compare(outputs, StoredCase(found.label, found.calls[-1], expected))

    def run_again(self, program: Loadable, found: Found, exported: ExportedProgram) -> str:
        """Why a file is wrong on inputs that were found for another one; empty if the model no longer takes them."""
        with suppress(SourceError):
            for flat in found.calls:
                drawing.check_fits(exported, flat, found.label)
            if (expected := self.expected(found.calls[-1])) is not None:
                return self.run_calls(program, found, expected)[1]
        return ""

    def _is_rounding(self, stored: StoredCase, outside: Sequence[Case]) -> bool:
        """Whether rounding may have led to outputs out of bounds or, without any, to NaN or infinity."""
        noisy: list[Case] = []
        for number in range(_ROUNDINGS):
            dice = torch.Generator().manual_seed(number)
            flat = [_rounded(dice, None, value) for value in stored.inputs]
            with suppress(Exception):  # it may refuse these
                outputs = self.program.run(flat, partial(_rounded, dice))
                try:
                    noisy += compare_all(outputs, stored, method=self.method, rounding=self.rounding)
                except VerificationFailed:
                    return True
        return bool(noisy and outside) and all(
            _is_within(case, [other for other in noisy if other.output == case.output]) for case in outside
        )


def decibels(case: Case) -> float:
    """The SQNR of an output, or the same ratio of all its integers to those that differ; infinite for equal ones."""
    if case.counted and case.sqnr_db is None and case.equal < case.counted:
        return 10 * math.log10(case.counted / (case.counted - case.equal))
    return math.inf if case.sqnr_db is None else case.sqnr_db


def _is_within(case: Case, noisy: Sequence[Case]) -> bool:
    """Whether an output is not much worse than the worst of some. Silence has no SQNR, and indices no largest error."""
    if case.counted and case.sqnr_db is None:
        return case.counted - case.equal <= _ROUNDING * max(other.counted - other.equal for other in noisy)
    ratio, error = min(map(decibels, noisy)), max(other.max_abs_error for other in noisy)
    return decibels(case) >= ratio - 20 * math.log10(_ROUNDING) and case.max_abs_error <= _ROUNDING * error


def _rounded(dice: torch.Generator, node: Node | None, value: Any) -> Any:
    """A value with errors of rounding: up to two units in the last place, and denormal numbers that become zero.

    One in ten integers that a program quantizes to becomes its neighbour. Inputs of a program, which it may write to,
    stay as they are.
    """
    if isinstance(value, list | tuple):
        return [_rounded(dice, node, part) for part in value]
    if not isinstance(value, torch.Tensor) or (node and node.op == "placeholder"):
        return value
    if value.is_floating_point():
        limits, share = torch.finfo(value.dtype), torch.rand(value.shape, generator=dice, dtype=torch.float64)
        moved = (value.double() * (1 + (4 * share - 2) * limits.eps)).to(value.dtype)
        return torch.where((value.abs() < limits.tiny) & (share < 0.5), 0, moved)
    if node and "quantize_" in str(node.target) and value.dtype != torch.bool:
        ends, step = torch.iinfo(value.dtype), torch.randint(20, value.shape, generator=dice)
        return (value.long() + (step == 0).long() - (step == 1).long()).clamp(ends.min, ends.max).to(value.dtype)
    return value


class Probe(NamedTuple):
    """Inputs to try."""

    sizes: tuple[int, ...]  # of the symbols
    kinds: tuple[str, ...]  # by input
    number: int = 0  # decides the values


class Box:
    """All inputs that a method takes: of each size within its dynamic shapes, with values like those of its examples.

    Integers lie between the smallest and the largest of the examples, or are the negatives of positive ones.
    """

    def __init__(self, method: Method, program: ExportedProgram, stored: Mapping[str, Any], judge: Judge) -> None:
        """Takes shapes from the exported program, and values from the examples that were stored with it."""
        self._specs, self._shapes = method.inputs, drawing.input_shapes(program)
        self._examples = stored["inputs"][: len(stored["inputs"]) - stored["drawn"]]
        self._ends = [_ends(pool) for pool in zip(*self._examples, strict=True)]
        quantized = any("quantize" in str(node.target) for node in judge.program.module.graph.nodes)
        self._kinds = KINDS[:-2] if quantized else KINDS
        hints = drawing.example_sizes(program, self._examples[0])
        self._symbols, hint = tuple(hints), tuple(hints.values())
        bounds = [drawing.size_bounds(program, symbol) for symbol in self._symbols]
        self._ranges = [range(least, most + 1) for least, most, _ in bounds]
        least, most = (tuple(sizes[end] for sizes in self._ranges) for end in (0, -1))
        bases = ((hint, least), (hint, most), (least, most), (most, least))
        ends = [(*base[:at], end[at], *base[at + 1 :]) for at in range(len(hint)) for base, end in bases]
        corners = [(sizes, KINDS[0]) for sizes in dict.fromkeys((hint, least, most, *ends))]
        corners += [(sizes, kind) for sizes in dict.fromkeys((hint, least, most)) for kind in self._kinds[1:]]
        self._corners = [Probe(sizes, (kind,) * len(self._shapes)) for sizes, kind in corners]

    def probe(self, number: int, seed: int, worst: Probe | None) -> Probe:
        """Number 0 has the examples' sizes. The corners follow: both ends of every size, every kind of values.

        Then sizes go through their ranges, each in its own order, so that other pairs meet each time. Every third probe
        is a neighbour of the worst one.
        """
        if number < len(self._corners):
            return self._corners[number]._replace(number=number)
        chance = random.Random(f"{seed}/{number}")  # noqa: S311 - test inputs, not secrets
        kinds = [chance.choice(self._kinds) for _ in self._shapes]
        if worst and number % 3 == 0:
            steps = [chance.choice((0, 0, 1, -1, len(own) // 8)) for own in self._ranges]
            near = (_within(own, size + step) for own, size, step in zip(self._ranges, worst.sizes, steps, strict=True))
            kept = zip(worst.kinds, kinds, strict=True)
            return Probe(tuple(near), tuple(kind if chance.random() < 0.7 else other for kind, other in kept), number)
        sizes = [_walk(own, number, turn) for turn, own in enumerate(self._ranges)]
        if number % 4 == 1:  # equal sizes may take another path
            sizes = [_within(own, sizes[0]) for own in self._ranges]
        return Probe(tuple(sizes), tuple(kinds if number % 2 else kinds[:1] * len(kinds)), number)

    def draw(self, probe: Probe, seed: int) -> Iterator[list[Any]]:
        """Flat inputs, the most different ones first; none if the file does not take the sizes."""
        shapes = self._sized(probe.sizes)
        for shape, spec in zip(shapes, self._specs, strict=False):
            if shape is not None and isinstance(spec, TensorSpec) and shape_problem(spec, shape):
                return
        for values in drawing.DRAWS:
            dice = torch.Generator().manual_seed(1_000_003 * seed + probe.number)
            drawn = drawing.fill_inputs(self._examples, shapes, dice, values)
            yield [
                _valued(value, ends, kind, dice)
                if ends and value.numel() and (values == "varied" or value.is_floating_point())
                else value
                for value, ends, kind in zip(drawn, self._ends, probe.kinds, strict=True)
            ]

    def smaller(self, sizes: tuple[int, ...], calls: Calls) -> Iterator[tuple[tuple[int, ...], Calls]]:
        """The inputs of calls with one smaller size, or with zeros for some numbers; the largest steps first."""
        for at, size in enumerate(sizes):
            least = self._ranges[at].start
            for less in dict.fromkeys((least, (least + size) // 2, size - 1)):
                if least <= less < size:
                    fewer = (*sizes[:at], less, *sizes[at + 1 :])
                    yield fewer, [list(map(_cut, flat, self._sized(fewer))) for flat in calls]
        for parts, at in itertools.product((1, 2, 4, 8), range(len(self._ends))):
            for part in range(parts if self._ends[at] else 0):
                ends = self._ends[at]
                emptied = [[*flat[:at], _emptied(flat[at], ends, part, parts), *flat[at + 1 :]] for flat in calls]
                if not all(map(_same_bits, emptied, calls)):
                    yield sizes, emptied

    def _sized(self, sizes: Sequence[int]) -> list[list[int] | None]:
        return drawing.sized_shapes(self._shapes, dict(zip(self._symbols, sizes, strict=True)))


def _ends(values: Sequence[Any]) -> tuple[float, float] | None:
    """The smallest and the largest value of an input in the examples; None if it cannot have others."""
    tensors = [value for value in values if isinstance(value, torch.Tensor) and value.numel()]
    if not tensors or any(x.is_complex() or drawing.are_offsets(x) or not bool(x.isfinite().all()) for x in tensors):
        return None
    return min(x.min().item() for x in tensors), max(x.max().item() for x in tensors)


def _valued(base: torch.Tensor, ends: tuple[float, float], kind: str, dice: torch.Generator) -> torch.Tensor:
    """An input with a kind of values in place of those that were drawn."""
    floating, (least, most) = base.is_floating_point(), ends
    peak = max(-least, most) or 1.0
    if kind in ("zeros", "ones", "constant", "one-hot"):
        number = base.flatten()[0].item() if kind == "constant" else int(kind == "ones")
        filled = torch.full_like(base, number if floating else min(max(number, least), most))
        if kind == "one-hot":
            hot = torch.unravel_index(torch.randint(base.numel(), (), generator=dice), base.shape)
            filled[hot] = peak if floating else most
        return filled
    if floating:
        tiny = torch.finfo(base.dtype).tiny / 8 / peak
        negative = -base.abs() if kind == "negative" else -16 * base
        base = base * {"large": 16.0, "small": 2.0**-12, "denormal": tiny}.get(kind, 1.0)
    else:
        signed = least >= 0 and base.dtype != torch.bool and torch.iinfo(base.dtype).min < 0
        negative = -base.clamp(min=1) if signed else base
        base = torch.full_like(base, most if kind == "large" else least) if kind in ("large", "small") else base
    if kind == "mixed":
        return torch.where(torch.rand(base.shape, generator=dice) < 0.5, base, negative)
    return negative if kind == "negative" else base


def _walk(sizes: range, number: int, turn: int) -> int:
    """One of the sizes: `len(sizes)` consecutive numbers have all of them, and neighbours are far apart."""
    stride = next(step for step in range(int(0.618 * len(sizes)) or 1, 0, -1) if math.gcd(step, len(sizes)) == 1)
    return sizes[(number * stride + turn * (number // len(sizes))) % len(sizes)]


def _within(sizes: range, size: int) -> int:
    return min(max(size, sizes.start), sizes.stop - 1)


def _cut(value: Any, shape: Sequence[int] | None) -> Any:
    return value if shape is None else value[tuple(map(slice, shape))].clone()


def _emptied(value: torch.Tensor, ends: tuple[float, float] | None, part: int, parts: int) -> torch.Tensor:
    """A tensor without the numbers in one of equal parts of it."""
    flat, size = value.flatten().clone(), -(-value.numel() // parts)
    flat[part * size : (part + 1) * size] = max(ends[0], 0) if ends and not value.is_floating_point() else 0
    return flat.reshape(value.shape)


def _same_bits(one: Sequence[Any], other: Sequence[Any]) -> bool:
    def same(mine: Any, its: Any) -> bool:
        if isinstance(mine, torch.Tensor) and isinstance(its, torch.Tensor):
            return bool(torch.equal(mine.flatten().view(torch.uint8), its.flatten().view(torch.uint8)))
        return bool(mine == its)

    return same_shapes(one, other) and all(map(same, one, other))


@dataclass(frozen=True)
class _Hit:
    """The result of a probe."""

    probe: Probe
    payload: str
    found: Found
    case: Case | None  # the worst output; None where outputs cannot be compared
    problem: str = ""  # why it is wrong, if it is
    unsteady: bool = False  # whether the problem comes and goes

    @property
    def rank(self) -> float:
        return math.inf if self.case is None else decibels(self.case)


@dataclass
class WorstInputs:
    """A search over the inputs of a file's methods. The order is always the same; time decides where it ends."""

    payloads: Mapping[str, Loadable]  # that can run here, by name
    boxes: Mapping[str, Box]  # by method
    judges: Mapping[str, Judge]  # by method
    asked: InputSearch
    progressed: Progressed
    _loaded: dict[tuple[str, str], Callable[[ExpectedCall], Sequence[Any]]] = field(default_factory=dict)
    _before: dict[tuple[str, str], list[Any]] = field(default_factory=dict)  # inputs of the last call
    _worst: dict[str, _Hit] = field(default_factory=dict)  # by method
    _compared: int = 0
    _refused: int = 0
    _differing: int = 0

    def run(self) -> tuple[Searched, Found | None]:
        """Finds the first inputs that the file computes wrong, or else those that it computes worst."""
        hit = self._search(time.monotonic())
        if hit and not hit.unsteady:
            hit = self._shrunk(hit, time.monotonic() + self.asked.seconds / 2)
        searched = Searched(self.asked.seconds, self._compared, self._refused, self._differing, None)
        if hit is None:
            return searched, None
        problem = f"payload {hit.payload!r}: {hit.problem}" if hit.problem and hit.payload else hit.problem
        worst = hit.case and replace(hit.case, payload=hit.payload)
        return replace(searched, worst=worst, problem=problem, unsteady=hit.unsteady), hit.found

    def _search(self, begun: float) -> _Hit | None:
        for number, method in ((number, method) for number in itertools.count() for method in self.boxes):
            took, tried = time.monotonic() - begun, self._compared + self._refused
            if took >= self.asked.seconds and (tried >= _LEAST or took >= 4 * self.asked.seconds):
                break
            if wrong := self._try(method, number):
                return wrong
        return min(self._worst.values(), key=lambda hit: hit.rank, default=None)

    def _try(self, method: str, number: int) -> _Hit | None:
        """Runs all payloads on one probe; returns the first one that is wrong."""
        box, judge, worst = self.boxes[method], self.judges[method], self._worst.get(method)
        probe = box.probe(number, self.asked.seed, worst.probe if worst else None)
        drawn = box.draw(probe, self.asked.seed)
        accepted = ((flat, expected) for flat in drawn if (expected := judge.expected(flat)) is not None)
        if (chosen := next(accepted, None)) is None:
            self._refused += 1
            return None
        self._compared += 1
        self.progressed(self._compared, None)
        stored = StoredCase(_label(probe, chosen[0]), *chosen)
        for payload in self.payloads:
            hit = self._called(payload, method, probe, stored)
            if hit.problem:
                return hit
            if hit.rank < (self._worst[method].rank if method in self._worst else math.inf):
                self._worst[method] = hit
        return None

    def _called(self, payload: str, method: str, probe: Probe, stored: StoredCase) -> _Hit:
        """The result of two calls on a program that stays loaded; of the fewest wrong calls, if it is wrong."""
        judge, key, same = self.judges[method], (payload, method), list(stored.inputs)
        before, self._before[key] = self._before.get(key, same), same
        call = ExpectedCall(method, same, stored.expected, stored.label)
        case, problem = None, ""
        try:
            first, second = self._call(key, call), self._call(key, call)
            case, problem = judge.compare(first, stored)
            if not _same_bits(first, second):
                self._differing += 1
                problem = problem or judge.compare(second, stored._replace(expected=first))[1]
        except VerificationFailed as error:
            problem = str(error)
        found = Found(method, [same], stored.label)
        if not problem:
            return _Hit(probe, payload, found, case)
        for calls in ([same], [same, same], [before, same], [before, same, same]):
            again, reason = judge.run_calls(self.payloads[payload], found._replace(calls=calls), stored.expected)
            if reason:
                return _Hit(probe, payload, found._replace(calls=calls), again, reason)
        return _Hit(probe, payload, found, case, f"not every time, {problem}", unsteady=True)

    def _call(self, key: tuple[str, str], call: ExpectedCall) -> Sequence[Any]:
        """Calls a program that stays loaded, unless the method has state."""
        payload, method = key
        if key not in self._loaded or self.judges[method].program.stateful:
            self._loaded[key] = self.payloads[payload].open([method])
        return self._loaded[key](call)

    def _shrunk(self, hit: _Hit, deadline: float) -> _Hit:
        """Smaller inputs that are as bad, if they are found in time."""
        box, judge = self.boxes[hit.found.method], self.judges[hit.found.method]
        candidates = box.smaller(hit.probe.sizes, hit.found.calls)
        for _ in range(_SHRINKS):
            if time.monotonic() > deadline or (candidate := next(candidates, None)) is None:
                break
            probe, calls = hit.probe._replace(sizes=candidate[0]), candidate[1]
            if (expected := judge.expected(calls[-1])) is None:
                continue
            found = Found(hit.found.method, calls, _label(probe, calls[-1]))
            case, problem = judge.run_calls(self.payloads[hit.payload], found, expected)
            smaller = replace(hit, probe=probe, found=found, case=case, problem=problem)
            if bool(problem) == bool(hit.problem) and (problem or smaller.rank <= hit.rank):
                hit, candidates = smaller, box.smaller(*candidate)
        return hit


def _label(probe: Probe, flat: Sequence[Any]) -> str:
    """Describes inputs for people: shapes, kinds of values, and the number that decides those."""
    shapes = " and ".join(str(list(value.shape)) for value in flat if isinstance(value, torch.Tensor))
    return f"searched {shapes}, {' and '.join(dict.fromkeys(probe.kinds))} (number {probe.number})"
