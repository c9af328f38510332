"""quantize: one method from ATen to ATen with quantized operators (PT2E), calibrated on the model's examples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.export import Dim, ExportedProgram, ShapesCollection
from torch.utils import _pytree as pytree
from torchao.quantization.pt2e import ObserverOrFakeQuantize
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

from ...artifacts.programs.codec import load_program, save_program
from ...artifacts.programs.values import count_values, load_value, load_values
from ...artifacts.ref import ArtifactRef
from ...errors import TargetError
from ..params import QuantizeParams
from ..stage import Workspace
from ..targets.quantizers import fold_weights, make_quantizer
from .counted import counted
from .input_shapes import check_fits, input_shapes
from .integer_scalars import hide_integer_scalars, show_integer_scalars


def run(inputs: Mapping[str, ArtifactRef], params: QuantizeParams, work: Workspace) -> Mapping[str, ArtifactRef]:
    """Takes `program` (program/aten), `examples` and perhaps `samples`, gives `program` (program/quantized).

    Raises:
        TargetError: the quantizer finds nothing to quantize in the program.
        SourceError: a sample does not fit the program.
    """
    program = load_program(inputs["program"], work.store)
    stored = load_value(inputs["examples"], work.store)
    real = stored["inputs"][: len(stored["inputs"]) - stored["drawn"]]
    samples, count = real, len(real)
    if stored_samples := inputs.get("samples"):
        samples, count = (
            fitting(program, load_values(stored_samples, work.store)),
            count_values(stored_samples, work.store),
        )
    quantized = quantize(program, real[0], counted(samples, count, work.progressed), params)
    return {"program": save_program(quantized, kind="program/quantized", store=work.store)}


def fitting(program: ExportedProgram, samples: Iterable[Sequence[Any]]) -> Iterator[Sequence[Any]]:
    """The samples, flat; SourceError for one that a program cannot be called with."""
    for number, sample in enumerate(samples):
        check_fits(program, sample, f"calibration sample {number}")
        yield sample


def quantize(
    program: ExportedProgram, example: Sequence[Any], samples: Iterable[Sequence[Any]], params: QuantizeParams
) -> ExportedProgram:
    """Quantizes a program; one that is quantized already, as by QAT, is given as it is.

    Args:
        program: an ATen program.
        example: flat inputs that the result is traced with.
        samples: flat inputs to calibrate with, taken one after another.
        params: the quantizers.

    Raises:
        TargetError: there is nothing that it quantizes.
    """
    if _is_quantized(program):
        return program
    module = program.module(check_guards=False)
    hide_integer_scalars(module)
    prepared = prepare_pt2e(module, make_quantizer(params.quantizers))
    if not any(isinstance(module, ObserverOrFakeQuantize) for module in prepared.modules()):
        names = " and ".join(dict.fromkeys(each.name for each in params.quantizers))
        raise TargetError(
            f"the quantizer of {names} finds no operator in the program that it could quantize; "
            "where other methods have some, name those in the recipe's `quantize.methods`"
        )
    with torch.no_grad():
        for sample in samples:
            args, kwargs = pytree.tree_unflatten(list(sample), program.call_spec.in_spec)
            prepared(*args, **kwargs)
        converted = convert_pt2e(prepared, fold_quantize=fold_weights(params.quantizers))
    show_integer_scalars(converted)
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
