"""Quantization of exported programs by PT2E."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.export import Dim, ExportedProgram, ShapesCollection
from torch.fx import GraphModule
from torch.utils import _pytree as pytree
from torchao.quantization.pt2e import ObserverOrFakeQuantize
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

from ...errors import TargetError
from ..stage import TargetParams
from ..targets.find import fold_weights, make_quantizer
from .inputs import input_shapes

_OPERATORS = (torch.ops.aten.add.Tensor, torch.ops.aten.mul.Tensor)
_PREFIX = "_integer_scalar_"


def hide_integer_scalars(module: GraphModule) -> None:
    """Replaces numbers in the arithmetic of integers by integer tensors.

    Quantizers would make floats of the numbers, and so of positions computed with them, which then cannot index.
    """
    hidden = 0
    for node in list(module.graph.nodes):
        if node.op != "call_function" or node.target not in _OPERATORS or node.meta["val"].is_floating_point():
            continue
        for number in [argument for argument in node.args if isinstance(argument, int)]:
            name = f"{_PREFIX}{hidden}"
            hidden += 1
            value = torch.tensor(number)
            module.register_buffer(name, value)
            with module.graph.inserting_before(node):
                constant = module.graph.get_attr(name)
            constant.meta["val"] = node.meta["val"].fake_mode.from_tensor(value, static_shapes=True)
            node.args = tuple(constant if argument is number else argument for argument in node.args)
    module.recompile()


def restore_integer_scalars(module: GraphModule) -> None:
    """Undoes `hide_integer_scalars`."""
    for node in list(module.graph.nodes):
        if node.op != "get_attr" or not str(node.target).startswith(_PREFIX):
            continue
        number = module.get_buffer(str(node.target)).item()
        for user in list(node.users):
            user.args = tuple(number if argument is node else argument for argument in user.args)
        module.graph.erase_node(node)
        delattr(module, str(node.target))
    module.recompile()


def quantize(
    program: ExportedProgram,
    example: Sequence[Any],
    samples: Iterable[Sequence[Any]],
    quantizers: Sequence[TargetParams],
) -> ExportedProgram:
    """Quantizes a program; one that is quantized already, as by QAT, is returned as it is.

    Takes the calibration `samples` one after another; the first quantizer is the first choice. Raises TargetError if
    there is nothing to quantize.
    """
    if _is_quantized(program):
        return program
    module = program.module(check_guards=False)
    hide_integer_scalars(module)
    prepared = prepare_pt2e(module, make_quantizer(quantizers))
    if not any(isinstance(module, ObserverOrFakeQuantize) for module in prepared.modules()):
        names = " and ".join(dict.fromkeys(quantizer.name for quantizer in quantizers))
        raise TargetError(
            f"the quantizer of {names} finds no operator in the program that it could quantize; "
            "where other methods have some, name those in the recipe's `quantize.methods`"
        )
    with torch.no_grad():
        for sample in samples:
            args, kwargs = pytree.tree_unflatten(list(sample), program.call_spec.in_spec)
            prepared(*args, **kwargs)
        converted = convert_pt2e(prepared, fold_quantize=fold_weights(quantizers))
    restore_integer_scalars(converted)
    args, kwargs = pytree.tree_unflatten(list(example), program.call_spec.in_spec)
    return torch.export.export(converted, args, kwargs, dynamic_shapes=_shapes(program, example), strict=False)


_QUANTIZING = {
    f"quantized_decomposed.{prefix}quantize_per_{what}" for prefix in ("", "de") for what in ("tensor", "channel")
}
"""What PT2E puts around operators. Source transforms may bring others, such as those for groups and for embeddings."""


def _is_quantized(program: ExportedProgram) -> bool:
    return any(str(node.target).rpartition(".")[0] in _QUANTIZING for node in program.graph.nodes)


def _shapes(program: ExportedProgram, sample: Sequence[Any]) -> ShapesCollection | None:
    """The dynamic sizes of a program's inputs, by tensor. Sizes of one symbol are one `Dim`."""
    shapes, dims = ShapesCollection(), dict[Any, Any]()
    dynamic = False
    for value, shape in zip(sample, input_shapes(program), strict=True):
        sizes: dict[int, Any] = {}
        for index, expression in enumerate(shape or ()):
            if expression.is_Symbol:
                bounds = program.range_constraints[expression]
                name = f"size{len(dims)}"
                dims.setdefault(expression, Dim(name, min=_bound(bounds.lower), max=_bound(bounds.upper)))
                sizes[index] = dims[expression]
            elif expression.free_symbols:
                sizes[index] = Dim.AUTO
        if sizes:
            shapes[value] = sizes
            dynamic = True
    return shapes if dynamic else None


def _bound(value: Any) -> int | None:
    """A bound as a number; None where there is none."""
    return int(value) if value.is_Integer else None
