"""Rate-limits progress lines."""

from __future__ import annotations

import time

PAUSE = 10.0
"""Seconds between two lines."""


class Throttle:
    """Allows one progress line per pause; the first one after the first pause."""

    def __init__(self, pause: float = PAUSE) -> None:
        """Starts the first pause, in seconds."""
        self._pause = pause
        self._last = time.monotonic()

    def due(self) -> bool:
        """Whether the pause is over; if so, starts the next one."""
        now = time.monotonic()
        if now - self._last < self._pause:
            return False
        self._last = now
        return True


def samples_done(done: int, total: int | None) -> str:
    """For example ``3 of 16 samples``."""
    return f"{done} samples" if total is None else f"{done} of {total} samples"
