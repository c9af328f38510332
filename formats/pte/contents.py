"""Contents of `.pte` files as plain values: methods, inputs, what to share, and extents, from the start of the file."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal, TypeVar

from ...errors import FileFormatError
from .schema_generated import ScalarType

_Bytes = TypeVar("_Bytes", bytes, memoryview)


@dataclass(frozen=True, slots=True, order=True)
class Extent:
    """`size` bytes of a file, from `offset` on."""

    offset: int
    size: int

    @property
    def end(self) -> int:
        return self.offset + self.size

    def of(self, content: _Bytes) -> _Bytes:
        return content[self.offset : self.end]


@dataclass(frozen=True, slots=True)
class Dtype:
    """An element type."""

    name: str  # torch's without ``torch.``, for example ``float32``
    itemsize: int  # bytes per element as the runtime counts them: 1 for types smaller than a byte


DTYPES = {
    ScalarType[member]: Dtype(name, itemsize)
    for member, name, itemsize in (
        ("BYTE", "uint8", 1), ("CHAR", "int8", 1), ("SHORT", "int16", 2), ("INT", "int32", 4), ("LONG", "int64", 8),
        ("HALF", "float16", 2), ("FLOAT", "float32", 4), ("DOUBLE", "float64", 8), ("BOOL", "bool", 1),
        ("QINT8", "qint8", 1), ("QUINT8", "quint8", 1), ("QINT32", "qint32", 4), ("BFLOAT16", "bfloat16", 2),
        ("QUINT4X2", "quint4x2", 1), ("QUINT2X4", "quint2x4", 1), ("BITS16", "bits16", 2),
        ("FLOAT8E5M2", "float8_e5m2", 1), ("FLOAT8E4M3FN", "float8_e4m3fn", 1),
        ("FLOAT8E5M2FNUZ", "float8_e5m2fnuz", 1), ("FLOAT8E4M3FNUZ", "float8_e4m3fnuz", 1), ("UINT16", "uint16", 2),
        ("UINT32", "uint32", 4), ("UINT64", "uint64", 8),
    )
}  # fmt: skip
"""Every element type of the schema."""


@dataclass(frozen=True, slots=True)
class DimensionSizes:
    """The sizes that a dimension of an input may have; as text, ``1 to 8`` or ``2 to 64 in steps of 2``."""

    dimension: int
    least: int
    most: int
    step: int

    def allows(self, size: int) -> bool:
        return self.least <= size <= self.most and (size - self.least) % self.step == 0

    def __str__(self) -> str:
        if self.least == self.most:
            return str(self.least)
        return f"{self.least} to {self.most}" + (f" in steps of {self.step}" if self.step > 1 else "")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor value of a method."""

    dtype: str
    shape: tuple[int, ...]  # upper bounds if `dynamism` is ``bound``, meaningless if it is ``unbound``
    dim_order: tuple[int, ...]  # dimensions from outermost to innermost in memory
    dynamism: Literal["static", "bound", "unbound"]  # whether the shape may change between calls
    nbytes: int  # of a tensor of that shape
    name: str = ""  # fully qualified; empty if the file does not have it
    sizes: tuple[DimensionSizes, ...] = ()  # of an input's varying dimensions, if the metadata has them

    def lay_out(self, tensor: Any) -> Any:
        """A tensor of this rank with its dimensions in this order in memory; a view where they are already.

        The runtime takes a tensor's bytes as they lie in memory, and does not compare the order.
        """
        order = [self.dim_order.index(dimension) for dimension in range(len(self.dim_order))]
        return tensor.permute(self.dim_order).contiguous().permute(order)


ScalarKind = Literal[
    "none", "int", "bool", "double", "string", "int_list", "double_list", "bool_list", "tensor_list",
    "optional_tensor_list",
]  # fmt: skip

Plain = int | float | str | tuple[int, ...] | tuple[float, ...] | None


@dataclass(frozen=True, slots=True)
class ScalarSpec:
    """A value of a method that is not a tensor.

    Items of ``int_list``, ``tensor_list`` and ``optional_tensor_list`` are indices of the method's values, -1 for none.
    """

    kind: ScalarKind
    value: Plain  # the constant, or for an input the value it was traced with


ValueSpec = TensorSpec | ScalarSpec


@dataclass(frozen=True, slots=True)
class ConstantTensor:
    """Tensor data in the file."""

    tensor: TensorSpec  # the first one that uses it
    extent: Extent  # without padding
    segment: int | None  # index of the segment that contains it; None if it is inside the flatbuffer
    mutable: bool  # whether it is the initial state of a tensor that methods change


METADATA_PREFIX = "metadata."
"""Begins the keys of named data that describes the model, and that no delegate looks for."""


@dataclass(frozen=True, slots=True)
class NamedData:
    """A blob that is found by its key. Several keys may name one segment."""

    key: str
    segment: int


@dataclass(frozen=True, slots=True)
class Delegate:
    """A part of a method that a backend runs."""

    id: str
    location: Literal["inline", "segment"]
    segment: int | None  # index of that segment
    extent: Extent  # its data, without the named data that it uses


@dataclass(frozen=True, slots=True)
class KernelCall:
    """A call of an operator that no delegate took.

    The `key` says which kernel the runtime looks up: ``v1/`` and, for each argument that is a tensor, the number of its
    dtype and its dim order, as in ``v1/6;0,1|6;0,1``. A list of tensors is in brackets, with those of the first one:
    ExecuTorch's selective build counts lists (codegen/tools/selective_build.cpp), its runtime passes over them
    (runtime/executor/method.cpp, 1.5.1). ``v1`` if there are none.
    """

    method: str
    operator: str
    key: str
    line: str = ""  # where the model calls it, as ``model.py:12 in forward``; empty without stack traces


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
    """An entry point of the program."""

    name: str
    inputs: tuple[ValueSpec, ...]
    outputs: tuple[ValueSpec, ...]  # including inputs that are passed through
    operators: tuple[str, ...]  # with overload, for example ``aten::add.out``, in the file's order
    operator_calls: tuple[int, ...]  # number of calls of each of `operators`
    delegates: tuple[Delegate, ...]
    planned_memory: tuple[int, ...]  # bytes of each planned buffer, without the reserved first entry
    instructions: InstructionCounts
    delegated: bool = False  # a single delegate call takes all inputs and returns all outputs in their order
    called: tuple[str, ...] = ()  # what each instruction calls: an operator, a backend, or "" for jumps and others

    @property
    def constant(self) -> bool:
        """Whether it takes no inputs and runs no instructions: its outputs are constants."""
        return not self.inputs and self.instructions == InstructionCounts()

    @property
    def shares_state(self) -> bool:
        """Whether it has an arena for state that it shares with other methods of the program."""
        return len(self.planned_memory) > 1

    def lay_out(self, inputs: Sequence[Any]) -> list[Any]:
        """Flat inputs for the runtime, see `TensorSpec.lay_out`. What does not fit the signature stays as it is."""
        specs = [*self.inputs, *[None] * len(inputs)]
        return [
            spec.lay_out(value)
            if isinstance(spec, TensorSpec) and hasattr(value, "permute") and value.dim() == len(spec.dim_order)
            else value
            for value, spec in zip(inputs, specs, strict=False)
        ]


@dataclass(frozen=True, slots=True)
class PteFile:
    """A `.pte` file."""

    size: int
    version: int  # of the program's schema
    program_size: int  # bytes of the flatbuffer at the file's start, including the extended header
    segment_base: int  # where segments start; 0 if the file has no extended header
    methods: tuple[Method, ...]
    # Data after the flatbuffer, in order, without padding. Only named data may lie in another segment, the constants'.
    segments: tuple[Extent, ...]
    constants: tuple[ConstantTensor, ...]  # by offset
    external: tuple[TensorSpec, ...]  # tensors whose data is in another file, by name
    named_data: tuple[NamedData, ...]  # what delegates look up
    metadata: tuple[NamedData, ...] = ()  # describes the model; keys have the prefix `METADATA_PREFIX`

    @property
    def inner_segments(self) -> frozenset[int]:
        """Indices of segments that lie inside of others: named data that operators use as constants, too."""
        inner, end = set(), 0
        for index, segment in sorted(enumerate(self.segments), key=lambda item: (item[1].offset, -item[1].size)):
            if segment.size and segment.end <= end:
                inner.add(index)
            end = max(end, segment.end)
        return frozenset(inner)

    @property
    def backends(self) -> tuple[str, ...]:
        return tuple(sorted({delegate.id for method in self.methods for delegate in method.delegates}))

    @property
    def operators(self) -> tuple[str, ...]:
        """Sorted, with overloads."""
        return tuple(sorted({operator for method in self.methods for operator in method.operators}))

    @property
    def kernel_modules(self) -> tuple[str, ...]:
        """Modules of ExecuTorch's package whose kernels it calls, and which are not loaded with the runtime."""
        spaces = {name.partition("::")[0] for name in self.operators}
        return tuple(module for space, module in _KERNELS.items() if space in spaces)


_KERNELS = {"llama": "executorch.extension.llm.custom_ops.custom_ops"}
"""Namespace of operators to the module that loads their kernels."""


SIZES = "sizes."
"""Begins the keys, behind the prefix of metadata, of the sizes that a method's inputs may have.

A program itself says upper bounds only. An entry is a list of integers (see `metadata`), five for each dimension that
may vary: the input's position, the dimension, the least and the largest size, and the step from one size to the next.
"""

_NUMBERS = 5


def size_entries(sizes: Mapping[str, Sequence[Sequence[int]]]) -> dict[str, tuple[int, ...]]:
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
    if kind != 4 or count % _NUMBERS:
        raise FileFormatError(f"damaged file: sizes of method {method.name!r} are {count} numbers of type {kind}")
    for position, dimension, least, most, step in zip(*[iter(numbers)] * _NUMBERS, strict=True):
        spec = inputs[position] if 0 <= position < len(inputs) else None
        if not isinstance(spec, TensorSpec) or not 0 <= dimension < len(spec.shape) or step < 1 or least > most:
            raise FileFormatError(f"damaged file: method {method.name!r} has sizes that no input of it can have")
        inputs[position] = replace(spec, sizes=(*spec.sizes, DimensionSizes(dimension, least, most, step)))
    return replace(method, inputs=tuple(inputs))


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


Shareable = Mapping[str, tuple[Extent, ...]]
"""Extents of named data that other files may contain, too, such as single weights, by its key; in order of offsets."""

MIN_SHAREABLE = 1024
"""Smaller extents are not stored separately: an object costs more than it saves."""


def shareable_extents(pte: PteFile) -> tuple[Extent, ...]:
    """Extents to store separately, by offset and without overlaps. They do not cover the file.

    These are the tensors, exactly their own bytes so that they equal the weights of programs; the other bytes of
    segments; delegate data inside the flatbuffer; and the bytes outside of program and segments.
    """
    delegates = (delegate for method in pte.methods for delegate in method.delegates)
    inline = [delegate.extent for delegate in delegates if delegate.location == "inline"]
    data = _without_overlaps([*(constant.extent for constant in pte.constants), *inline])
    in_program = [extent for extent in data if extent.offset < pte.program_size]
    after_program = [extent for extent in (*data, *pte.segments) if extent.size and extent.offset >= pte.program_size]
    rest = Extent(pte.program_size, pte.size - pte.program_size)
    large = [extent for extent in in_program if extent.size >= MIN_SHAREABLE]
    return (*large, *cut(rest, inside(rest, after_program)))


def inside(whole: Extent, extents: Iterable[Extent]) -> Iterator[Extent]:
    """Those of the extents that lie in `whole`, counted from its start."""
    for extent in extents:
        if whole.offset <= extent.offset and extent.end <= whole.end:
            yield Extent(extent.offset - whole.offset, extent.size)


def cut(whole: Extent, parts: Iterable[Extent]) -> Iterator[Extent]:
    """The parts of `whole`, which count from its start, and what is between them, as far as it is worth storing."""
    borders = {whole.offset, whole.end}
    borders.update(whole.offset + border for part in parts for border in (part.offset, part.end))
    for start, end in pairwise(sorted(borders)):
        if end - start >= MIN_SHAREABLE:
            yield Extent(start, end - start)


def _without_overlaps(extents: Iterable[Extent]) -> list[Extent]:
    """Sorts by offset. Keeps the first of overlapping extents, and the longest of those that start together."""
    kept: list[Extent] = []
    for extent in sorted(extents, key=lambda extent: (extent.offset, -extent.size)):
        if extent.size and (not kept or extent.offset >= kept[-1].end):
            kept.append(extent)
    return kept
