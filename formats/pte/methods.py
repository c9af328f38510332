"""Reading the methods of a program, their values, and where the data of their tensors is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from math import prod
from pathlib import PurePath
from typing import Any, Literal

from ...errors import FileFormatError
from . import contents
from . import schema_generated as schema
from .tables import BOOL, F64, I8, I32, I64, U8, U32, U64, TableView, pick

MAX_DIMENSIONS = 16  # limit per tensor: `kTensorDimensionLimit` of the runtime

_DYNAMISM: dict[int, Literal["static", "bound", "unbound"]] = {
    schema.TensorShapeDynamism.STATIC: "static",
    schema.TensorShapeDynamism.DYNAMIC_BOUND: "bound",
    schema.TensorShapeDynamism.DYNAMIC_UNBOUND: "unbound",
}

_NUMBERS: dict[int, tuple[contents.ScalarKind, IntEnum, Any, Any]] = {
    schema.KernelTypes.INT: ("int", schema.Int.INT_VAL, I64, 0),
    schema.KernelTypes.BOOL: ("bool", schema.Bool.BOOL_VAL, BOOL, False),
    schema.KernelTypes.DOUBLE: ("double", schema.Double.DOUBLE_VAL, F64, 0.0),
}

_LISTS: dict[int, tuple[contents.ScalarKind, IntEnum, Any]] = {
    schema.KernelTypes.INTLIST: ("int_list", schema.IntList.ITEMS, I64),
    schema.KernelTypes.DOUBLELIST: ("double_list", schema.DoubleList.ITEMS, F64),
    schema.KernelTypes.BOOLLIST: ("bool_list", schema.BoolList.ITEMS, BOOL),
    schema.KernelTypes.TENSORLIST: ("tensor_list", schema.TensorList.ITEMS, I32),
    schema.KernelTypes.OPTIONALTENSORLIST: ("optional_tensor_list", schema.OptionalTensorList.ITEMS, I32),
}


_INSTRUCTIONS = {
    schema.InstructionArguments.KERNELCALL: "kernel_calls",
    schema.InstructionArguments.DELEGATECALL: "delegate_calls",
    schema.InstructionArguments.MOVECALL: "moves",
    schema.InstructionArguments.JUMPFALSECALL: "jumps",
    schema.InstructionArguments.FREECALL: "frees",
}
"""Fields of `InstructionCounts`."""


@dataclass(frozen=True, slots=True)
class TensorData:
    """The location of a tensor's data, as the file states it."""

    tensor: contents.TensorSpec
    index: int  # of the constant, or of the tensor in the mutable segment; 0 if the file has no data for it
    mutable_group: int | None  # index of the mutable segment; None for a constant
    external: bool  # whether the data is in another file, under the tensor's name


@dataclass(frozen=True, slots=True)
class MethodContents:
    """A method, and all tensor data that its values refer to."""

    method: contents.Method
    data: tuple[TensorData, ...]


def read_method(
    plan: TableView, segments: Sequence[contents.Extent], inline: Sequence[contents.Extent]
) -> MethodContents:
    """Reads one execution plan; `inline` lists delegate data in the flatbuffer. Raises FileFormatError."""
    name = plan.text(schema.ExecutionPlan.NAME)
    values = list(plan.children(schema.ExecutionPlan.VALUES))
    operators = tuple(map(_operator, plan.children(schema.ExecutionPlan.OPERATORS)))
    delegates = tuple(_delegate(node, segments, inline) for node in plan.children(schema.ExecutionPlan.DELEGATES))
    calls, instructions, called = _count(plan, operators, delegates)
    method = contents.Method(
        name=name,
        inputs=_specs(plan, schema.ExecutionPlan.INPUTS, values),
        outputs=_specs(plan, schema.ExecutionPlan.OUTPUTS, values),
        operators=operators,
        operator_calls=tuple(calls[index] for index in range(len(operators))),
        delegates=delegates,
        planned_memory=plan.numbers(schema.ExecutionPlan.NON_CONST_BUFFER_SIZES, I64)[1:],
        instructions=instructions,
        delegated=instructions == contents.InstructionCounts(delegate_calls=1) and _passes_everything_on(plan),
        called=called,
    )
    return MethodContents(method, tuple(data for data in map(_tensor_data, values) if data is not None))


def read_constants(
    program: TableView, segments: Sequence[contents.Extent], uses: Iterable[TensorData]
) -> tuple[contents.ConstantTensor, ...]:
    """The tensor data in the file that methods use, each once, by offset; FileFormatError if it is not there."""
    inline = [node.extent(schema.Buffer.STORAGE) for node in program.children(schema.Program.CONSTANT_BUFFER)]
    constants = _group(program.child(schema.Program.CONSTANT_SEGMENT), segments)
    mutable = [_group(node, segments) for node in program.children(schema.Program.MUTABLE_DATA_SEGMENTS)]
    tensors: dict[tuple[int | None, int], contents.ConstantTensor] = {}
    for use in uses:
        if use.external:
            continue
        if use.mutable_group is not None:
            constant = _in_segment(pick(mutable, use.mutable_group, "mutable segment"), use)
        elif inline:
            data, size = pick(inline, use.index, "constant"), use.tensor.nbytes
            if size > data.size:
                raise FileFormatError(f"damaged program: a tensor needs {size} bytes, its data has {data.size}")
            extent = contents.Extent(data.offset, size)
            constant = contents.ConstantTensor(use.tensor, extent, None, mutable=False)
        else:
            constant = _in_segment(constants, use)
        largest = tensors.setdefault((use.mutable_group, use.index), constant)
        if largest.extent.size < constant.extent.size:
            tensors[use.mutable_group, use.index] = constant
    return tuple(sorted(tensors.values(), key=lambda constant: constant.extent))


def read_calls(plan: TableView) -> Iterator[contents.KernelCall]:
    """The calls of kernels in one execution plan, in its order; raises FileFormatError as `read_method`."""
    name = plan.text(schema.ExecutionPlan.NAME)
    operators = [_operator(node) for node in plan.children(schema.ExecutionPlan.OPERATORS)]
    values = list(plan.children(schema.ExecutionPlan.VALUES))

    @cache  # many calls share a value, and each read is charged
    def described(index: int) -> str:
        return _described(values, index)

    for chain in plan.children(schema.ExecutionPlan.CHAINS):
        traces = list(chain.children(schema.Chain.STACKTRACE))
        for position, instruction in enumerate(chain.children(schema.Chain.INSTRUCTIONS)):
            if instruction.number(schema.Instruction.INSTR_ARGS_TYPE, U8) != schema.InstructionArguments.KERNELCALL:
                continue
            call = _arguments(instruction)
            operator = pick(operators, call.number(schema.KernelCall.OP_INDEX, I32), "operator")
            tensors = filter(None, map(described, call.numbers(schema.KernelCall.ARGS, I32)))
            line = _line(traces[position]) if position < len(traces) else ""
            yield contents.KernelCall(name, operator, f"v1/{'|'.join(tensors)}".removesuffix("/"), line)


def _described(values: Sequence[TableView], index: int) -> str:
    """The part of `KernelCall.key` for a value; empty if it is neither a tensor nor a list of tensors."""
    value = pick(values, index, "value")
    match value.number(schema.EValue.VAL_TYPE, U8):
        case schema.KernelTypes.TENSOR:
            tensor = _member(value)
            order = ",".join(map(str, tensor.numbers(schema.Tensor.DIM_ORDER, U8)))
            return f"{tensor.number(schema.Tensor.SCALAR_TYPE, I8)};{order}"
        case schema.KernelTypes.TENSORLIST | schema.KernelTypes.OPTIONALTENSORLIST:
            numbers = (number for number in _member(value).numbers(schema.TensorList.ITEMS, I32) if number >= 0)
            items = (pick(values, number, "value") for number in numbers)
            tensors = (item for item in items if item.number(schema.EValue.VAL_TYPE, U8) == schema.KernelTypes.TENSOR)
            first = next(tensors, None)
            return f"[{_described([first], 0)}]" if first else ""
    return ""


def _line(trace: TableView) -> str:
    """The innermost frame of an instruction that is not in an installed package, or else the innermost one."""
    frames = [(frame.text(schema.Frame.FILENAME), frame) for frame in trace.children(schema.FrameList.ITEMS)]
    users = [frame for frame in frames if "/site-packages/" not in frame[0]]
    if not frames:
        return ""
    file, frame = (users or frames)[-1]
    return f"{PurePath(file).name}:{frame.number(schema.Frame.LINENO, I32)} in {frame.text(schema.Frame.NAME)}"


def _specs(plan: TableView, slot: schema.ExecutionPlan, values: Sequence[TableView]) -> tuple[contents.ValueSpec, ...]:
    return tuple(_value(pick(values, index, "value")) for index in plan.numbers(slot, I32))


def _operator(node: TableView) -> str:
    name, overload = node.text(schema.Operator.NAME), node.text(schema.Operator.OVERLOAD)
    return f"{name}.{overload}" if overload else name


def _delegate(
    node: TableView, segments: Sequence[contents.Extent], inline: Sequence[contents.Extent]
) -> contents.Delegate:
    backend = node.text(schema.BackendDelegate.ID)
    processed = node.child(schema.BackendDelegate.PROCESSED)
    if processed is None:
        raise FileFormatError(f"damaged program: a delegate of {backend!r} has no data")
    index = processed.number(schema.BackendDelegateDataReference.INDEX, U32)
    match processed.number(schema.BackendDelegateDataReference.LOCATION, I8):
        case schema.DataLocation.INLINE:
            return contents.Delegate(backend, "inline", None, pick(inline, index, "inline delegate data"))
        case schema.DataLocation.SEGMENT:
            return contents.Delegate(backend, "segment", index, pick(segments, index, "segment"))
        case location:
            raise FileFormatError(f"a delegate of {backend!r} has data at location {location}, unknown to the schema")


def _count(
    plan: TableView, operators: Sequence[str], delegates: Sequence[contents.Delegate]
) -> tuple[Counter[int], contents.InstructionCounts, tuple[str, ...]]:
    """Calls by operator, instructions by kind, and what each instruction calls."""
    called: list[str] = []
    calls: Counter[int] = Counter()
    kinds: Counter[int] = Counter()
    for chain in plan.children(schema.ExecutionPlan.CHAINS):
        for instruction in chain.children(schema.Chain.INSTRUCTIONS):
            kind = instruction.number(schema.Instruction.INSTR_ARGS_TYPE, U8)
            if kind not in _INSTRUCTIONS:
                raise FileFormatError(f"an instruction is of kind {kind}, which the schema does not know")
            kinds[kind] += 1
            called.append("")
            if kind == schema.InstructionArguments.KERNELCALL:
                index = _arguments(instruction).number(schema.KernelCall.OP_INDEX, I32)
                called[-1] = pick(operators, index, "operator")
                calls[index] += 1
            elif kind == schema.InstructionArguments.DELEGATECALL:
                index = _arguments(instruction).number(schema.DelegateCall.DELEGATE_INDEX, I32)
                called[-1] = pick(delegates, index, "delegate").id
    counts = contents.InstructionCounts(**{field: kinds[kind] for kind, field in _INSTRUCTIONS.items()})
    return calls, counts, tuple(called)


def _passes_everything_on(plan: TableView) -> bool:
    """Whether the only instruction, a delegate call, has the method's inputs and outputs as arguments, in their order.

    A method that returns one value twice has one of the delegate's two equal outputs in both places. Every output of a
    partition is used, so an unused one can only be the other of the two.
    """
    (call,) = (
        instruction
        for chain in plan.children(schema.ExecutionPlan.CHAINS)
        for instruction in chain.children(schema.Chain.INSTRUCTIONS)
    )
    inputs, outputs = plan.numbers(schema.ExecutionPlan.INPUTS, I32), plan.numbers(schema.ExecutionPlan.OUTPUTS, I32)
    arguments = _arguments(call).numbers(schema.DelegateCall.ARGS, I32)
    written = arguments[len(inputs) :]
    if arguments[: len(inputs)] != inputs or len(written) != len(outputs):
        return False
    in_place = {output for output, argument in zip(outputs, written, strict=True) if output == argument}
    return set(outputs) <= in_place


def _arguments(instruction: TableView) -> TableView:
    arguments = instruction.child(schema.Instruction.INSTR_ARGS)
    if arguments is None:
        raise FileFormatError("damaged program: an instruction names its kind and has no arguments")
    return arguments


def _tensor_data(value: TableView) -> TensorData | None:
    """None for values that are not tensors or get their data at run time."""
    if value.number(schema.EValue.VAL_TYPE, U8) != schema.KernelTypes.TENSOR:
        return None
    tensor = _member(value)
    info = tensor.child(schema.Tensor.EXTRA_TENSOR_INFO)
    location = info and info.number(schema.ExtraTensorInfo.LOCATION, I8)
    external = location == schema.TensorDataLocation.EXTERNAL
    index = tensor.number(schema.Tensor.DATA_BUFFER_IDX, U32)
    if index == 0 and not external:
        return None
    group = None
    if tensor.child(schema.Tensor.ALLOCATION_INFO) is not None:
        group = 0 if info is None else info.number(schema.ExtraTensorInfo.MUTABLE_DATA_SEGMENTS_IDX, U64)
    return TensorData(_tensor(tensor), index, group, external)


def _tensor(tensor: TableView) -> contents.TensorSpec:
    shape = tensor.numbers(schema.Tensor.SIZES, I32)
    if len(shape) > MAX_DIMENSIONS or any(size < 0 for size in shape):
        raise FileFormatError(f"damaged program: a tensor has shape {shape[: MAX_DIMENSIONS + 1]}")
    order = tensor.numbers(schema.Tensor.DIM_ORDER, U8)
    if sorted(order) != list(range(len(shape))):
        raise FileFormatError(f"damaged program: a tensor of shape {shape} has dim order {order[: MAX_DIMENSIONS + 1]}")
    dtype = _dtype(tensor.number(schema.Tensor.SCALAR_TYPE, I8))
    dynamism = tensor.number(schema.Tensor.SHAPE_DYNAMISM, I8)
    if dynamism not in _DYNAMISM:
        raise FileFormatError(f"damaged program: a tensor has shape dynamism {dynamism}, unknown to the schema")
    info = tensor.child(schema.Tensor.EXTRA_TENSOR_INFO)
    name = "" if info is None else info.text(schema.ExtraTensorInfo.FULLY_QUALIFIED_NAME)
    return contents.TensorSpec(dtype.name, shape, order, _DYNAMISM[dynamism], prod(shape) * dtype.itemsize, name)


def _dtype(number: int) -> contents.Dtype:
    try:
        return contents.DTYPES[schema.ScalarType(number)]
    except ValueError:
        raise FileFormatError(f"a tensor has scalar type {number}, which the schema does not know") from None


def _value(value: TableView) -> contents.ValueSpec:
    match member := value.number(schema.EValue.VAL_TYPE, U8):
        case schema.KernelTypes.TENSOR:
            return _tensor(_member(value))
        case schema.KernelTypes.NONE | schema.KernelTypes.NULL:
            return contents.ScalarSpec("none", None)
        case schema.KernelTypes.STRING:
            return contents.ScalarSpec("string", _member(value).text(schema.String.STRING_VAL))
    if member in _NUMBERS:
        kind, slot, flags, default = _NUMBERS[member]
        return contents.ScalarSpec(kind, _member(value).number(slot, flags, default))
    if member not in _LISTS:
        raise FileFormatError(f"a value is of kind {member}, which the schema does not know")
    kind, slot, flags = _LISTS[member]
    return contents.ScalarSpec(kind, _member(value).numbers(slot, flags))


def _member(value: TableView) -> TableView:
    member = value.child(schema.EValue.VAL)
    if member is None:
        raise FileFormatError("damaged program: a value names its kind and has none")
    return member


@dataclass(frozen=True, slots=True)
class _Group:
    """A segment of tensor data; `offsets` count from its start, one per tensor."""

    index: int
    segment: contents.Extent
    offsets: tuple[int, ...]


def _group(node: TableView | None, segments: Sequence[contents.Extent]) -> _Group:
    offsets = () if node is None else node.numbers(schema.SubsegmentOffsets.OFFSETS, U64)
    if node is None or not offsets:
        return _Group(0, contents.Extent(0, 0), ())
    index = node.number(schema.SubsegmentOffsets.SEGMENT_INDEX, U32)
    return _Group(index, pick(segments, index, "segment"), offsets)


def _in_segment(group: _Group, use: TensorData) -> contents.ConstantTensor:
    start = pick(group.offsets, use.index, "constant")
    if start + use.tensor.nbytes > group.segment.size:
        raise FileFormatError(
            f"damaged program: a tensor of {use.tensor.nbytes} bytes at {start} does not fit segment {group.index} "
            f"of {group.segment.size} bytes"
        )
    extent = contents.Extent(group.segment.offset + start, use.tensor.nbytes)
    return contents.ConstantTensor(use.tensor, extent, group.index, use.mutable_group is not None)
