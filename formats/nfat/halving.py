"""16-bit floating-point numbers that are the nearest ones of 32-bit numbers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

_CHUNK = 1 << 20  # bytes
_SIGN, _NOT_A_NUMBER = 0x8000, 0x7E00

_Bytes = bytes | bytearray | memoryview


def halved(stored: _Bytes) -> Iterator[bytes]:
    """The nearest 16-bit number of each of these 32-bit ones, the even one of two; in pieces of half a megabyte.

    What is not a number has one bit pattern for each sign, so that all readers make the same bytes.
    """
    for start in range(0, len(stored), _CHUNK):
        bits = np.frombuffer(stored[start : start + _CHUNK], "<u4")
        numbers = bits.view("<f4")
        with np.errstate(over="ignore", invalid="ignore"):  # what is too large becomes infinite
            halves = numbers.astype("<f2").view("<u2")
        strange = np.isnan(numbers)
        halves[strange] = bits[strange] >> 16 & _SIGN | _NOT_A_NUMBER
        yield halves.tobytes()


def is_half(stored: _Bytes, content: _Bytes) -> bool:
    """Whether the content is what readers make of the stored bytes."""
    position = 0
    if len(stored) != 2 * len(content) or len(stored) % 4:
        return False
    for piece in halved(stored):
        if piece != bytes(content[position : position + len(piece)]):
            return False
        position += len(piece)
    return True
