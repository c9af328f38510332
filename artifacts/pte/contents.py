"""What a `.pte` file holds, as plain values. Offsets count bytes from the start of the file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of data behind the flatbuffer, without the padding that follows it."""

    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor value of a method.

    Attributes:
        dtype: element type, for example ``float32``.
        shape: sizes; upper bounds where `dynamism` is ``bound``, without meaning where it is ``unbound``.
        dim_order: dimensions from outermost to innermost in memory.
        dynamism: whether the shape may change between calls.
        nbytes: bytes of a tensor of that shape.
        name: fully qualified name, where the file has it.
    """

    dtype: str
    shape: tuple[int, ...]
    dim_order: tuple[int, ...]
    dynamism: Literal["static", "bound", "unbound"]
    nbytes: int
    name: str = ""


ScalarKind = Literal[
    "none",
    "int",
    "bool",
    "double",
    "string",
    "int_list",
    "double_list",
    "bool_list",
    "tensor_list",
    "optional_tensor_list",
]

Plain = int | float | str | tuple[int, ...] | tuple[float, ...] | None


@dataclass(frozen=True, slots=True)
class ScalarSpec:
    """A value of a method that is not a tensor.

    Attributes:
        kind: what it is.
        value: the constant, or for an input the value it was traced with. Items of ``int_list``, ``tensor_list`` and
            ``optional_tensor_list`` are indices of the method's values, -1 for none.
    """

    kind: ScalarKind
    value: Plain


ValueSpec = TensorSpec | ScalarSpec


@dataclass(frozen=True, slots=True)
class ConstantTensor:
    """The data of a tensor that is in the file.

    Attributes:
        tensor: the first tensor that uses it.
        offset: where its bytes start.
        size: number of bytes, without padding.
        segment: index of the segment it is in; None where it is inside the flatbuffer.
        mutable: whether it is the initial state of a tensor that methods change.
    """

    tensor: TensorSpec
    offset: int
    size: int
    segment: int | None
    mutable: bool


@dataclass(frozen=True, slots=True)
class NamedData:
    """A blob that delegates find by its key. Several keys may name one segment."""

    key: str
    segment: int


@dataclass(frozen=True, slots=True)
class Delegate:
    """A part of a method that a backend runs.

    Attributes:
        id: the backend's id.
        location: whether its data is inside the flatbuffer or a segment.
        segment: index of that segment.
        offset: where its data starts.
        size: bytes of its data, without the named data it uses.
    """

    id: str
    location: Literal["inline", "segment"]
    segment: int | None
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class InstructionCounts:
    """Instructions of a method by kind."""

    kernel_calls: int = 0
    delegate_calls: int = 0
    moves: int = 0
    jumps: int = 0
    frees: int = 0


@dataclass(frozen=True, slots=True)
class Method:
    """An entry point of the program.

    Attributes:
        name: its name.
        inputs: what it takes, in order.
        outputs: what it gives, in order. Results that are inputs passed through are there, too.
        operators: operators with overload, for example ``aten::add.out``, in the file's order.
        operator_calls: number of calls of each of `operators`.
        delegates: in the file's order.
        planned_memory: bytes of each planned memory, without the reserved first entry.
        instructions: counts by kind.
        delegated: whether it is one call of a delegate and nothing else, with all inputs and outputs in their order.
    """

    name: str
    inputs: tuple[ValueSpec, ...]
    outputs: tuple[ValueSpec, ...]
    operators: tuple[str, ...]
    operator_calls: tuple[int, ...]
    delegates: tuple[Delegate, ...]
    planned_memory: tuple[int, ...]
    instructions: InstructionCounts
    delegated: bool = False

    @property
    def constant(self) -> bool:
        """Whether it takes nothing and runs nothing: a constant method, its outputs are the constants."""
        return not self.inputs and self.instructions == InstructionCounts()


@dataclass(frozen=True, slots=True)
class PteFile:
    """A `.pte` file.

    Attributes:
        size: bytes of the file.
        version: schema version that the program names.
        program_size: bytes of the flatbuffer at the file's start, with the extended header.
        segment_base: where segments start; 0 where the file has no extended header.
        methods: in the file's order.
        segments: in the file's order.
        constants: tensor data in the file, by offset.
        external: the tensors whose data is in another file, by name.
        named_data: in the file's order.
    """

    size: int
    version: int
    program_size: int
    segment_base: int
    methods: tuple[Method, ...]
    segments: tuple[Segment, ...]
    constants: tuple[ConstantTensor, ...]
    external: tuple[TensorSpec, ...]
    named_data: tuple[NamedData, ...]

    @property
    def backends(self) -> tuple[str, ...]:
        """Ids of the backends that the file's methods need, each once, sorted."""
        return tuple(sorted({delegate.id for method in self.methods for delegate in method.delegates}))
