"""Telling how many samples a stage has taken."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from ..progress import Progressed

Sample = TypeVar("Sample")


def counted(samples: Iterable[Sample], total: int | None, progressed: Progressed) -> Iterator[Sample]:
    """The samples; tells of each once it has been worked on, which is when the next one is asked for."""
    for done, sample in enumerate(samples, 1):
        yield sample
        progressed(done, total)
