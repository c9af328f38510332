"""Transposes are found whenever there is one, and 16-bit numbers are the nearest ones, whatever the values are."""

import math
import random
import struct

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from pteforge.formats.nfat.contents import MatrixShape
from pteforge.formats.nfat.conversions import find_shape, halved, is_half, is_transpose, transposed

_shapes = st.tuples(
    st.sampled_from([1, 2, 4, 8, 16]), st.integers(1, 5), st.integers(2, 30), st.integers(2, 30), st.integers(1, 255)
)


def _content(item: int, batch: int, rows: int, columns: int, values: int) -> np.ndarray:
    chance = random.Random(batch * rows * columns)  # noqa: S311 - the same each time
    content = bytes(chance.randrange(values) for _ in range(item * batch * rows * columns))
    return np.frombuffer(content, f"V{item}").reshape(batch, rows, columns)


@given(_shapes)
def test_found(given_shape):
    """A transpose is what numpy makes of an array, it is found without its shape, and it is undone by the other one."""
    item, _, rows, columns, _ = given_shape
    array = _content(*given_shape)
    stored, expected = array.tobytes(), np.ascontiguousarray(array.swapaxes(1, 2)).tobytes()
    shape = MatrixShape(item, rows, columns)
    assert b"".join(transposed(stored, shape)) == expected
    assert b"".join(transposed(expected, shape.swapped)) == stored
    found = find_shape(stored, expected)
    assert found
    assert b"".join(transposed(stored, found)) == expected


@given(_shapes, st.randoms(use_true_random=False))
def test_not_found(given_shape, chance):
    """One changed byte, or bytes in any other order, are no transpose, unless there is a shape for which they are."""
    item, _, rows, columns, _ = given_shape
    array = _content(*given_shape)
    stored = array.tobytes()
    changed = bytearray(np.ascontiguousarray(array.swapaxes(1, 2)).tobytes())
    changed[chance.randrange(len(changed))] ^= 1
    assert not is_transpose(stored, bytes(changed), MatrixShape(item, rows, columns))
    assert find_shape(stored, bytes(changed)) is None
    shuffled = bytearray(stored)
    chance.shuffle(shuffled)
    found = find_shape(stored, bytes(shuffled))
    assert found is None or b"".join(transposed(stored, found)) == shuffled


def test_large_pieces():
    """Matrices of more bytes than a piece are transposed in several."""
    array = np.random.default_rng(0).integers(0, 256, (2, 3000, 700), np.uint8)
    pieces = list(transposed(array.tobytes(), MatrixShape(1, 3000, 700)))
    assert len(pieces) > 2
    assert b"".join(pieces) == np.ascontiguousarray(array.swapaxes(1, 2)).tobytes()
    assert find_shape(array.tobytes(), b"".join(pieces)) == MatrixShape(1, 3000, 700)


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


def test_pieces_of_numbers():
    """Many numbers are rounded in several pieces."""
    numbers = np.random.default_rng(0).normal(size=600_000).astype("<f4")
    pieces = list(halved(numbers.tobytes()))
    assert len(pieces) == 3
    assert b"".join(pieces) == numbers.astype("<f2").tobytes()
