"""Transposes are found whenever there is one, whatever the values, and are never claimed where there is none."""

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from pteforge.formats.nfat.contents import MatrixShape
from pteforge.formats.nfat.transposing import find_shape, is_transpose, transposed

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
