"""Dynamic sizes: which were asked for, which torch.export kept, and exporting again for the same ones."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.export import Dim, ExportedProgram, ShapesCollection

from ...errors import SourceError
from ..upstream import compat
from ..usercode.inputs import drawn_sizes, example_sizes, input_shapes, size_bounds


@dataclass(frozen=True, slots=True)
class AskedSize:
    """A dimension of an example input that dynamic shapes ask for."""

    name: str  # of the `Dim`; of `Dim.AUTO` and `Dim.DYNAMIC`, an empty text
    position: int  # of the flat input
    dimension: int
    size: int  # the example's
    minimum: int | None
    maximum: int | None
    may_narrow: bool  # whether torch.export may keep fewer sizes: of `Dim.AUTO` and `Dim.DYNAMIC`
    example_from: int  # the least size of an example that torch.export does not take for a constant

    @property
    def where(self) -> str:
        return f"dimension {self.dimension} of input {self.position}"


def check_written(dynamic: Any, what: str) -> None:
    """Raises SourceError for sizes that are written as other tools have them: names, -1, ranges, mappings of bounds."""
    dims = isinstance(dynamic, Mapping) and any(isinstance(key, int) for key in dynamic)  # of which input?
    for found in [dynamic] if dims else _not_sizes(dynamic):
        raise SourceError(
            f"{what}: dynamic_shapes has {found!r}; a size that varies is a `torch.export.Dim` with bounds, in one "
            'entry for each input, as in `({0: torch.export.Dim("batch", min=1, max=8)},)`'
        )


def _not_sizes(entry: Any) -> Iterator[Any]:
    match entry:
        case Mapping() if {"min", "max"} & entry.keys():
            yield entry
        case Mapping():
            for key, value in entry.items():
                if isinstance(key, int) and isinstance(value, Mapping | tuple | list):
                    yield value
                else:
                    yield from _not_sizes(value)
        case list() | tuple():
            for value in entry:
                yield from _not_sizes(value)
        case str():
            yield entry
        case int() if entry < 0:
            yield entry


def asked_sizes(module: torch.nn.Module, example: tuple[Any, ...], dynamic: Any) -> list[AskedSize]:
    """What `dynamic_shapes` asks for; nothing if they do not fit the inputs, which torch.export reports."""
    return [_asked(*row) for row in input_dims(module, example, dynamic)]


def input_dims(
    module: torch.nn.Module, example: tuple[Any, ...], dynamic: Any
) -> list[tuple[int, int, torch.Tensor, Any]]:
    """Position of the flat input, dimension, the example's tensor and the `Dim` or hint, of each that may vary.

    Relies on how torch.export assigns them to inputs (torch/export/dynamic_shapes.py, torch 2.13).
    """
    if not isinstance(dynamic, Mapping | tuple | list):
        return []
    leaves: list[tuple[Any, Any]] = []
    try:
        inputs: Any = compat.combine_args(module, example, {})
        inputs = inputs if isinstance(dynamic, Mapping) else type(dynamic)(inputs.values())
        compat.tree_map_with_path(
            lambda _, value, shape: leaves.append((value, shape)), inputs, dynamic, tree_name="inputs"
        )
    except (compat.UserError, ValueError, TypeError):
        return []
    return [
        (position, int(dimension), value, dim)
        for position, (value, shape) in enumerate(leaves)
        if isinstance(value, torch.Tensor)
        for dimension, dim in (shape.items() if isinstance(shape, Mapping) else enumerate(shape or ()))
        if is_dim(dim) and int(dimension) < value.dim()
    ]


def is_dim(value: Any) -> bool:
    """Whether an entry of dynamic shapes is a size that may vary."""
    if isinstance(value, compat.DimHint):
        return value.type is not compat.DimHintType.STATIC
    return isinstance(value, Dim) and not isinstance(value, compat.StaticDim)


def _asked(position: int, dimension: int, value: torch.Tensor, dim: Any) -> AskedSize:
    hint = isinstance(dim, compat.DimHint)
    maximum = dim.max if isinstance(dim.max, int) else None
    example_from = dim.fn(2) if isinstance(dim, compat.DerivedDim) else 2
    name = "" if hint else dim.__name__
    return AskedSize(name, position, dimension, value.shape[dimension], dim.min, maximum, hint, example_from)


def check_examples(asked: Sequence[AskedSize], what: str) -> None:
    """Raises SourceError if the example has a size that torch.export takes for a constant."""
    for size in asked:
        if size.size < size.example_from and not size.may_narrow:
            raise SourceError(
                f"{what}: {size.where} of the example is {size.size}: give {size.example_from} or more, since "
                "torch.export takes a size of 0 or 1 for a constant, and dynamic_shapes say that it varies"
            )


Trial = Callable[[Mapping[sympy.Symbol, int]], bool | None]
"""Whether a program computes what eager does, for some sizes; None where eager takes none."""


def settle_minimum(program: ExportedProgram, asked: Sequence[AskedSize], trial: Trial, what: str) -> None:
    """Tries a size of 1 if it was asked for, and allows it in the program's ranges if the program is right for it.

    torch.export takes every dynamic size for 2 or more, and does not see that code branches on 1. Raises SourceError if
    the program computes something else for 1, although a `Dim` allows it.
    """
    tried: dict[sympy.Symbol, bool | None] = {}
    for size, expression in _with_expressions(program, asked):
        symbol, smallest = _smallest(expression)
        bounds = program.range_constraints.get(symbol) if symbol else None
        if symbol is None or bounds is None or smallest < (size.minimum or 0) or not bounds.lower <= 2 <= bounds.upper:
            continue
        if symbol not in tried:
            tried[symbol] = trial({symbol: 1})
        if tried[symbol]:
            program.range_constraints[symbol] = compat.ValueRanges(sympy.Integer(1), bounds.upper)
        elif tried[symbol] is False and not size.may_narrow:
            raise SourceError(
                f"{what}: for a size of {smallest} in {size.where}, the exported program computes something else than "
                "the model: torch.export follows the code for larger ones. Let dynamic_shapes begin with those, or let "
                "the code not depend on the size"
            )


def _smallest(expression: sympy.Expr) -> tuple[sympy.Symbol | None, int]:
    """The only symbol of a size, if it is one, and the size for the symbol's least value, which is 1."""
    if len(expression.free_symbols) != 1:
        return None, 1
    (symbol,) = expression.free_symbols
    return symbol, int(expression.subs({symbol: 1}))


def tied_sizes(program: ExportedProgram, asked: Sequence[AskedSize], trial: Trial) -> dict[sympy.Symbol, sympy.Symbol]:
    """Sizes that hints leave to torch.export, each with the size that it must equal for the program to be right.

    torch.export takes the batches of two inputs for two sizes where the code divides one by the other, or broadcasts.
    Tries only sizes that are equal in the example, as few at once as possible.
    """
    groups: dict[Any, list[sympy.Symbol]] = {}
    for size, symbol in _hinted(program, asked):
        group = groups.setdefault((size.dimension, size.size, size.minimum, size.maximum), [])
        group += [symbol] * (symbol not in group)
    tied: dict[sympy.Symbol, sympy.Symbol] = {}
    for (_, example, minimum, maximum), group in groups.items():
        other = next((end for end in (max(minimum or 1, 1), maximum) if end not in (example, None)), None)
        if len(group) == 1 or other is None:
            continue
        alone = {symbol: trial({symbol: other}) for symbol in group}
        for symbol in group:
            if alone[symbol] or symbol in tied:
                continue
            free = [each for each in group if each is not symbol and each not in tied]
            together = (
                [symbol, *others] for count in range(1, len(free) + 1) for others in itertools.combinations(free, count)
            )
            tied |= dict.fromkeys(next((some for some in together if trial(dict.fromkeys(some, other))), []), symbol)
    return tied


def _hinted(program: ExportedProgram, asked: Sequence[AskedSize]) -> Iterator[tuple[AskedSize, sympy.Symbol]]:
    """The dimensions that hints are for, with the symbols that they became."""
    for size, expression in _with_expressions(program, asked):
        if size.may_narrow and isinstance(expression, sympy.Symbol):
            yield size, expression


def _with_expressions(program: ExportedProgram, asked: Sequence[AskedSize]) -> Iterator[tuple[AskedSize, sympy.Expr]]:
    shapes = input_shapes(program)
    for size in asked:
        yield size, (shapes[size.position] or ())[size.dimension]


def leave_refused(
    program: ExportedProgram,
    asked: Sequence[AskedSize],
    examples: Sequence[Sequence[Any]],
    refusal: Callable[[Mapping[sympy.Symbol, int]], str],
    draws: int,
) -> dict[AskedSize, str]:
    """Writes the examples' sizes to the ranges of dimensions that hints are for, if eager refuses other sizes.

    The program was just exported, with the first of the flat `examples`. `refusal` says why eager takes no inputs of
    some sizes; tries the first `draws` of those that `draw_inputs` draws.

    Returns the reason for each dimension that was narrowed. Sizes that a `Dim` is for stay, whatever eager takes.
    """
    hinted = list(_hinted(program, asked))
    usual_sizes = [example_sizes(program, flat) for flat in examples] if hinted else []
    why: dict[AskedSize, str] = {}
    for number in range(draws if hinted else 0):
        while problem := refusal(sizes := drawn_sizes(program, examples[0], number)):
            changed = {s for _, s in hinted if all(sizes[s] != example[s] for example in usual_sizes)}
            usual = sizes | {symbol: usual_sizes[0][symbol] for symbol in changed}
            if not changed or refusal(usual):
                break  # another size is to blame
            blamed = {symbol for symbol in changed if refusal(usual | {symbol: sizes[symbol]})} or changed
            for symbol in blamed:
                ends = [example[symbol] for example in usual_sizes]
                program.range_constraints[symbol] = compat.ValueRanges(
                    sympy.Integer(min(ends)), sympy.Integer(max(ends))
                )
            why |= {size: problem for size, symbol in hinted if symbol in blamed}
    return why


def unkept_sizes(
    program: ExportedProgram, asked: Sequence[AskedSize], what: str, why: Mapping[AskedSize, str]
) -> Iterator[str]:
    """Yields a message for each dimension that kept fewer sizes than were asked for, with the reason from `why`.

    Raises SourceError with this message for a dimension that a `Dim` is for.
    """
    for size, expression in _with_expressions(program, asked):
        least, most, step = size_bounds(program, expression)
        narrowed = size.minimum is not None and least > max(size.minimum, _smallest(expression)[1])
        fewer = narrowed or most < (size.maximum or 0)
        if not (fewer or (size.may_narrow and (least == most or step > 1))):
            continue
        kept = f"{least} only" if least == most else f"{least} to {most}" + (f" in steps of {step}" * (step > 1))
        wanted = "any size" if size.maximum is None else f"{size.minimum or 1} to {size.maximum}"
        advice = "give an example of 2 or more" if size.size < 2 else why.get(size, "its code depends on the size")
        message = f"{what}: {size.where} was to take {wanted}, and the program takes {kept}: {advice}"
        if not size.may_narrow:
            raise SourceError(f"{message}; let dynamic_shapes ask for no more")
        yield message


def dynamic_sizes(
    program: ExportedProgram, tied: Mapping[sympy.Symbol, sympy.Symbol] | None = None
) -> list[dict[int, Any]]:
    """The dynamic sizes of a program's inputs, by dimension. Sizes of one symbol are one `Dim`, or derived from it.

    Leaves out symbols of one value, and sizes that the guards of a fresh export exclude. A symbol that is `tied` to
    another one becomes that one.
    """
    dynamic, dims = [], dict[Any, Any]()
    shapes = [[size.xreplace(tied or {}) for size in shape or ()] for shape in input_shapes(program)]
    symbols_in_shapes = {symbol for shape in shapes for size in shape for symbol in size.free_symbols}
    bounds = {symbol: _guarded_sizes(program, symbol) for symbol in symbols_in_shapes}
    varying = {symbol for symbol, (least, most, _) in bounds.items() if least is None or least != most}
    for shape in shapes:
        sizes: dict[int, Any] = {}
        for index, expression in enumerate(shape):
            symbols = sorted(expression.free_symbols & varying, key=str)
            for symbol in symbols:
                if symbol not in dims:
                    dims[symbol] = _dim(f"size{len(dims)}", *bounds[symbol])
            if symbols:
                polynomial = expression.as_poly(symbols[0]) if len(symbols) == 1 else None
                sizes[index] = _derived(dims[symbols[0]], polynomial)
        dynamic.append(sizes)
    return dynamic


def _guarded_sizes(program: ExportedProgram, symbol: sympy.Symbol) -> tuple[int | None, int | None, int]:
    """The least and the largest size, and the step between, for which the guards of a fresh export hold.

    Guards are in its shape environment only: torch.export keeps `Dim.AUTO` whatever they are. If they leave gaps, the
    sizes are those around the example's.
    """
    bounds = program.range_constraints[symbol]
    least, most = _bound(bounds.lower), _bound(bounds.upper)
    values = (node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder")
    environment = next((value.fake_mode.shape_env for value in values if hasattr(value, "fake_mode")), None)
    if environment is None:
        return least, most, 1
    written = [guard.expr for guard in environment.guards]
    guards = [guard for guard in written if guard.free_symbols == {symbol}]
    # Sizes that turn out to be equal while torch traces have one symbol from there on, which guards before that lack.
    later = [guard for guard in map(environment.replace, set(written) - set(guards)) if guard.free_symbols == {symbol}]
    if not (guards or later) or least is None or most is None or most - least > _MOST_TRIED:
        return least, most, 1

    def holds(guard: Any, size: int) -> bool:
        return bool(guard.subs(symbol, size) == True)  # noqa: E712 - of sympy

    # What excludes the smallest size alone is torch's own, for sizes of one, and that size is compared with eager.
    guards += [guard for guard in later if not all(holds(guard, size) for size in range(least + 1, most + 1))]
    example = int(environment.backed_var_to_val[symbol])
    allowed = [size for size in range(least, most + 1) if all(holds(guard, size) for guard in guards)]
    if example not in allowed:
        return least, most, 1
    step = math.gcd(*(size - example for size in allowed)) or 1
    first = last = example
    while first - step in allowed:
        first -= step
    while last + step in allowed:
        last += step
    return first, last, step


_MOST_TRIED = 4096


def _dim(name: str, least: int | None, most: int | None, step: int) -> Any:
    if step == 1 or least is None or most is None:
        return Dim(name, min=least, max=most)
    size = step * Dim(name, min=least // step, max=most // step)
    return size + least % step if least % step else size


def _bound(value: Any) -> int | None:
    """A bound as a number; None where there is none."""
    return int(value) if value.is_Integer else None


def _derived(dim: Any, polynomial: Any) -> Any:
    """The size that a polynomial of a dimension stands for, if it is linear with positive steps; else `Dim.AUTO`."""
    step, *offset = map(int, polynomial.all_coeffs()) if polynomial else (0,)
    if len(offset) != 1 or step < 1:
        return Dim.AUTO
    size = dim if step == 1 else step * dim
    return size + offset[0] if offset[0] else size


def needs_export(program: ExportedProgram) -> bool:
    """Whether a program has symbols of one value, or with other sizes than its ranges say."""
    symbols = {symbol for shape in input_shapes(program) for size in shape or () for symbol in size.free_symbols}
    for symbol in symbols & program.range_constraints.keys():
        bounds = program.range_constraints[symbol]
        kept = (_bound(bounds.lower), _bound(bounds.upper), 1)
        if bounds.lower == bounds.upper or _guarded_sizes(program, symbol) != kept:
            return True
    return False


def export_again(
    module: torch.nn.Module,
    program: ExportedProgram,
    example: Sequence[Any],
    spec: compat.pytree.TreeSpec,
    *,
    strict: bool,
    tied: Mapping[sympy.Symbol, sympy.Symbol] | None = None,
) -> ExportedProgram:
    """Exports a module for the sizes that a program takes; `spec` is that of flat arguments."""
    args, kwargs = compat.pytree.tree_unflatten(list(example), spec)
    sizes = dynamic_sizes(program, tied)

    def export(sizes: Sequence[dict[int, Any]]) -> ExportedProgram:
        shapes = sizes_collection(example, sizes)
        return torch.export.export(module, args, kwargs, dynamic_shapes=shapes, strict=strict)

    with suppress(compat.UserError):
        return export(sizes)
    # a guard that each `Dim` has to allow, and that `Dim.AUTO` did, when `program` was made
    again: ExportedProgram | None = None
    if tied:
        kept = [{index for index, size in enumerate(shape or ()) if size in tied} for shape in input_shapes(program)]
        with suppress(compat.UserError):
            again = export([_guarded(dynamic, keep) for dynamic, keep in zip(sizes, kept, strict=True)])
    again = again or export([_guarded(dynamic) for dynamic in sizes])
    _restore_minimum(program, again)
    return again


def _restore_minimum(program: ExportedProgram, again: ExportedProgram) -> None:
    """Writes to the ranges of a program, exported again with `Dim.AUTO`, that 1 is a size where it was one before."""
    for before, after in zip(input_shapes(program), input_shapes(again), strict=True):
        for old, new in zip(before or (), after or (), strict=True):
            known, found = program.range_constraints.get(old), again.range_constraints.get(new)
            if known is not None and found is not None and known.lower < 2 == found.lower:
                again.range_constraints[new] = compat.ValueRanges(known.lower, found.upper)


def _guarded(sizes: dict[int, Any], keep: Collection[int] = ()) -> dict[int, Any]:
    """Dynamic sizes of an input within the same bounds, as far as guards allow; some are kept as they are."""
    return {
        index: size if index in keep else Dim.AUTO(min=size.min, max=size.max if isinstance(size.max, int) else None)
        for index, size in sizes.items()
    }


def sizes_collection(inputs: Sequence[Any], sizes: Sequence[dict[int, Any]]) -> ShapesCollection | None:
    """Dynamic sizes by tensor, as torch.export takes them; None if there are none."""
    shapes = ShapesCollection()
    for value, dynamic in zip(inputs, sizes, strict=True):
        if dynamic:
            shapes[value] = dynamic
    return shapes if any(sizes) else None
