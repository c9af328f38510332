"""Values of a method: tensors, scalars and lists."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from math import prod
from typing import Any, Literal

from ...errors import FileFormatError
from . import schema
from .contents import ScalarKind, ScalarSpec, TensorSpec, ValueSpec
from .dtypes import DTYPES, Dtype
from .schema import (
    MAX_DIMENSIONS,
    EValue,
    ExtraTensorInfo,
    KernelTypes,
    ScalarType,
    Tensor,
    TensorDataLocation,
    TensorShapeDynamism,
)
from .tables import BOOL, F64, I8, I32, I64, U8, U32, U64, Node

_DYNAMISM: dict[int, Literal["static", "bound", "unbound"]] = {
    TensorShapeDynamism.STATIC: "static",
    TensorShapeDynamism.DYNAMIC_BOUND: "bound",
    TensorShapeDynamism.DYNAMIC_UNBOUND: "unbound",
}

_LISTS: dict[int, tuple[ScalarKind, IntEnum, Any]] = {
    KernelTypes.INTLIST: ("int_list", schema.IntList.ITEMS, I64),
    KernelTypes.DOUBLELIST: ("double_list", schema.DoubleList.ITEMS, F64),
    KernelTypes.BOOLLIST: ("bool_list", schema.BoolList.ITEMS, BOOL),
    KernelTypes.TENSORLIST: ("tensor_list", schema.TensorList.ITEMS, I32),
    KernelTypes.OPTIONALTENSORLIST: ("optional_tensor_list", schema.OptionalTensorList.ITEMS, I32),
}


@dataclass(frozen=True, slots=True)
class TensorData:
    """Where the file says that a tensor's data is.

    Attributes:
        tensor: the tensor.
        index: which of the constants, or of the mutable segment's tensors, it is; 0 where it has no data in the file.
        mutable_group: which of the mutable segments; None for a constant.
        external: whether the data is in another file, under the tensor's name.
    """

    tensor: TensorSpec
    index: int
    mutable_group: int | None
    external: bool


def read_tensor_data(value: Node) -> TensorData | None:
    """Where a value's data is; None for values that are not tensors or get their data at run time."""
    if value.number(EValue.VAL_TYPE, U8) != KernelTypes.TENSOR:
        return None
    tensor = _member(value)
    info = tensor.child(Tensor.EXTRA_TENSOR_INFO)
    external = info is not None and info.number(ExtraTensorInfo.LOCATION, I8) == TensorDataLocation.EXTERNAL
    index = tensor.number(Tensor.DATA_BUFFER_IDX, U32)
    if index == 0 and not external:
        return None
    group = None
    if tensor.child(Tensor.ALLOCATION_INFO) is not None:
        group = 0 if info is None else info.number(ExtraTensorInfo.MUTABLE_DATA_SEGMENTS_IDX, U64)
    return TensorData(_tensor(tensor), index, group, external)


def read_value(value: Node) -> ValueSpec:
    """A value as plain data."""
    member = value.number(EValue.VAL_TYPE, U8)
    if member == KernelTypes.TENSOR:
        return _tensor(_member(value))
    return _scalar(member, value)


def _tensor(tensor: Node) -> TensorSpec:
    shape = tensor.numbers(Tensor.SIZES, I32)
    if len(shape) > MAX_DIMENSIONS or any(size < 0 for size in shape):
        raise FileFormatError(f"damaged program: a tensor has shape {shape[: MAX_DIMENSIONS + 1]}")
    order = tensor.numbers(Tensor.DIM_ORDER, U8)
    if sorted(order) != list(range(len(shape))):
        raise FileFormatError(f"damaged program: a tensor of shape {shape} has dim order {order[: MAX_DIMENSIONS + 1]}")
    dtype = _dtype(tensor.number(Tensor.SCALAR_TYPE, I8))
    dynamism = tensor.number(Tensor.SHAPE_DYNAMISM, I8)
    if dynamism not in _DYNAMISM:
        raise FileFormatError(
            f"damaged program: a tensor has shape dynamism {dynamism}, which the schema does not know"
        )
    info = tensor.child(Tensor.EXTRA_TENSOR_INFO)
    name = "" if info is None else info.text(ExtraTensorInfo.FULLY_QUALIFIED_NAME)
    return TensorSpec(dtype.name, shape, order, _DYNAMISM[dynamism], prod(shape) * dtype.itemsize, name)


def _dtype(number: int) -> Dtype:
    try:
        return DTYPES[ScalarType(number)]
    except ValueError:
        raise FileFormatError(f"a tensor has scalar type {number}, which the schema does not know") from None


def _scalar(member: int, value: Node) -> ScalarSpec:
    match member:
        case KernelTypes.NONE | KernelTypes.NULL:
            return ScalarSpec("none", None)
        case KernelTypes.INT:
            return ScalarSpec("int", _member(value).number(schema.Int.INT_VAL, I64))
        case KernelTypes.BOOL:
            return ScalarSpec("bool", _member(value).number(schema.Bool.BOOL_VAL, BOOL, default=False))
        case KernelTypes.DOUBLE:
            return ScalarSpec("double", _member(value).number(schema.Double.DOUBLE_VAL, F64, 0.0))
        case KernelTypes.STRING:
            return ScalarSpec("string", _member(value).text(schema.String.STRING_VAL))
    if member not in _LISTS:
        raise FileFormatError(f"a value is of kind {member}, which the schema does not know")
    kind, slot, flags = _LISTS[member]
    return ScalarSpec(kind, _member(value).numbers(slot, flags))


def _member(value: Node) -> Node:
    member = value.child(EValue.VAL)
    if member is None:
        raise FileFormatError("damaged program: a value names its kind and has none")
    return member
