"""Scores of files, with their bounds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from ...artifacts.records import Record
from .finding import Fact, Finding

if TYPE_CHECKING:
    from .delivered import Delivered


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
class AccuracyReport(Finding):
    """Scores with their bounds."""

    role: ClassVar = "accuracy"

    evaluator: str  # ``package.module:callable``
    floor: float | None
    max_drop: float | None  # how far a score may be below eager's; None if they are not compared
    eager: float | None  # the eager model's score, if they are compared
    file: Scores

    @property
    def worst(self) -> float:
        return min(score.score for score in self.file.scores)

    @classmethod
    def facts(cls, found: Sequence[Self], file: Delivered) -> Iterator[Fact]:  # noqa: ARG003 - the base's
        """The lowest score of a file's payloads, with its difference from eager's, and that of each payload."""
        for report in found:
            drop = "" if report.eager is None else f" ({report.worst - report.eager:+.2g})"
            yield Fact("accuracy", "score", report.worst, words=f"{report.worst:.4g}{drop}", column=3)
            payloads = {f"{score.payload}: score": score.score for score in report.file.scores if score.payload}
            bounds = {"eager's score": report.eager, "floor": report.floor, "max drop": report.max_drop}
            yield from (Fact("accuracy", name, value) for name, value in (payloads | bounds).items())

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
