"""Scores of files with their bounds, and the search for layers that have to stay in floating point to meet these."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

from ...artifacts.records import Record
from .finding import Fact, Finding

if TYPE_CHECKING:
    from .delivered import Delivered
    from .numerics import NodeLosses

FOUND = ".found.yaml"  # ending of the name of a recipe that a search has found


@dataclass(frozen=True, slots=True)
class Score:
    """An evaluator's result; higher is better. The payload is empty for a plain file and for eager."""

    payload: str
    score: float


@dataclass(frozen=True, slots=True)
class Scores(Record):
    """All scores of a file, or of eager."""

    scores: tuple[Score, ...]  # one per payload that this machine can run, by preference; of other models just one
    not_run: Mapping[str, str]  # name of a payload that this machine's runtime has no backend for -> reason


@dataclass(frozen=True, slots=True)
class AccuracyReport(Finding):
    """Scores with their bounds."""

    role: ClassVar = "accuracy"

    evaluator: str  # ``package.module:callable``
    floor: float | None
    max_drop: float | None  # how far a score may be below eager's; None if they are not compared
    eager: float | None  # the eager model's score, if they are compared
    file: Scores
    keep: float | None = None  # least share of eager's score; None if they are not compared

    @property
    def worst(self) -> float:
        return min(score.score for score in self.file.scores)

    @classmethod
    def facts(cls, findings: Sequence[Self], file: Delivered) -> Iterator[Fact]:  # noqa: ARG003 - the base's
        """The lowest score of a file's payloads, with its difference from eager's, and that of each payload."""
        for report in findings:
            drop = "" if report.eager is None else f" ({report.worst - report.eager:+.2g})"
            yield Fact("accuracy", "score", report.worst, words=f"{report.worst:.4g}{drop}", column=3)
            payloads = {f"{score.payload}: score": score.score for score in report.file.scores if score.payload}
            bounds = {"eager's score": report.eager, "floor": report.floor, "max drop": report.max_drop}
            bounds["least share of eager's"] = report.keep
            yield from (Fact("accuracy", name, value) for name, value in (payloads | bounds).items())

    @property
    def _least(self) -> float | None:
        """The least score that keeps the share of eager's; a negative score, such as a loss, may be larger by it."""
        if self.keep is None or self.eager is None:
            return None
        return self.eager * self.keep if self.eager > 0 else self.eager / self.keep

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
            least = self._least
            if least is not None and score < least and not math.isclose(score, least):
                lines.append(
                    f"{name} scores {score:.6g}, and {self.keep:.4g} of eager's {self.eager:.6g} is {least:.6g}"
                )
        return lines


@dataclass(frozen=True, slots=True)
class ScoredFile(Record):
    """A file that was made and scored."""

    layers: int  # how many of the ranked layers are in floating point
    score: float = 0.0  # the lowest of its payloads
    passes: bool = False
    size: int = 0  # bytes, with its external data; 0 if written by a version that did not note them
    seconds: float = 0.0  # of calls of all methods, each the median, where a search asks for the fastest file
    variant: Mapping[str, Any] = field(default_factory=dict)  # fields of `quantize` that are not the recipe's
    problem: str = ""  # why it has no score: it cannot be made, or run

    @property
    def order(self) -> tuple[bool, float, float]:
        """The fastest or smallest of files that pass comes first, and where none does, that with the highest score."""
        return (not self.passes, (self.seconds or self.size) if self.passes else bool(self.problem), -self.score)


@dataclass(frozen=True, slots=True)
class FoundQuantization(Finding):
    """A variant of the recipe, and the layers that it has to leave out: as few as the accuracy gate lets it."""

    role: ClassVar = "search"

    layers: tuple[str, ...]  # module names, those that lose most first
    exclude: tuple[str, ...]  # the recipe's own patterns, and then the layers
    ranked: int  # how many layers lose something by quantization
    attempts: tuple[ScoredFile, ...]
    float_size: int  # bytes of the exported programs, of which nearly all are weights
    variant: Mapping[str, Any] = field(default_factory=dict)  # fields of `quantize` that are not the recipe's

    @property
    def label(self) -> str:
        """The layers in words, for example ``3 of 12 layers (head, stem, blocks.0)``."""
        names = f" ({', '.join(self.layers)})" if self.layers else ""
        return f"{len(self.layers)} of {self.ranked} layers{names}" if self.ranked else "no layer"

    @property
    def changes(self) -> str:
        """What differs from the recipe in words, for example ``with smooth: true, ``; empty if nothing does."""
        return "".join(f"with {name}: {json.dumps(value)}, " for name, value in self.variant.items())

    @classmethod
    def facts(cls, findings: Sequence[Self], file: Delivered) -> Iterator[Fact]:
        """What differs, the layers that stay in floating point, what that costs, and where the recipe is."""
        for search in findings if file.path else ():
            note = (
                f"{search.changes}in floating point: {search.label}; {file.size / search.float_size:.2f} of the "
                f"floating-point size; {len(search.attempts)} files were scored; the recipe is in {file.recipe}{FOUND}"
            )
            yield Fact("quantization", note=note)


def next_count(attempts: Sequence[ScoredFile], ranked: int) -> int | None:
    """The number of layers to leave out next; None if the search is over.

    That is 0, 1, and then twice as many until a file passes; then the middle between the most that do not pass and the
    fewest that do. One ranked layer is left to quantize.
    """
    fails = max((attempt.layers for attempt in attempts if not attempt.passes), default=-1)
    passes = min((attempt.layers for attempt in attempts if attempt.passes), default=None)
    if passes is not None:
        return None if passes - fails <= 1 else (passes + fails) // 2
    most = max(ranked - 1, 0)
    return None if fails >= most else min(max(2 * fails, fails + 1), most)


def rank_layers(losses: Iterable[NodeLosses]) -> tuple[str, ...]:
    """Names of the innermost modules whose operators lose something by themselves, the largest loss first.

    A module's loss is what its operators add to the outputs, and where that is unknown, that of its worst operator.
    """
    added: defaultdict[str, float] = defaultdict(float)
    worst: dict[str, float] = {}
    for node in (node for method in losses for node in method.losing if node.module):
        added[node.module] += math.inf if node.problem else node.in_outputs or 0.0
        worst[node.module] = min(node.order, worst.get(node.module, node.order))
    layers = [name for name in worst if not any(other.startswith(f"{name}.") for other in worst)]
    return tuple(sorted(layers, key=lambda name: (-added[name], worst[name], name)))
