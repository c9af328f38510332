"""Golden cases: calls with known results, by which a payload checks itself. README.md specifies them."""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

from ...errors import FileFormatError, first_line
from ..pte.contents import DTYPES, Method, TensorSpec, ValueSpec
from ..pte.schema_generated import ScalarType
from .limits import MAX_METHOD, check_golden_size

if TYPE_CHECKING:
    import numpy as np

_MAX_CASES = 64
_MAX_TENSORS = 256
_MAX_RANK = 16
_MAX_DIMENSION = (1 << 31) - 1
_NUMPY = {
    **{ScalarType[name]: f"<u{size}" for name, size in (("BYTE", 1), ("BOOL", 1))},
    **{ScalarType[name]: f"<i{size}" for name, size in (("CHAR", 1), ("SHORT", 2), ("INT", 4), ("LONG", 8))},
    **{ScalarType[name]: f"<f{size}" for name, size in (("HALF", 2), ("FLOAT", 4), ("DOUBLE", 8), ("BFLOAT16", 2))},
}
"""NumPy's name of each dtype that golden tensors may have; it lacks bfloat16."""
_BY_NAME = {DTYPES[dtype].name: dtype for dtype in _NUMPY}


@dataclass(frozen=True, slots=True)
class GoldenTensor:
    """A tensor: its elements as they lie in memory, in the method's order of dimensions."""

    dtype: ScalarType
    sizes: tuple[int, ...]
    content: bytes

    @property
    def is_floating(self) -> bool:
        return _NUMPY[self.dtype].startswith("<f")

    def flipped(self) -> GoldenTensor:
        """The tensor with the sign of each floating-point number changed."""
        last, content = DTYPES[self.dtype].itemsize - 1, bytearray(self.content)
        if self.is_floating:
            content[last :: last + 1] = bytes(byte ^ 0x80 for byte in content[last :: last + 1])
        return replace(self, content=bytes(content))

    def numbers(self) -> np.ndarray[Any, Any]:
        """The elements; floating-point ones as float64."""
        import numpy as np  # noqa: PLC0415 - most readers need none

        if self.dtype == ScalarType.BFLOAT16:
            return (np.frombuffer(self.content, "<u2").astype("<u4") << 16).view("<f4").astype("<f8")
        read = np.frombuffer(self.content, _NUMPY[self.dtype])
        return read.astype("<f8") if self.is_floating else read


@dataclass(frozen=True, slots=True)
class GoldenCase:
    """A call, and what it returns. A stateful method is in its initial state before."""

    method: str
    inputs: tuple[GoldenTensor, ...]
    outputs: tuple[GoldenTensor, ...]
    stateful: bool = False


def write_cases(cases: Sequence[GoldenCase]) -> bytes:
    """The blob of golden cases; raises FileFormatError if readers would refuse it."""
    content = [_numbers(len(cases))]
    for case in cases:
        name = case.method.encode()
        content += [_numbers(case.stateful, len(name)), name, _numbers(len(case.inputs), len(case.outputs))]
        for tensor in (*case.inputs, *case.outputs):
            content += [_numbers(tensor.dtype, len(tensor.sizes), *tensor.sizes), tensor.content]
    blob = b"".join(content)
    check_golden_size(len(blob), "the file")
    read_cases(memoryview(blob))
    return blob


def _numbers(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}I", *numbers)


def read_cases(content: memoryview) -> tuple[GoldenCase, ...]:
    """The golden cases of a blob; raises FileFormatError if it is damaged."""
    reader = _Reader(content)
    cases = tuple(_read_case(reader) for _ in range(reader.number(1, _MAX_CASES, "cases")))
    if reader.position != len(content):
        raise FileFormatError(f"its golden cases end at {reader.position} of {len(content)} bytes")
    return cases


class _Reader:
    def __init__(self, content: memoryview) -> None:
        self.content = content
        self.position = 0

    def take(self, size: int) -> bytes:
        self.position += size
        if self.position > len(self.content):
            raise FileFormatError(f"its golden cases are cut short: they have {len(self.content)} bytes")
        return bytes(self.content[self.position - size : self.position])

    def number(self, least: int, most: int, what: str) -> int:
        number = int.from_bytes(self.take(4), "little")
        if not least <= number <= most:
            raise FileFormatError(f"{what} of its golden cases: {number}; {least} to {most} are possible")
        return number


def _read_case(reader: _Reader) -> GoldenCase:
    stateful = bool(reader.number(0, 1, "flags"))
    name = reader.take(reader.number(1, MAX_METHOD, "bytes of a method"))
    inputs, outputs = (reader.number(0, _MAX_TENSORS, "tensors") for _ in range(2))
    tensors = [_read_tensor(reader) for _ in range(inputs + outputs)]
    return GoldenCase(name.decode(errors="replace"), tuple(tensors[:inputs]), tuple(tensors[inputs:]), stateful)


def _read_tensor(reader: _Reader) -> GoldenTensor:
    dtype, rank = reader.number(0, max(_NUMPY), "dtypes"), reader.number(0, _MAX_RANK, "dimensions")
    if dtype not in list(_NUMPY):
        raise FileFormatError(f"its golden cases have a tensor of dtype {dtype}, which is not possible")
    sizes = tuple(reader.number(1, _MAX_DIMENSION, "sizes") for _ in range(rank))
    size = math.prod(sizes) * DTYPES[ScalarType(dtype)].itemsize
    return GoldenTensor(ScalarType(dtype), sizes, reader.take(size))


def golden_tensors(values: Sequence[Any], specs: Sequence[ValueSpec]) -> tuple[GoldenTensor, ...]:
    """Tensors of torch as the method has them in memory; raises FileFormatError for what cannot be stored."""
    if len(values) != len(specs):
        raise FileFormatError(f"it has {len(values)} values, and the method {len(specs)}")
    return tuple(_golden(value, spec) for value, spec in zip(values, specs, strict=True))


def _golden(value: Any, spec: ValueSpec) -> GoldenTensor:
    dtype = str(getattr(value, "dtype", type(value).__name__)).removeprefix("torch.")
    fits = dtype in _BY_NAME and isinstance(spec, TensorSpec) and value.dim() == len(spec.dim_order)
    if not fits or not isinstance(spec, TensorSpec) or not value.numel():
        raise FileFormatError(f"a value is {dtype}; golden cases have tensors of one element or more, of other types")
    laid_out = value.detach().permute(spec.dim_order).contiguous()
    return GoldenTensor(_BY_NAME[dtype], tuple(value.shape), ctypes.string_at(laid_out.data_ptr(), laid_out.nbytes))


def _to_torch(tensor: GoldenTensor, spec: ValueSpec) -> Any:
    import torch  # noqa: PLC0415 - only who runs a payload gets here

    if not isinstance(spec, TensorSpec) or len(spec.dim_order) != len(tensor.sizes):
        raise FileFormatError("an input does not fit the method")
    flat = torch.frombuffer(bytearray(tensor.content), dtype=getattr(torch, DTYPES[tensor.dtype].name))
    order = spec.dim_order
    laid_out = flat.reshape([tensor.sizes[dimension] for dimension in order])
    return laid_out.permute([order.index(dimension) for dimension in range(len(order))])


Execute = Callable[[Sequence[Any]], Sequence[Any]]
"""Runs a loaded method on flat inputs, and returns its outputs; raises what ExecuTorch's bindings raise."""

_FAILURES = (RuntimeError, ValueError, TypeError, KeyError, MemoryError)


@dataclass(frozen=True, slots=True)
class GoldenCheck:
    """How a payload checks itself: `tolerance` is the allowed ratio of noise to signal, see README.md."""

    blob: memoryview  # of golden cases
    tolerance: float
    repeats: int  # runs of each case

    def problem(self, methods: Iterable[Method], load: Callable[[str], Execute]) -> str:
        """How a payload fails it; empty if it passes.

        Runs the cases of `methods`, loaded by name in their initial state. Raises FileFormatError for damaged cases.
        """
        cases = read_cases(self.blob)
        for method in methods:
            try:
                problem = self._problem([case for case in cases if case.method == method.name], method, load)
            except (*_FAILURES, FileFormatError) as error:
                problem = f"it fails ({first_line(error)})"
            if problem:
                return f"it fails its own check: {problem}"
        return ""

    def _problem(self, cases: Sequence[GoldenCase], method: Method, load: Callable[[str], Execute]) -> str:
        execute: Execute | None = None
        first: dict[int, Returned] = {}
        others: dict[int, Returned] = {}
        for repeat, (index, case) in product(range(self.repeats), enumerate(cases)):
            if execute is None or case.stateful:
                execute = load(method.name)
            outputs = _run(execute, case.inputs, method)
            if problem := _difference(outputs, case.outputs, self.tolerance):
                return f"{problem} in run {repeat + 1} of {self.repeats}"
            if outputs != first.setdefault(index, outputs):
                return f"run {repeat + 1} differs from the first one"
            # Other inputs, for results that are left over from earlier calls. An error is possible, the same each time.
            if self.repeats > 1 and repeat % 2 == 0 and not case.stateful:
                try:
                    other: Returned = _run(execute, [tensor.flipped() for tensor in case.inputs], method)
                except _FAILURES as error:
                    other = first_line(error)
                if other != others.setdefault(index, other):
                    return "it returns other outputs for equal inputs"
        return ""


Returned = tuple[GoldenTensor, ...] | str  # outputs, or the error in their place


def _run(execute: Execute, inputs: Sequence[GoldenTensor], method: Method) -> tuple[GoldenTensor, ...]:
    tensors = [_to_torch(tensor, spec) for tensor, spec in zip(inputs, method.inputs, strict=True)]
    return golden_tensors(execute(tensors), method.outputs)


_MOST = 10
"""How many times the tolerance a single element may be off, as a share of the largest one."""


def _difference(outputs: Sequence[GoldenTensor], golden: Sequence[GoldenTensor], tolerance: float) -> str:
    """How outputs differ from the golden ones by more than is allowed; empty if they do not."""
    if len(outputs) != len(golden):
        return f"it returns {len(outputs)} outputs instead of {len(golden)}"
    problems = (_tensor_problem(output, right, tolerance) for output, right in zip(outputs, golden, strict=True))
    return next((f"output {position} {problem}" for position, problem in enumerate(problems) if problem), "")


def _tensor_problem(output: GoldenTensor, golden: GoldenTensor, tolerance: float) -> str:
    import numpy as np  # noqa: PLC0415 - as above

    if (output.dtype, output.sizes) != (golden.dtype, golden.sizes):
        return "has another dtype or size than the golden one"
    ours, right = output.numbers(), golden.numbers()
    if not golden.is_floating:
        wrong = int((ours != right).sum())
        return f"has {wrong} wrong elements" if wrong > tolerance * right.size else ""
    finite = np.isfinite(right) & np.isfinite(ours)
    if not np.array_equal(ours[~finite], right[~finite], equal_nan=True):
        return "has NaN or infinity where the golden one has none, or lacks one"
    unit = float(np.abs(right[finite]).max(initial=0.0)) or 1.0  # where all is zero, differences count as they are
    with np.errstate(over="ignore", divide="ignore"):
        off, signal = np.abs(ours - right)[finite] / unit, np.square(right[finite] / unit).sum()
        worst, noise = float(off.max(initial=0.0)), float(np.sqrt(np.square(off).sum() / signal)) if off.any() else 0.0
    if noise <= tolerance and worst <= _MOST * tolerance:
        return ""
    return (
        f"is off by {noise:.3g} of its size, an element by {worst:.3g} of the largest one; {tolerance:.3g} is allowed"
    )
