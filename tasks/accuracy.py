"""Scores of a produced file, and what is asked of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Score:
    """What an evaluator returned.

    Attributes:
        payload: which of a fat file's payloads ran; empty for a plain file and for eager.
        score: more is better.
    """

    payload: str
    score: float


@dataclass(frozen=True, slots=True)
class Scores:
    """All that was scored.

    Attributes:
        scores: of each payload that this machine can run, by preference; of a plain file and of eager just one.
        not_run: payloads that this machine's runtime has no backend for: why, by name.
    """

    scores: tuple[Score, ...]
    not_run: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Scores:
        """Inverse of `to_json`."""
        return cls(tuple(Score(**score) for score in value["scores"]), dict(value["not_run"]))


@dataclass(frozen=True, slots=True)
class AccuracyReport:
    """Scores beside their bounds.

    Attributes:
        evaluator: what scored, ``package.module:callable``.
        floor: least score; None where there is none.
        max_drop: how far a score may be below eager's; None where they are not compared.
        eager: the eager model's score, where they are compared.
        file: the file's scores.
    """

    evaluator: str
    floor: float | None
    max_drop: float | None
    eager: float | None
    file: Scores

    @property
    def worst(self) -> float:
        """The least score."""
        return min(each.score for each in self.file.scores)

    def misses(self) -> list[str]:
        """A line for each bound that a score is below: by payload, with the score, the bound and by how much."""
        return [line for each in self.file.scores for line in self._misses_of(each)]

    def _misses_of(self, each: Score) -> list[str]:
        what = f"payload {each.payload!r}" if each.payload else "the file"
        lines = []
        if self.floor is not None and each.score < self.floor:
            short = self.floor - each.score
            lines.append(f"{what} scores {each.score:.6g}, {short:.3g} below the floor of {self.floor:g}")
        drop = 0.0 if self.eager is None else self.eager - each.score
        # 0.985 - 0.98 is a bit more than 0.005 in binary.
        if self.max_drop is not None and drop > self.max_drop and not math.isclose(drop, self.max_drop):
            lines.append(
                f"{what} scores {each.score:.6g}, {drop:.3g} below eager's {self.eager:.6g}; "
                f"that is {drop - self.max_drop:.3g} more than the {self.max_drop:g} allowed"
            )
        return lines

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> AccuracyReport:
        """Inverse of `to_json`."""
        return cls(**{**value, "file": Scores.from_json(value["file"])})
