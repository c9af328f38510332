"""How many bytes the weights of a `.pte` have in each data type: matrices and kernels, not biases, scales and state.

Program constants say their data type. So do the constants of XNNPACK's delegates, whose format is that of
backends/xnnpack/serialization/schema.fbs in ExecuTorch. Other backends keep theirs to themselves.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

from flatbuffers import number_types  # type: ignore[import-untyped]  # ships neither stubs nor py.typed

from ...errors import FileFormatError
from .contents import PteFile
from .tables import U8, U32, U64, Flatbuffer, TableView

_XNNPACK = "XnnpackBackend"
_HEADER = struct.Struct("<4sHII")  # magic, size of the header, place and size of the flatbuffer
_MAGIC, _MAGIC_POSITION = b"XH00", 4
_I16 = number_types.Int16Flags
_DTYPES = {1: "float32", 2: "float16", 3: "int8", 4: "uint8", 6: "int8", 8: "int4", 10: "int4", 14: "bfloat16"}
"""By number of `XNNDatatype`: those of weights."""


class _Graph(IntEnum):
    VALUES = 2
    CONSTANTS = 8


class _Value(IntEnum):
    KIND = 0
    VALUE = 1


class _Tensor(IntEnum):
    DTYPE = 0
    SIZES = 2
    CONSTANT = 3


class _Quantized(IntEnum):
    TENSOR = 0


class _Constant(IntEnum):
    SIZE = 1
    KEY = 2


@dataclass(frozen=True, slots=True)
class WeightBytes:
    """Bytes by data type, largest first, and the backends in whose delegates weights may be that are not counted."""

    sizes: dict[str, int]
    unread: tuple[str, ...]


def weight_bytes(pte: PteFile, content: memoryview) -> WeightBytes:
    """Reads the delegates of a plain file; each weight counts once."""
    found: dict[object, tuple[str, int]] = {
        constant.extent: (constant.tensor.dtype, constant.extent.size)
        for constant in pte.constants
        if not constant.mutable and _is_matrix(constant.tensor.shape)
    }
    unread = dict[str, None]()
    for delegate in (delegate for method in pte.methods for delegate in method.delegates):
        start = delegate.extent.offset
        data = content[start : start + delegate.extent.size]
        try:
            weights = list(_in_xnnpack(data)) if delegate.id == _XNNPACK else None
        except (FileFormatError, struct.error):
            weights = None
        if weights is None:
            unread[delegate.id] = None
        for position, (key, dtype, size) in enumerate(weights or ()):
            found[key or (start, position)] = (dtype, size)
    sizes: dict[str, int] = {}
    for dtype, size in found.values():
        sizes[dtype] = sizes.get(dtype, 0) + size
    return WeightBytes(dict(sorted(sizes.items(), key=lambda item: -item[1])), tuple(unread))


def _in_xnnpack(data: memoryview) -> Iterator[tuple[str, str, int]]:
    """The weights of a delegate: key of their named data, data type and bytes."""
    magic, _, start, size = _HEADER.unpack_from(data, _MAGIC_POSITION)
    if magic != _MAGIC:
        raise FileFormatError("damaged program: a delegate of XNNPACK has no header")
    graph = Flatbuffer(data[start : start + size]).root()
    constants = list(graph.children(_Graph.CONSTANTS))
    for value in graph.children(_Graph.VALUES):
        tensor = _tensor(value)
        if tensor is None:
            continue
        index, dtype = tensor.number(_Tensor.CONSTANT, U32), _DTYPES.get(tensor.number(_Tensor.DTYPE, _I16))
        if dtype and 0 < index < len(constants) and _is_matrix(tensor.numbers(_Tensor.SIZES, U32)):
            yield constants[index].text(_Constant.KEY), dtype, constants[index].number(_Constant.SIZE, U64)


def _tensor(value: TableView) -> TableView | None:
    tensor = value.child(_Value.VALUE)
    quantized = value.number(_Value.KIND, U8) == 2  # the second of the schema's union
    return tensor.child(_Quantized.TENSOR) if tensor and quantized else tensor


def _is_matrix(sizes: Sequence[int]) -> bool:
    return sum(size > 1 for size in sizes) > 1
