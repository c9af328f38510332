"""Methods of a program, and the tensor data they use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import FileFormatError
from .contents import Delegate, InstructionCounts, Method, Segment, ValueSpec
from .schema import (
    BackendDelegate,
    BackendDelegateDataReference,
    Chain,
    DataLocation,
    DelegateCall,
    ExecutionPlan,
    Instruction,
    InstructionArguments,
    KernelCall,
    Operator,
)
from .tables import I8, I32, I64, U8, U32, Node, pick
from .values import TensorData, read_tensor_data, read_value


@dataclass(frozen=True, slots=True)
class MethodContents:
    """A method, and every tensor data its values refer to."""

    method: Method
    data: tuple[TensorData, ...]


def read_method(plan: Node, segments: Sequence[Segment], inline: Sequence[Segment]) -> MethodContents:
    """Reads one execution plan.

    Args:
        plan: the plan's table.
        segments: the file's segments.
        inline: where the delegate data inside the flatbuffer is.

    Raises:
        FileFormatError: the plan refers to what is not there.
    """
    name = plan.text(ExecutionPlan.NAME)
    values = list(plan.children(ExecutionPlan.VALUES))
    operators = tuple(map(_operator, plan.children(ExecutionPlan.OPERATORS)))
    delegates = tuple(_delegate(node, segments, inline) for node in plan.children(ExecutionPlan.DELEGATES))
    calls, instructions = _count(plan, len(operators), len(delegates))
    method = Method(
        name=name,
        inputs=_specs(plan, ExecutionPlan.INPUTS, values),
        outputs=_specs(plan, ExecutionPlan.OUTPUTS, values),
        operators=operators,
        operator_calls=tuple(calls[index] for index in range(len(operators))),
        delegates=delegates,
        planned_memory=plan.numbers(ExecutionPlan.NON_CONST_BUFFER_SIZES, I64)[1:],
        instructions=instructions,
        delegated=instructions == InstructionCounts(delegate_calls=1) and _passes_everything_on(plan),
    )
    return MethodContents(method, tuple(data for data in map(read_tensor_data, values) if data is not None))


def _specs(plan: Node, slot: ExecutionPlan, values: Sequence[Node]) -> tuple[ValueSpec, ...]:
    return tuple(read_value(pick(values, index, "value")) for index in plan.numbers(slot, I32))


def _operator(node: Node) -> str:
    name, overload = node.text(Operator.NAME), node.text(Operator.OVERLOAD)
    return f"{name}.{overload}" if overload else name


def _delegate(node: Node, segments: Sequence[Segment], inline: Sequence[Segment]) -> Delegate:
    backend = node.text(BackendDelegate.ID)
    processed = node.child(BackendDelegate.PROCESSED)
    if processed is None:
        raise FileFormatError(f"damaged program: a delegate of {backend!r} has no data")
    index = processed.number(BackendDelegateDataReference.INDEX, U32)
    match processed.number(BackendDelegateDataReference.LOCATION, I8):
        case DataLocation.INLINE:
            data = pick(inline, index, "inline delegate data")
            return Delegate(backend, "inline", None, data.offset, data.size)
        case DataLocation.SEGMENT:
            data = pick(segments, index, "segment")
            return Delegate(backend, "segment", index, data.offset, data.size)
        case location:
            raise FileFormatError(
                f"a delegate of {backend!r} has its data at location {location}, unknown to the schema"
            )


def _count(plan: Node, operators: int, delegates: int) -> tuple[Counter[int], InstructionCounts]:
    """Calls of each operator by index, and instructions by kind."""
    calls: Counter[int] = Counter()
    kinds: Counter[int] = Counter()
    for chain in plan.children(ExecutionPlan.CHAINS):
        for instruction in chain.children(Chain.INSTRUCTIONS):
            kind = instruction.number(Instruction.INSTR_ARGS_TYPE, U8)
            kinds[kind] += 1
            match kind:
                case InstructionArguments.KERNELCALL:
                    index = _arguments(instruction).number(KernelCall.OP_INDEX, I32)
                    calls[pick(range(operators), index, "operator")] += 1
                case InstructionArguments.DELEGATECALL:
                    index = _arguments(instruction).number(DelegateCall.DELEGATE_INDEX, I32)
                    pick(range(delegates), index, "delegate")
                case InstructionArguments.MOVECALL | InstructionArguments.JUMPFALSECALL | InstructionArguments.FREECALL:
                    pass
                case _:
                    raise FileFormatError(f"an instruction is of kind {kind}, which the schema does not know")
    return calls, InstructionCounts(
        kernel_calls=kinds[InstructionArguments.KERNELCALL],
        delegate_calls=kinds[InstructionArguments.DELEGATECALL],
        moves=kinds[InstructionArguments.MOVECALL],
        jumps=kinds[InstructionArguments.JUMPFALSECALL],
        frees=kinds[InstructionArguments.FREECALL],
    )


def _passes_everything_on(plan: Node) -> bool:
    """Whether the only instruction, which calls a delegate, is given the method's inputs and outputs in their order.

    A method that returns one value twice has one of the delegate's two equal outputs in both places. Partitions give
    nothing that is not used, so an output without a use can only be such a twin.
    """
    (call,) = (each for chain in plan.children(ExecutionPlan.CHAINS) for each in chain.children(Chain.INSTRUCTIONS))
    inputs, outputs = plan.numbers(ExecutionPlan.INPUTS, I32), plan.numbers(ExecutionPlan.OUTPUTS, I32)
    passed = _arguments(call).numbers(DelegateCall.ARGS, I32)
    given = passed[len(inputs) :]
    if passed[: len(inputs)] != inputs or len(given) != len(outputs):
        return False
    in_place = {output for output, place in zip(outputs, given, strict=True) if output == place}
    return set(outputs) <= in_place


def _arguments(instruction: Node) -> Node:
    arguments = instruction.child(Instruction.INSTR_ARGS)
    if arguments is None:
        raise FileFormatError("damaged program: an instruction names its kind and has no arguments")
    return arguments
