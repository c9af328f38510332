"""How far a stage that takes many samples is."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

Progressed = Callable[[int, int | None], None]
"""Told how many samples are done, and how many there are, None where that is not known."""


def unheard(done: int, total: int | None) -> None:
    """Tells nobody."""
    del done, total


reporter: ContextVar[Progressed] = ContextVar("reporter", default=unheard)
"""Whom a stage that runs in this context tells: the pool whose process it is, or whoever called it here."""
