"""Saying now and then how far something is, where each time is a line that stays."""

from __future__ import annotations

import time

PAUSE = 10.0
"""Seconds between two lines."""


class Seldom:
    """Lets something be said once in a while, the first time a while after it was made."""

    def __init__(self, pause: float = PAUSE) -> None:
        """Starts the first while, of so many seconds."""
        self._pause = pause
        self._last = time.monotonic()

    def due(self) -> bool:
        """Whether it is time again. Then the next while starts."""
        now = time.monotonic()
        if now - self._last < self._pause:
            return False
        self._last = now
        return True


def samples_done(done: int, total: int | None) -> str:
    """In words."""
    return f"{done} samples" if total is None else f"{done} of {total} samples"
