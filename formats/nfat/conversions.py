"""Bytes that are made of bytes stored in another form: transposed matrices, and numbers of half as many bits."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import isqrt

import numpy as np
from numpy.typing import NDArray

from .contents import MatrixShape

_ITEMS = (4, 2, 1, 8, 16)  # sizes of items in bytes, in the order in which they are tried
_CHUNK = 1 << 20
_PROBES = 64
_SIGN, _NOT_A_NUMBER = 0x8000, 0x7E00  # of 16-bit numbers

_Bytes = bytes | bytearray | memoryview
_Words = NDArray[np.unsignedinteger]
_Indices = NDArray[np.int64]


def transposed(stored: _Bytes, shape: MatrixShape) -> Iterator[bytes]:
    """Stored bytes of a shape with each matrix transposed, in pieces of about a megabyte."""
    array = _numbers(stored, shape.item).reshape(-1, shape.rows, shape.columns, max(shape.item // 8, 1))
    line = shape.item * shape.rows
    batches, columns = max(_CHUNK // (line * shape.columns), 1), max(_CHUNK // line, 1)
    for batch in range(0, len(array), batches):
        for column in range(0, shape.columns, columns):
            yield array[batch : batch + batches, :, column : column + columns].swapaxes(1, 2).tobytes()


def is_transpose(stored: _Bytes, content: _Bytes, shape: MatrixShape) -> bool:
    """Whether transposing the content back returns the stored bytes, which have the shape."""
    return _are_pieces_of(stored, transposed(content, shape.swapped))


def find_shape(stored: _Bytes, content: _Bytes) -> MatrixShape | None:
    """The shape of stored bytes of which `content`, as many bytes, is the transpose; None if there is none."""
    shapes = (shape for item in _ITEMS if len(stored) % item == 0 for shape in _plausible(stored, content, item))
    return next((shape for shape in shapes if is_transpose(stored, content, shape)), None)


def byte_sum(content: _Bytes) -> int:
    """The sum of all bytes, whatever their order."""
    return int(np.frombuffer(content, np.uint8).sum(dtype=np.uint64))


def _plausible(stored: _Bytes, content: _Bytes, item: int) -> Iterator[MatrixShape]:
    """Shapes for which a sample of the items is in the right positions."""
    here, there = _words(content, item), _words(stored, item)
    count = len(there)
    if count < 4 or here[0] != there[0] or here[-1] != there[-1]:
        return
    small = np.arange(1, isqrt(count) + 1)
    small = small[count % small == 0]
    divisors = np.union1d(small, count // small)[1:-1]  # from 2 on, without the count itself
    # The second item of either is in the other one after a line.
    all_columns, all_rows = divisors[there[divisors] == here[1]], divisors[here[divisors] == there[1]]
    probes = np.linspace(0, count - 1, _PROBES).astype(np.int64)
    for rows, columns in product(map(int, all_rows), map(int, all_columns)):
        if count % (rows * columns) == 0 and np.array_equal(there[_origins(probes, rows, columns)], here[probes]):
            yield MatrixShape(item, rows, columns)


def _origins(positions: _Indices, rows: int, columns: int) -> _Indices:
    """Stored positions of the items at some positions of a transpose."""
    batch, position = np.divmod(positions, rows * columns)
    column, row = np.divmod(position, rows)
    origins: _Indices = (batch * rows + row) * columns + column
    return origins


def _numbers(content: _Bytes, item: int) -> _Words:
    """A number for each item, two for items of 16 bytes."""
    return np.frombuffer(content, f"<u{min(item, 8)}")


def _words(content: _Bytes, item: int) -> _Words:
    """A number for each item; the first half of items of 16 bytes."""
    return _numbers(content, item)[:: max(item // 8, 1)]


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
    return len(stored) == 2 * len(content) and len(stored) % 4 == 0 and _are_pieces_of(content, halved(stored))


def _are_pieces_of(content: _Bytes, pieces: Iterator[bytes]) -> bool:
    """Whether all pieces together are the content; stops at the first one that differs."""
    position = 0
    for piece in pieces:
        if piece != bytes(content[position : position + len(piece)]):
            return False
        position += len(piece)
    return position == len(content)
