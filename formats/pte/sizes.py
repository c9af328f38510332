"""Sizes that inputs may have, as metadata: a program itself says upper bounds only, and runs with any size below.

The entry `metadata.sizes.METHOD` is a list of integers (see `formats.pte.metadata`), five for each dimension that may
vary: the input's position, the dimension, the least and the largest size, and the step from one size to the next.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ...errors import FileFormatError
from .contents import DimensionSizes, Method, TensorSpec

SIZES = "sizes."
"""What the keys of these entries begin with, without the prefix of metadata."""

_FIELDS = 5


def entries(sizes: Mapping[str, Sequence[Sequence[int]]]) -> dict[str, tuple[int, ...]]:
    """Metadata from rows of five numbers by method; methods without any have none."""
    return {f"{SIZES}{method}": tuple(number for row in rows for number in row) for method, rows in sizes.items()}


def with_sizes(method: Method, content: bytes) -> Method:
    """A method whose inputs have the sizes of its entry; raises FileFormatError if that is damaged."""
    try:
        kind, count = struct.unpack_from("<BI", content)
        numbers = struct.unpack(f"<{count}q", content[struct.calcsize("<BI") :])
    except struct.error as error:
        raise FileFormatError(f"damaged file: sizes of method {method.name!r}: {error}") from error
    inputs = list(method.inputs)
    if kind != 4 or count % _FIELDS:
        raise FileFormatError(f"damaged file: sizes of method {method.name!r} are {count} numbers of type {kind}")
    for position, dimension, least, most, step in _rows(numbers):
        spec = inputs[position] if 0 <= position < len(inputs) else None
        if not isinstance(spec, TensorSpec) or not 0 <= dimension < len(spec.shape) or step < 1 or least > most:
            raise FileFormatError(f"damaged file: method {method.name!r} has sizes that no input of it can have")
        inputs[position] = replace(spec, sizes=(*spec.sizes, DimensionSizes(dimension, least, most, step)))
    return replace(method, inputs=tuple(inputs))


def _rows(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    return (numbers[start : start + _FIELDS] for start in range(0, len(numbers), _FIELDS))


def shape_problem(spec: TensorSpec, shape: Sequence[int], does: str = "takes") -> str | None:
    """Why `spec` does not allow a tensor of `shape`; None if it does. Sizes with a bound may be smaller.

    The message says what the method `does`: it ``takes`` an input or ``gives`` an output.
    """
    if len(shape) != len(spec.shape):
        return f"has {len(shape)} dimensions, the method {does} {len(spec.shape)}"
    if spec.dynamism == "static" and tuple(shape) != spec.shape:
        return f"has the shape {list(shape)}, the method {does} {list(spec.shape)}"
    for sizes in spec.sizes:
        if not sizes.allows(size := shape[sizes.dimension]):
            return f"has size {size} in dimension {sizes.dimension}, the method {does} {sizes}"
    varying = {sizes.dimension for sizes in spec.sizes}
    for dimension, (size, most) in enumerate(zip(shape, spec.shape, strict=True)):
        fixed = bool(varying) and dimension not in varying
        if spec.dynamism == "bound" and (size > most or (fixed and size != most)):
            return f"has the shape {list(shape)}, the method {does} {'' if fixed else 'at most '}{list(spec.shape)}"
    return None
