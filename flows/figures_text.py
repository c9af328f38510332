"""Figures as people read them, on the terminal and on Prefect's pages."""

from __future__ import annotations

from ..tasks.figures import Worst

FIGURES = ("max abs error", "relative", "SQNR", "top-1")


def format_error(error: float) -> str:
    """An error to two digits."""
    return f"{error:.2g}"


def format_score(score: float) -> str:
    """A score to four digits."""
    return f"{score:.4g}"


def format_sqnr(worst: Worst) -> str:
    """Decibels, or that nothing differs."""
    return "exact" if worst.sqnr_db is None else f"{worst.sqnr_db:.1f} dB"


def format_top1(worst: Worst) -> str:
    """A percentage; nothing where the outputs are not a classifier's."""
    return "" if worst.top1 is None else f"{100 * worst.top1:.1f} %"


def format_figures(worst: Worst) -> tuple[str, str, str, str]:
    """All of `FIGURES`, in their order."""
    errors = format_error(worst.max_abs_error), format_error(worst.max_relative_error)
    return *errors, format_sqnr(worst), format_top1(worst)
