"""Element types of tensors: torch's names and their sizes."""

from __future__ import annotations

from dataclasses import dataclass

from .schema import ScalarType


@dataclass(frozen=True, slots=True)
class Dtype:
    """An element type.

    Attributes:
        name: torch's name without ``torch.``, for example ``float32``.
        itemsize: bytes per element, as the runtime counts them (types of less than a byte are one).
    """

    name: str
    itemsize: int


DTYPES = {
    ScalarType.BYTE: Dtype("uint8", 1),
    ScalarType.CHAR: Dtype("int8", 1),
    ScalarType.SHORT: Dtype("int16", 2),
    ScalarType.INT: Dtype("int32", 4),
    ScalarType.LONG: Dtype("int64", 8),
    ScalarType.HALF: Dtype("float16", 2),
    ScalarType.FLOAT: Dtype("float32", 4),
    ScalarType.DOUBLE: Dtype("float64", 8),
    ScalarType.BOOL: Dtype("bool", 1),
    ScalarType.QINT8: Dtype("qint8", 1),
    ScalarType.QUINT8: Dtype("quint8", 1),
    ScalarType.QINT32: Dtype("qint32", 4),
    ScalarType.BFLOAT16: Dtype("bfloat16", 2),
    ScalarType.QUINT4X2: Dtype("quint4x2", 1),
    ScalarType.QUINT2X4: Dtype("quint2x4", 1),
    ScalarType.BITS16: Dtype("bits16", 2),
    ScalarType.FLOAT8E5M2: Dtype("float8_e5m2", 1),
    ScalarType.FLOAT8E4M3FN: Dtype("float8_e4m3fn", 1),
    ScalarType.FLOAT8E5M2FNUZ: Dtype("float8_e5m2fnuz", 1),
    ScalarType.FLOAT8E4M3FNUZ: Dtype("float8_e4m3fnuz", 1),
    ScalarType.UINT16: Dtype("uint16", 2),
    ScalarType.UINT32: Dtype("uint32", 4),
    ScalarType.UINT64: Dtype("uint64", 8),
}
"""Every element type of the schema."""
