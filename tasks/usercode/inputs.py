"""Inputs of methods: the shapes that a program takes, random inputs within them, and names for people."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import sympy
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from ...errors import SourceError
from ..engine.stage import Progressed
from ..upstream.compat import ValueRanges, pytree


def own_tensors(inputs: Any) -> Any:
    """A tree of inputs in which each tensor has memory of its own, in the order that its shape says.

    torch.export takes one tensor in two places for one input. Memory is contiguous, or channels-last where it was.
    """
    with torch.inference_mode(mode=False):  # else the copies could not be traced
        return pytree.tree_map(_own, inputs)


def _own(value: Any) -> Any:
    if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout != torch.strided:
        return value
    order = torch.channels_last if _is_channels_last(value) else torch.contiguous_format
    return value.detach().clone(memory_format=order)


def _is_channels_last(value: torch.Tensor) -> bool:
    """Whether a tensor is that and nothing else: with one channel, or one pixel, it is contiguous as well."""
    return value.dim() == 4 and not value.is_contiguous() and value.is_contiguous(memory_format=torch.channels_last)


def draw_count(requested: int, *, dynamic: bool) -> int:
    """How many random inputs to try: both ends of dynamic sizes and one between, where several are requested."""
    return max(requested, 3) if dynamic and requested > 1 else requested


class StoredCase(NamedTuple):
    """Flat inputs of a method, and what eager makes of them."""

    label: str  # ``example 0``, ``sample 2``, ``drawn 1``
    inputs: Sequence[Any]
    expected: Sequence[Any]  # eager's flat outputs
    exact: Sequence[Any] | None = None  # those in float32, of a model that rounds to 16 bits


def stored_cases(stored: Mapping[str, Any], drawn: int) -> Iterator[StoredCase]:
    """All examples, the calibration samples that follow them, and then some of the random inputs."""
    real = len(stored["inputs"]) - stored["drawn"]
    examples = real - stored.get("samples", 0)
    exact = stored.get("exact") or [None] * len(stored["inputs"])
    cases = list(zip(stored["inputs"], stored["outputs"], exact, strict=True))
    for number, case in enumerate(cases[: real + draw_count(drawn, dynamic=stored.get("dynamic", False))]):
        kind, first = ("sample", examples) if number < real else ("drawn", real)
        yield StoredCase(f"example {number}" if number < examples else f"{kind} {number - first}", *case)


def same_shapes(flat: Sequence[Any], like: Sequence[Any]) -> bool:
    """Whether flat inputs have the sizes of others."""
    return [getattr(value, "shape", None) for value in flat] == [getattr(value, "shape", None) for value in like]


_UNBOUNDED = 1 << 31  # torch.export writes "no upper bound" as a number beyond any real size

Sample = TypeVar("Sample")


def with_progress(samples: Iterable[Sample], total: int | None, progressed: Progressed) -> Iterator[Sample]:
    """The samples; reports each one as done when the next one is requested."""
    for done, sample in enumerate(samples, 1):
        yield sample
        progressed(done, total)


Shape = list[sympy.Expr]  # sizes, as expressions over the program's symbols


def input_shapes(program: ExportedProgram) -> list[Shape | None]:
    """Shape of each flat user input of an ATen program; None for those that are not tensors."""
    return [_shape(value) for value in _traced_inputs(program)]


def check_fits(program: ExportedProgram, flat: Sequence[Any], what: str) -> None:
    """Raises SourceError if flat inputs have another number, kind, dtype or size than a program takes."""
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


def tied_inputs(program: ExportedProgram, what: str) -> Iterator[str]:
    """Yields a message for each input that a program ignores, and that had the memory of another one in its example."""
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    used = [bool(nodes[name].users) for name in program.graph_signature.user_inputs if name in nodes]
    examples = pytree.tree_leaves(program.example_inputs)
    for position, value in enumerate(examples if len(examples) == len(used) else ()):
        same = [other for other, given in enumerate(examples) if used[other] and _is_same(value, given)]
        if same and not used[position]:
            yield (
                f"{what}: the program ignores input {position}, whose example is the tensor of input {same[0]}: "
                "torch.export takes one tensor for one input; export the program with a tensor for each"
            )


def _is_same(one: Any, other: Any) -> bool:
    tensors = isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)
    return tensors and one.data_ptr() == other.data_ptr() and one.shape == other.shape


def size_bounds(program: ExportedProgram, expression: sympy.Expr) -> tuple[int, int, int]:
    """The least and the largest size that an expression of a bounded program has, and the step between sizes."""
    symbols = sorted(expression.free_symbols, key=str)
    ranges = [program.range_constraints[symbol] for symbol in symbols]
    ends = [
        int(expression.subs({symbol: max(1, end) for symbol, end in zip(symbols, bounds, strict=True)}))
        for bounds in ([bounds.lower for bounds in ranges], [bounds.upper for bounds in ranges])
    ]
    polynomial = expression.as_poly(symbols[0]) if len(symbols) == 1 else None
    step = int(polynomial.LC()) if polynomial and polynomial.degree() == 1 else 1
    return min(ends), max(ends), abs(step)


def input_sizes(program: ExportedProgram) -> list[list[int]]:
    """Input, dimension, least and largest size, and step of each dimension that may vary, as files have them."""
    return [
        [position, dimension, *size_bounds(program, expression)]
        for position, shape in enumerate(input_shapes(program))
        for dimension, expression in enumerate(shape or ())
        if expression.free_symbols
    ]


def check_bounded(program: ExportedProgram, method: str) -> None:
    """Raises SourceError if a size of an input has no upper bound, for which memory is planned."""
    for position, shape in enumerate(input_shapes(program)):
        for dimension, expression in enumerate(shape or ()):
            bounds = [program.range_constraints.get(symbol) for symbol in expression.free_symbols]
            if any(size is not None and not _has_upper(size) for size in bounds):
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
    if value is None or isinstance(value, torch.Tensor | int | float | bool):
        return None
    return f"is a {type(value).__name__}; ExecuTorch takes tensors, numbers, bool and None"


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


Draw = Literal["varied", "kept", "least"]
DRAWS: tuple[Draw, ...] = get_args(Draw)  # which values random inputs have, the most different ones first

_MOST_EXAMPLES = 16  # that values are drawn from


def draw_inputs(
    program: ExportedProgram,
    examples: Sequence[Sequence[Any]],
    number: int,
    values: Draw,
    sizes: Mapping[sympy.Symbol, int] | None = None,
) -> list[Any]:
    """Random flat inputs for a program. Equal arguments give equal inputs.

    Number 0 has every dynamic dimension at its lower bound, number 1 at its upper bound (twice the example's size where
    there is none), all others between them. Offsets (a vector of ascending integers) ascend from the same first one.

    Args:
        program: that the inputs are for.
        examples: flat inputs; the program was traced with the first ones.
        number: of the draw.
        sizes: of some symbols, which replace those; other symbols have the example's.
        values: with ``varied`` every input differs from the example's: numbers are those of the examples, those of an
            input that is all the same lie between 0 and it, and booleans are either. Integers may have to be in order,
            and booleans and infinities to be where they are: with ``kept`` they stay there. Integers may have to be
            less than a size: with ``least`` all are the least one.
    """
    shapes, example = input_shapes(program), examples[0]
    generator = torch.Generator().manual_seed(number)
    sizes = drawn_sizes(program, example, number) if sizes is None else {**example_sizes(program, example), **sizes}
    return fill_inputs(examples, sized_shapes(shapes, sizes), generator, values)


def sized_shapes(shapes: Sequence[Shape | None], sizes: Mapping[sympy.Symbol, int]) -> list[list[int] | None]:
    """The shapes of a program's inputs where its symbols have these sizes."""
    return [shape and [int(expression.subs(sizes)) for expression in shape] for shape in shapes]


def fill_inputs(
    examples: Sequence[Sequence[Any]], shapes: Sequence[list[int] | None], generator: torch.Generator, values: Draw
) -> list[Any]:
    """Random flat inputs of these shapes, with values as `draw_inputs` has them; others are the first example's."""
    drawn = []
    for position, (value, wanted) in enumerate(zip(examples[0], shapes, strict=True)):
        if wanted is None or not isinstance(value, torch.Tensor):
            drawn.append(value)
            continue
        pool = torch.cat([example[position].detach().reshape(-1) for example in examples[:_MOST_EXAMPLES]])
        tensor = _like(value, pool, wanted, generator, values) if value.numel() else value.new_zeros(wanted)
        drawn.append(tensor.contiguous(memory_format=torch.channels_last) if _is_channels_last(value) else tensor)
    return drawn


def drawn_sizes(program: ExportedProgram, example: Sequence[Any], number: int) -> dict[sympy.Symbol, int]:
    """Size of each symbol in the inputs that `draw_inputs` draws."""
    hints = example_sizes(program, example)
    return {symbol: _size(program, symbol, hint, number) for symbol, hint in hints.items()}


def example_sizes(program: ExportedProgram, example: Sequence[Any]) -> dict[sympy.Symbol, int]:
    """Size of each symbol in the example, solved for where it is part of an expression."""
    hints: dict[sympy.Symbol, int] = {}
    for shape, value in zip(input_shapes(program), example, strict=True):
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
    if upper - lower > 1:
        lower, upper = lower + 1, upper - 1
    return random.Random(f"{symbol}/{number}").randint(lower, upper)  # noqa: S311 - test inputs, not secrets


def _like(
    value: torch.Tensor, pool: torch.Tensor, wanted: Sequence[int], generator: torch.Generator, values: Draw
) -> torch.Tensor:
    """A tensor like an example's, of another size and with values from a pool."""
    drawn = pool[torch.randint(len(pool), (math.prod(wanted),), generator=generator)].reshape(wanted)
    if are_offsets(value):
        drawn = drawn.sort().values
        drawn[:1] = value[:1]
    elif values == "varied":
        if value.dtype == torch.bool:
            return torch.randint(2, wanted, generator=generator).bool()
        return _below(drawn, generator) if bool((pool == pool[0]).all()) else drawn
    elif values == "least" and _are_integers(value):
        return torch.full(wanted, int(pool[pool.long().abs().argmin()]), dtype=value.dtype)
    elif not value.is_floating_point() or not value.isfinite().all():
        return _repeated(value.detach(), wanted)
    return drawn


def _repeated(value: torch.Tensor, wanted: Sequence[int]) -> torch.Tensor:
    """The same values in the same places, over again where there are more, and cut off where there are fewer."""
    for dimension, size in enumerate(wanted):
        value = value.index_select(dimension, torch.arange(size) % value.shape[dimension])
    return value.clone()


def fit_sizes(value: torch.Tensor, wanted: Sequence[int]) -> torch.Tensor:
    """A tensor cut to a shape, or with its values over again where that is longer; positions are counted further."""
    fitted = _repeated(value.detach(), wanted)
    for dimension, (size, most) in enumerate(zip(value.shape, wanted, strict=True)):
        if 1 < size < most and _are_integers(value) and bool((value.diff(dim=dimension) == 1).all()):
            first = fitted.narrow(dimension, 0, 1)
            steps = torch.arange(most, dtype=value.dtype).reshape(-1, *[1] * (value.dim() - dimension - 1))
            fitted = first + steps
    return fitted.contiguous(memory_format=torch.channels_last) if _is_channels_last(value) else fitted


def _below(same: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Different numbers between zero and that of a tensor of equal ones; for floating-point zeros, below one."""
    share = torch.rand(same.shape, generator=generator)
    if same.is_floating_point():
        return torch.where(same == 0, share, same * (1 + share) / 2).to(same.dtype)
    if same.is_complex():
        return same * (1 + share) / 2
    return (share * (same.double().abs() + 1)).floor().mul(same.sign()).to(same.dtype)


def are_offsets(value: torch.Tensor) -> bool:
    """Whether a tensor is a vector of ascending integers, which have to stay in order."""
    return value.dim() == 1 and len(value) > 1 and _are_integers(value) and bool((value.diff() > 0).all())


def _are_integers(value: torch.Tensor) -> bool:
    return not (value.is_floating_point() or value.is_complex() or value.dtype == torch.bool)


def prepend_mutated_inputs(flat: Sequence[Any], run: Callable[[], list[Any]]) -> list[Any]:
    """Flat outputs of `run` as a `.pte` returns them: first the inputs that it wrote to, in order, then its outputs."""
    tensors = [value for value in flat if isinstance(value, torch.Tensor) and not value.is_inference()]
    before = [tensor._version for tensor in tensors]  # noqa: SLF001 - the only way to see a write
    outputs = run()
    written = [tensor for tensor, version in zip(tensors, before, strict=True) if tensor._version != version]  # noqa: SLF001 - as above
    return [*(tensor.clone() for tensor in written), *outputs]
