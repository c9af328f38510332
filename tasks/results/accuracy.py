"""Scores of a produced file, and the bounds on them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ...artifacts.records import Record


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
