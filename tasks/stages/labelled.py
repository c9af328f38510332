"""The inputs that `export` stored, with names for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def labelled(stored: Mapping[str, Any], drawn: int) -> Iterator[tuple[str, Sequence[Any], Sequence[Any]]]:
    """Label, flat inputs and eager's flat outputs: of all examples, then of some of the drawn ones.

    Args:
        stored: what `export` stored.
        drawn: how many of the drawn ones.
    """
    real = len(stored["inputs"]) - stored["drawn"]
    pairs = list(zip(stored["inputs"], stored["outputs"], strict=True))[: real + drawn]
    for number, (flat, expected) in enumerate(pairs):
        yield f"example {number}" if number < real else f"drawn {number - real}", flat, expected
