"""Drawing inputs besides the examples: other sizes within the dynamic shapes' bounds, values as in the examples."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram

from .input_shapes import Shape, input_shapes

_UNBOUNDED = 1 << 31  # torch.export writes "no upper bound" as a number beyond any real size


def draw_inputs(program: ExportedProgram, example: Sequence[Any], count: int) -> list[list[Any]]:
    """Draws flat inputs for a program.

    The first draw has every dynamic dimension at its lower bound, the second at its upper (twice the example's where
    there is none), further ones anywhere between. Tensor values are drawn from the example's own values, so that
    indices, masks and probabilities stay what they are. The same arguments give the same inputs.

    Args:
        program: an ATen program, whose placeholders say which sizes depend on which symbol.
        example: the flat example inputs it was traced with.
        count: how many to draw.
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
    """Size of each symbol in the example. Symbols that never stand alone as a size get none from here."""
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
    upper = int(bounds.upper) if bounds.upper.is_Integer and bounds.upper < _UNBOUNDED else max(lower, 2 * hint)
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
    if value.dim() == 4 and value.is_contiguous(memory_format=torch.channels_last) and not value.is_contiguous():
        drawn = drawn.contiguous(memory_format=torch.channels_last)
    return drawn
