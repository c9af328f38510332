"""16-bit numbers are the nearest ones, whatever the 32-bit numbers are."""

import math
import struct

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from pteforge.formats.nfat.halving import halved, is_half

_bits = st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=50)


def _nearest(bits: int) -> int:
    """As IEEE 754 says, by Python's own rounding; one pattern for what is not a number."""
    (number,) = struct.unpack("<f", struct.pack("<I", bits))
    if math.isnan(number):
        return 0xFE00 if bits >> 31 else 0x7E00
    try:
        return int.from_bytes(struct.pack("<e", number), "little")
    except OverflowError:
        return 0xFC00 if number < 0 else 0x7C00


@given(_bits)
@example([0, 1 << 31, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 0xFFFFFFFF])  # infinite, and no numbers
@example([0x477FEFFF, 0x477FF000, 0x47800000, 0x33000000, 0x33000001, 0x33800000, 0x38800000])  # ends of the range
@example([0x3F801000, 0x3F803000, 0x3F801001, 0x387FF000, 0x33C00000, 0x337FFFFF])  # ties, and numbers next to them
def test_nearest(bits):
    """Each number is rounded to the nearest, to the even one of two."""
    stored = struct.pack(f"<{len(bits)}I", *bits)
    made = b"".join(halved(stored))
    assert list(struct.unpack(f"<{len(bits)}H", made)) == list(map(_nearest, bits))
    assert is_half(stored, made)
    assert not is_half(stored, bytes([made[0] ^ 1]) + made[1:])
    assert not is_half(stored, made + b"\0")


def test_pieces():
    """Many numbers are rounded in several pieces."""
    numbers = np.random.default_rng(0).normal(size=600_000).astype("<f4")
    pieces = list(halved(numbers.tobytes()))
    assert len(pieces) == 3
    assert b"".join(pieces) == numbers.astype("<f2").tobytes()
