"""Where things stand in ExecuTorch's program flatbuffer: field slots, union members, scalar types.

Source: ``executorch/exir/_serialize/program.fbs`` and ``scalar_type.fbs`` of executorch 1.5.1. Each class carries the
name of a table, union or enum of that schema, each member the upper-case name of a field or value; a union field
takes two slots, the type and then the value. A test compares them with the schema of the installed executorch.
"""

from __future__ import annotations

from enum import IntEnum

IDENTIFIER = b"ET12"
"""File identifier of the schema: bytes 4 to 8 of every file."""

MAX_DIMENSIONS = 16
"""Most dimensions a tensor may have: `kTensorDimensionLimit` of the runtime."""


class Program(IntEnum):
    """Slots of the root table."""

    VERSION = 0
    EXECUTION_PLAN = 1
    CONSTANT_BUFFER = 2
    BACKEND_DELEGATE_DATA = 3
    SEGMENTS = 4
    CONSTANT_SEGMENT = 5
    MUTABLE_DATA_SEGMENTS = 6
    NAMED_DATA = 7


class ExecutionPlan(IntEnum):
    """Slots of a method."""

    NAME = 0
    VALUES = 2
    INPUTS = 3
    OUTPUTS = 4
    CHAINS = 5
    OPERATORS = 6
    DELEGATES = 7
    NON_CONST_BUFFER_SIZES = 8


class EValue(IntEnum):
    """Slots of a value: a union `KernelTypes`."""

    VAL_TYPE = 0
    VAL = 1


class KernelTypes(IntEnum):
    """Members of the union in a value; 0 is none of them."""

    NONE = 0
    NULL = 1
    INT = 2
    BOOL = 3
    DOUBLE = 4
    TENSOR = 5
    STRING = 6
    INTLIST = 7
    DOUBLELIST = 8
    BOOLLIST = 9
    TENSORLIST = 10
    OPTIONALTENSORLIST = 11


class Tensor(IntEnum):
    """Slots of a tensor."""

    SCALAR_TYPE = 0
    SIZES = 2
    DIM_ORDER = 3
    DATA_BUFFER_IDX = 5
    ALLOCATION_INFO = 6
    SHAPE_DYNAMISM = 8
    EXTRA_TENSOR_INFO = 9


class TensorShapeDynamism(IntEnum):
    """What a tensor's sizes mean."""

    STATIC = 0
    DYNAMIC_BOUND = 1
    DYNAMIC_UNBOUND = 2


class ExtraTensorInfo(IntEnum):
    """Slots of what few tensors have."""

    MUTABLE_DATA_SEGMENTS_IDX = 0
    FULLY_QUALIFIED_NAME = 1
    LOCATION = 2


class TensorDataLocation(IntEnum):
    """Whether a tensor's data is in this file."""

    SEGMENT = 0
    EXTERNAL = 1


class Int(IntEnum):
    """Slots of an integer."""

    INT_VAL = 0


class Bool(IntEnum):
    """Slots of a boolean."""

    BOOL_VAL = 0


class Double(IntEnum):
    """Slots of a float."""

    DOUBLE_VAL = 0


class String(IntEnum):
    """Slots of a string."""

    STRING_VAL = 0


class IntList(IntEnum):
    """Slots of a list of integers: the items are indices of values, as in lists of tensors."""

    ITEMS = 0


class DoubleList(IntEnum):
    """Slots of a list of floats."""

    ITEMS = 0


class BoolList(IntEnum):
    """Slots of a list of booleans."""

    ITEMS = 0


class TensorList(IntEnum):
    """Slots of a list of tensors: indices of values."""

    ITEMS = 0


class OptionalTensorList(IntEnum):
    """Slots of a list of tensors, some missing: indices of values."""

    ITEMS = 0


class Operator(IntEnum):
    """Slots of an operator."""

    NAME = 0
    OVERLOAD = 1


class Chain(IntEnum):
    """Slots of a chain of instructions."""

    INSTRUCTIONS = 2


class Instruction(IntEnum):
    """Slots of an instruction: a union `InstructionArguments`."""

    INSTR_ARGS_TYPE = 0
    INSTR_ARGS = 1


class InstructionArguments(IntEnum):
    """Members of the union in an instruction; 0 is none of them."""

    NONE = 0
    KERNELCALL = 1
    DELEGATECALL = 2
    MOVECALL = 3
    JUMPFALSECALL = 4
    FREECALL = 5


class KernelCall(IntEnum):
    """Slots of a call of an operator."""

    OP_INDEX = 0


class DelegateCall(IntEnum):
    """Slots of a call of a delegate."""

    DELEGATE_INDEX = 0
    ARGS = 1


class BackendDelegate(IntEnum):
    """Slots of a delegate."""

    ID = 0
    PROCESSED = 1


class BackendDelegateDataReference(IntEnum):
    """Slots of where a delegate's data is."""

    LOCATION = 0
    INDEX = 1


class DataLocation(IntEnum):
    """Which list a delegate's data index is an index of."""

    INLINE = 0
    SEGMENT = 1


class Buffer(IntEnum):
    """Slots of a constant inside the flatbuffer (files written before September 2024)."""

    STORAGE = 0


class BackendDelegateInlineData(IntEnum):
    """Slots of delegate data inside the flatbuffer."""

    DATA = 0


class DataSegment(IntEnum):
    """Slots of a segment."""

    OFFSET = 0
    SIZE = 1


class SubsegmentOffsets(IntEnum):
    """Slots of the tensors' offsets inside a segment."""

    SEGMENT_INDEX = 0
    OFFSETS = 1


class NamedData(IntEnum):
    """Slots of a named blob."""

    KEY = 0
    SEGMENT_INDEX = 1


class ScalarType(IntEnum):
    """Element types."""

    BYTE = 0
    CHAR = 1
    SHORT = 2
    INT = 3
    LONG = 4
    HALF = 5
    FLOAT = 6
    DOUBLE = 7
    BOOL = 11
    QINT8 = 12
    QUINT8 = 13
    QINT32 = 14
    BFLOAT16 = 15
    QUINT4X2 = 16
    QUINT2X4 = 17
    BITS16 = 22
    FLOAT8E5M2 = 23
    FLOAT8E4M3FN = 24
    FLOAT8E5M2FNUZ = 25
    FLOAT8E4M3FNUZ = 26
    UINT16 = 27
    UINT32 = 28
    UINT64 = 29
