"""Inputs of methods: the shapes that a program takes, random inputs within them, and names for people."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import sympy
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils._sympy.value_ranges import ValueRanges

from ...errors import SourceError
from ..stage import Progressed


def stored_cases(stored: Mapping[str, Any], drawn: int) -> Iterator[tuple[str, Sequence[Any], Sequence[Any]]]:
    """Label, flat inputs and eager's flat outputs of all examples, and then of some of the random inputs."""
    real = len(stored["inputs"]) - stored["drawn"]
    pairs = list(zip(stored["inputs"], stored["outputs"], strict=True))[: real + drawn]
    for number, (flat, expected) in enumerate(pairs):
        yield f"example {number}" if number < real else f"drawn {number - real}", flat, expected


_UNBOUNDED = 1 << 31  # torch.export writes "no upper bound" as a number beyond any real size

Sample = TypeVar("Sample")


def with_progress(samples: Iterable[Sample], total: int | None, progressed: Progressed) -> Iterator[Sample]:
    """The samples; reports each one as done when the next one is requested."""
    for done, sample in enumerate(samples, 1):
        yield sample
        progressed(done, total)


Shape = list[sympy.Expr]
"""Sizes, as expressions over the program's symbols."""


def input_shapes(program: ExportedProgram) -> list[Shape | None]:
    """Shape of each flat user input of an ATen program; None for those that are not tensors."""
    return [_shape(value) for value in _traced_inputs(program)]


def check_fits(program: ExportedProgram, flat: Sequence[Any], what: str) -> None:
    """Checks that a program can be called with flat inputs.

    Raises:
        SourceError: the number of inputs differs, ExecuTorch does not take a value, or the program was not exported
            for a dtype or size.
    """
    traced = _traced_inputs(program)
    shapes = [_shape(value) for value in traced]
    if len(shapes) != len(flat):
        raise SourceError(f"{what} has {len(flat)} tensors and values, the first one has {len(shapes)}")
    sizes: dict[sympy.Symbol, int] = {}
    for position, (shape, value) in enumerate(zip(shapes, flat, strict=True)):
        if problem := _unsuitable(value):
            raise SourceError(f"{what}: input {position} {problem}")
        if shape is None:
            continue
        if not isinstance(value, torch.Tensor) or value.dim() != len(shape):
            raise SourceError(f"{what}: input {position} must be a tensor of {len(shape)} dimensions")
        if value.dtype != traced[position].dtype:
            raise SourceError(f"{what}: input {position} is {value.dtype}, the program takes {traced[position].dtype}")
        for dimension, (expression, size) in enumerate(zip(shape, value.shape, strict=True)):
            if problem := _misfit(program, expression, size, sizes):
                raise SourceError(
                    f"{what}: input {position} has size {size} in dimension {dimension}, {problem}; "
                    "dynamic_shapes says which sizes may vary"
                )


def check_bounded(program: ExportedProgram, method: str) -> None:
    """Checks that every size of an input has an upper bound, for which memory is planned.

    Raises:
        SourceError: naming the input and its dimension.
    """
    for position, shape in enumerate(input_shapes(program)):
        for dimension, expression in enumerate(shape or ()):
            bounds = [program.range_constraints.get(symbol) for symbol in expression.free_symbols]
            if any(found is not None and not _has_upper(found) for found in bounds):
                raise SourceError(
                    f"method {method!r}: dimension {dimension} of input {position} has no upper bound, and ExecuTorch "
                    'plans memory for the largest size; give one, as in Dim("batch", min=1, max=8)'
                )


def _has_upper(bounds: ValueRanges[Any]) -> bool:
    return bool(bounds.upper.is_Integer) and bounds.upper < _UNBOUNDED


def _traced_inputs(program: ExportedProgram) -> list[Any]:
    """The value of each flat user input in the program: fake tensors, and other values as they are."""
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    specs = program.graph_signature.input_specs
    return [nodes[spec.arg.name].meta.get("val") for spec in specs if spec.kind is InputKind.USER_INPUT]


def _shape(value: Any) -> Shape | None:
    if not isinstance(value, torch.Tensor):
        return None
    return [size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size) for size in value.shape]


def _unsuitable(value: Any) -> str | None:
    """Why the runtime does not take an input, if it does not (extension/pybindings/pybindings.cpp)."""
    if not isinstance(value, torch.Tensor):
        fits = value is None or isinstance(value, int | float | bool)
        return None if fits else f"is a {type(value).__name__}; ExecuTorch takes tensors, numbers, bool and None"
    if value.is_contiguous() or (value.dim() == 4 and value.is_contiguous(memory_format=torch.channels_last)):
        return None
    return f"has the strides {value.stride()}; ExecuTorch takes contiguous and channels-last tensors"


def _misfit(program: ExportedProgram, expression: sympy.Expr, size: int, sizes: dict[sympy.Symbol, int]) -> str | None:
    if isinstance(expression, sympy.Symbol) and expression not in sizes:
        sizes[expression] = size
        bounds = program.range_constraints.get(expression)
        if bounds is not None and not bounds.lower <= size <= bounds.upper:
            return f"the program takes {bounds.lower} to {bounds.upper}"
        return None
    wanted = expression.subs(sizes)
    if wanted.is_Integer and int(wanted) != size:
        return f"the program takes {wanted}"
    return None


def random_inputs(program: ExportedProgram, example: Sequence[Any], count: int) -> list[list[Any]]:
    """Random flat inputs for a program.

    The first ones have every dynamic dimension at its lower bound, the second ones at its upper bound (twice the
    example's size where there is none), the others anywhere between. Tensor values are drawn from the example's own
    values, so that indices, masks and probabilities remain valid. Offsets (a vector of ascending integers) ascend from
    the same first one. Equal arguments give equal inputs.
    """
    shapes = input_shapes(program)
    hints = _hints(shapes, example)
    draws = []
    for number in range(count):
        generator = torch.Generator().manual_seed(number)
        sizes = {symbol: _size(program, symbol, hint, number) for symbol, hint in hints.items()}
        draws.append([_like(value, shape, sizes, generator) for value, shape in zip(example, shapes, strict=True)])
    return draws


def _hints(shapes: Sequence[Shape | None], example: Sequence[Any]) -> dict[sympy.Symbol, int]:
    """Size of each symbol in the example, solved for where it is part of an expression."""
    hints: dict[sympy.Symbol, int] = {}
    for shape, value in zip(shapes, example, strict=True):
        for expression, size in zip(shape or (), value.shape if shape else (), strict=True):
            for symbol in sorted(expression.free_symbols, key=str):
                solved = sympy.solve(sympy.Eq(expression, size), symbol)
                hints.setdefault(symbol, int(solved[0]) if solved and solved[0].is_Integer else int(size))
    return hints


def _size(program: ExportedProgram, symbol: sympy.Symbol, hint: int, number: int) -> int:
    bounds = program.range_constraints.get(symbol)
    if bounds is None:
        return hint
    lower = max(1, int(bounds.lower))
    upper = int(bounds.upper) if _has_upper(bounds) else max(lower, 2 * hint)
    if number < 2:
        return (lower, upper)[number]
    return random.Random(f"{symbol}/{number}").randint(lower, upper)  # noqa: S311 - test inputs, not secrets


def _like(value: Any, shape: Shape | None, sizes: dict[sympy.Symbol, int], generator: torch.Generator) -> Any:
    if shape is None or not isinstance(value, torch.Tensor):
        return value
    wanted = [int(expression.subs(sizes)) for expression in shape]
    pool = value.detach().reshape(-1)
    if not pool.numel():
        return torch.zeros(wanted, dtype=value.dtype)
    count = 1
    for size in wanted:
        count *= size
    drawn = pool[torch.randint(pool.numel(), (count,), generator=generator)].reshape(wanted)
    if _are_offsets(value):
        drawn = drawn.sort().values
        drawn[:1] = value[:1]
    if value.dim() == 4 and value.is_contiguous(memory_format=torch.channels_last) and not value.is_contiguous():
        drawn = drawn.contiguous(memory_format=torch.channels_last)
    return drawn


def _are_offsets(value: torch.Tensor) -> bool:
    integers = not (value.is_floating_point() or value.is_complex() or value.dtype == torch.bool)
    return value.dim() == 1 and len(value) > 1 and integers and bool((value.diff() > 0).all())


def prepend_mutated_inputs(flat: Sequence[Any], run: Callable[[], list[Any]]) -> list[Any]:
    """Flat outputs of `run` as a `.pte` returns them: first the inputs that it wrote to, in order, then its outputs."""
    tensors = [value for value in flat if isinstance(value, torch.Tensor) and not value.is_inference()]
    before = [tensor._version for tensor in tensors]  # noqa: SLF001 - the only way to see a write
    outputs = run()
    written = [tensor for tensor, version in zip(tensors, before, strict=True) if tensor._version != version]  # noqa: SLF001 - as above
    return [*(tensor.clone() for tensor in written), *outputs]
