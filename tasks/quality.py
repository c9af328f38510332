"""Which rung of a ladder loses quality."""

from __future__ import annotations

from dataclasses import dataclass

from ..configs.verify_bounds import VerifyBounds
from .figures import Worst, violations
from .numerics import Ladder, Rung

CLEAN_DB = 90.0
"""What is above counts as this much: fp32 stays above by any order of its sums, so that differences mean nothing."""

DROP_DB = 6.0
"""A rung that is worse than the one before by more than this has lost: its noise has more than twice the amplitude."""


@dataclass(frozen=True, slots=True)
class Loss:
    """The first rung that loses quality.

    Attributes:
        rung: which.
        before: the nearest rung above it that could be run; None where it is eager itself.
        reason: what it was judged by, in words.
    """

    rung: Rung
    before: Rung | None
    reason: str


def find_loss(ladder: Ladder, bounds: VerifyBounds, drop_db: float = DROP_DB) -> Loss | None:
    """The first rung that loses quality; None where none does.

    That is the first one outside of the bounds that the file is verified with. Where all are inside, it is the first
    one whose SQNR is more than `drop_db` below that of the rung before, where ratios above `CLEAN_DB` count as that.

    Args:
        ladder: the figures.
        bounds: of verification.
        drop_db: see above.
    """
    measured = [(rung, rung.figures) for rung in ladder.rungs if rung.figures]
    for rung, figures in measured:
        if outside := list(violations(figures, bounds)):
            return Loss(rung, _before(ladder, rung), f"is outside of the recipe's bounds: {'; '.join(outside)}")
    for rung, figures in measured:
        before = _before(ladder, rung)
        drop = _clipped(before.figures if before else None) - _clipped(figures)
        if drop > drop_db:
            than = before.label if before else "eager"
            return Loss(rung, before, f"is {drop:.1f} dB worse than {than} ({drop_db:g} dB are allowed)")
    return None


def _before(ladder: Ladder, rung: Rung) -> Rung | None:
    before = ladder.before(rung)
    while before and not before.figures:
        before = ladder.before(before)
    return before


def _clipped(figures: Worst | None) -> float:
    return CLEAN_DB if figures is None or figures.sqnr_db is None else min(figures.sqnr_db, CLEAN_DB)
