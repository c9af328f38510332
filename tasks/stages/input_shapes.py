"""The shapes that a program takes, and whether inputs fit them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from ...errors import SourceError

Shape = list[sympy.Expr]
"""Sizes, as expressions over the program's symbols."""


def input_shapes(program: ExportedProgram) -> list[Shape | None]:
    """Shape of each flat user input of an ATen program; None for those that are not tensors."""
    return [_shape(value) for value in _traced_inputs(program)]


def check_fits(program: ExportedProgram, flat: Sequence[Any], what: str) -> None:
    """Checks that the program can be called with these flat inputs.

    Args:
        program: an ATen program.
        flat: one value per user input.
        what: which inputs these are, for messages.

    Raises:
        SourceError: another number of inputs, values that ExecuTorch does not take, or dtypes or sizes that the program
            was not exported for.
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


def _traced_inputs(program: ExportedProgram) -> list[Any]:
    """What stands for each flat user input in the program: fake tensors, and other values as they are."""
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    specs = program.graph_signature.input_specs
    return [nodes[spec.arg.name].meta.get("val") for spec in specs if spec.kind is InputKind.USER_INPUT]


def _shape(value: Any) -> Shape | None:
    if not isinstance(value, torch.Tensor):
        return None
    return [size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size) for size in value.shape]


def _unsuitable(value: Any) -> str | None:
    """What about an input the runtime does not take, if anything (extension/pybindings/pybindings.cpp)."""
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
