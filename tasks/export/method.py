"""Exporting one method of the user's model, with dynamic sizes as torch has them, and its constant methods."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from executorch.exir.tensor import layout_enum, scalar_type_enum
from torch.export import Dim, ExportedProgram

from ...artifacts.digest import Digest, digest_bytes
from ...configs.model import MethodDefinition, ModelDefinition
from ...errors import SourceError
from ..programs.weights import content_of
from ..upstream.compat import pytree
from ..upstream.torch_export import comparable_strides, uncompared_masks
from ..usercode.inputs import check_bounded, check_fits
from ..usercode.model_source import BuiltModel, by_name
from ..usercode.modules import convert_prepared, copy_module, for_inference, is_prepared
from .buckets import make_bucket
from .eager import is_like_eager, refusal, run_eager
from .sizes import (
    Trial,
    asked_sizes,
    check_examples,
    check_written,
    export_again,
    leave_refused,
    needs_export,
    settle_minimum,
    tied_sizes,
    unkept_sizes,
)

if TYPE_CHECKING:
    from ...formats.pte.buckets import Bucket
    from .stages.export import MethodParams


def to_dims(inputs: list[Any]) -> tuple[Any, ...]:
    """The `dynamic_shapes` of `torch.export.export` from their form in a zoo; dimensions of one name are one `Dim`.

    There is one entry per positional input: None, a mapping of dimension index to {min, max, name, multiple_of}, or a
    list of entries for an input that is a tuple.
    """
    taken = set(_names(inputs))
    free = (name for name in map("dim{}".format, itertools.count()) if name not in taken)
    dims: dict[str, Any] = {}
    return tuple(_shape(entry, dims, free) for entry in inputs)


def check_entries(inputs: Sequence[Any], example: Sequence[Any], what: str) -> None:
    """Raises SourceError unless entries, as `to_dims` takes them, have the structure of the inputs."""
    if len(inputs) != len(example):
        raise SourceError(f"dynamic_shapes of {what} has {len(inputs)} entries, and there are {len(example)} inputs")
    for position, (entry, value) in enumerate(zip(inputs, example, strict=True)):
        part = f"{what}, input {position}"
        if isinstance(entry, dict):
            if not isinstance(value, torch.Tensor):
                raise SourceError(f"dynamic_shapes of {part} has dimensions, and that is no tensor")
            if beyond := [index for index in entry if int(index) >= value.dim()]:
                raise SourceError(f"dynamic_shapes of {part} has dimension {beyond[0]}, the tensor has {value.dim()}")
        elif entry is not None:
            if not isinstance(value, tuple | list):
                raise SourceError(f"dynamic_shapes of {part} is a list, and that is no tuple")
            check_entries(entry, value, part)


def _names(entry: Any) -> Iterator[str]:
    match entry:
        case dict():
            yield from (bounds["name"] for bounds in entry.values() if bounds["name"])
        case list() | tuple():
            for item in entry:
                yield from _names(item)


def _shape(entry: Any, dims: dict[str, Any], free: Iterator[str]) -> Any:
    match entry:
        case None:
            return None
        case dict():
            return {int(index): _dim(bounds, dims, free) for index, bounds in entry.items()}
    return tuple(_shape(item, dims, free) for item in entry)


def _dim(bounds: dict[str, Any], dims: dict[str, Any], free: Iterator[str]) -> Any:
    if bounds["min"] == bounds["max"]:
        return bounds["min"]  # torch has no Dim of one size
    name, step = bounds["name"] or next(free), bounds.get("multiple_of", 1)
    if name not in dims:
        dim = Dim(name, min=bounds["min"] // step, max=bounds["max"] // step)
        dims[name] = dim if step == 1 else step * dim
    return dims[name]


Shapes = Mapping[str, Any] | None
"""Bounds of dynamic sizes by method, from the zoo file; they replace those of the model's own definition."""


def choose_method(model: BuiltModel, params: MethodParams) -> tuple[BuiltModel, str, Shapes, Bucket | None]:
    """The method to export, by default the model's first one, its module in inference mode.

    Returns the model, in which a bucket replaces its method; the method's name; bounds of dynamic sizes that replace
    its own; and the bucket, if it is one. Raises SourceError for a method or dimension that the model lacks.
    """
    methods, shapes, bucket = dict(model.definition.methods), params.dynamic_shapes, params.bucket
    name = params.method or next(iter(methods))
    if name not in methods:
        raise SourceError(f"the model has no method {name!r}; it has {list(methods)}")
    if unknown := set(shapes or ()) - set(methods):
        raise SourceError(f"dynamic_shapes names the methods {sorted(unknown)}; the model has {list(methods)}")
    if model.program is None:
        for_inference(methods[name].module)
    if bucket is None:
        return model, name, shapes, None
    static, bucket = make_bucket(methods[name], dynamic_shapes_of(name, methods[name], shapes), bucket)
    methods = dict((bucket.name, static) if other == name else (other, method) for other, method in methods.items())
    return replace(model, definition=replace(model.definition, methods=methods)), bucket.name, None, bucket


def digest_weights(definition: ModelDefinition) -> dict[str, dict[str, Digest]]:
    """SHA-256 of the parameters, by method and name; those of tensor subclasses are left out."""
    digests: dict[int, Digest] = {}

    def digest(weight: torch.Tensor) -> Digest:
        if id(weight) not in digests:
            with content_of(weight.untyped_storage()):
                content = weight.detach().cpu().contiguous().flatten().view(torch.uint8)
                digests[id(weight)] = digest_bytes(memoryview(content.numpy()))
        return digests[id(weight)]

    return {
        method: {
            name: digest(weight)
            for name, weight in definition.methods[method].module.named_parameters(remove_duplicate=False)
            if type(weight) is torch.nn.Parameter and weight.layout is torch.strided
        }
        for method in definition.methods
    }


def emitted_constants(constants: Mapping[str, Any]) -> dict[str, Any]:
    """Constants as ExecuTorch emits them (exir/emit/_emitter.py, `_emit_prim_getters`).

    A value is an int, float, bool, str, torch.dtype, torch.layout or tensor, or a tree of these. Raises SourceError for
    anything else, and for an integer of more than 64 bits.
    """
    return {name: pytree.tree_map(partial(_emitted, name), tree) for name, tree in constants.items()}


def _emitted(name: str, leaf: Any) -> Any:
    match leaf:
        case bool() | float() | str():
            return leaf
        case int() if -(2**63) <= leaf < 2**63:
            return leaf
        case torch.dtype():
            return int(scalar_type_enum(leaf))
        case torch.layout():
            return int(layout_enum(leaf))
        case torch.Tensor() if leaf.layout is torch.strided:
            return leaf.detach()
    raise SourceError(
        f"constant method {name!r} has a {type(leaf).__name__} ({leaf!r:.40}); a file can hold integers of 64 bits, "
        "floats, booleans, text, dtypes and dense tensors, and lists, tuples and dicts of them"
    )


def export_sized(
    name: str, method: MethodDefinition, shapes: Shapes, *, strict: bool, state: str = "", draws: int = 3
) -> tuple[ExportedProgram, list[str]]:
    """Exports a method as `export_method` does, for the sizes for which it computes what eager does.

    Sizes that hints leave to torch.export become one if the program is right for equal sizes only, and stay those of
    the examples if eager takes none of the first few that `draw_inputs` draws.

    Returns the program, and a message for each dimension that takes fewer sizes than `Dim.AUTO` asks for. Raises
    SourceError as `export_method` does; also if a size has no upper bound, or a `Dim` names sizes that the program does
    not compute right.
    """
    program = export_method(name, method, shapes, strict=strict, state=state)
    example, what = method.example_inputs[0], f"method {name!r}"
    asked = asked_sizes(method.module, example, dynamic_shapes_of(name, method, shapes))
    # a prepared module computes something else than the program, in which fake quantization is converted
    compares = not is_prepared(method.module)

    def trial() -> Trial:
        return partial(is_like_eager, program, method.module, example)

    if compares:
        settle_minimum(program, asked, trial(), what)
    tied = tied_sizes(program, asked, trial()) if compares else {}
    flat, spec = pytree.tree_flatten((example, {}))

    def again(tied: Mapping[Any, Any]) -> ExportedProgram:
        export = partial(export_again, program=program, example=flat, spec=spec, strict=strict, tied=tied)
        return _export_contiguous(_traced_module(name, method), export)

    if asked and (tied or needs_export(program)):
        with suppress(Exception):  # the first program is as right, but takes sizes that it is wrong for
            program = again(tied)
            if compares:
                settle_minimum(program, asked, trial(), what)
    check_bounded(program, name)
    examples = [pytree.tree_leaves((inputs, {})) for inputs in method.example_inputs]
    for number, leaves in enumerate(examples):
        check_fits(program, leaves, f"example {number} of {what}")
    why = leave_refused(program, asked, examples, partial(refusal, program, method.module, example), draws)
    if why and needs_export(program):
        with suppress(Exception):
            program = again({})
    return program, list(unkept_sizes(program, asked, what, why))


def dynamic_shapes_of(name: str, method: MethodDefinition, shapes: Shapes) -> Any:
    """The argument of torch.export, from the zoo file or else the definition; SourceError if it does not fit."""
    if not shapes or name not in shapes:
        check_written(method.dynamic_shapes, f"method {name!r}")
        return method.dynamic_shapes
    entries = shapes[name]
    if isinstance(entries, dict):
        entries = by_name(entries, method, f"dynamic_shapes of method {name!r}")
    check_entries(entries, method.example_inputs[0], f"method {name!r}")
    return to_dims(entries)


def _traced_module(name: str, method: MethodDefinition) -> torch.nn.Module:
    """A copy to trace, since state that a trace leaves in a module is fake; converted, if the module is prepared."""
    if is_prepared(method.module):
        return convert_prepared(method.module, f"method {name!r}")
    return copy_module(method.module)


def export_method(
    name: str, method: MethodDefinition, shapes: Shapes, *, strict: bool, state: str = ""
) -> ExportedProgram:
    """Exports a method with its first example. A module that PT2E has prepared is converted first.

    Observers and fake quantization cannot be converted after the export. `state` is the module's, for messages, such as
    " after source_transforms". Raises SourceError if the module does not take its example inputs or its dynamic shapes,
    or was prepared and never trained.
    """
    example = method.example_inputs[0]
    dynamic = dynamic_shapes_of(name, method, shapes)
    check_examples(asked_sizes(method.module, example, dynamic), f"method {name!r}")
    module = _traced_module(name, method)
    try:
        export = partial(torch.export.export, args=example, dynamic_shapes=dynamic, strict=strict)
        return _export_contiguous(module, export)
    except Exception as error:
        # Distinguishes example inputs that do not fit the model from a model that cannot be exported.
        outputs = run_eager(method.module, (example, {}), f"its own example inputs of method {name!r}{state}")
        if unknown := [type(output) for output in outputs if dataclasses.is_dataclass(output)]:
            raise SourceError(
                f"method {name!r} returns a {unknown[0].__name__}, which torch.export does not know; call "
                f"torch.export.register_dataclass({unknown[0].__name__}) next to the class, or return a tuple or dict"
            ) from error
        if dynamic is not None and isinstance(error, torch._dynamo.exc.UserError):  # noqa: SLF001 - has no public name
            reason = re.split(r"\s+(?=For more information about|The error above occurred)", str(error))[0]
            raise SourceError(f"method {name!r} cannot be exported with its dynamic shapes: {reason}") from error
        raise


def with_usual_layouts(program: ExportedProgram, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> ExportedProgram:
    """A program of torch.export, exported again if its weights or inputs have layouts that kernels or hosts lack.

    Example inputs have memory of their own, laid out as hosts do: contiguous, or with channels last.
    """
    weights = [*program.state_dict.values(), *program.constants.values()]
    flat, spec = pytree.tree_flatten((args, dict(kwargs)))
    traced = pytree.tree_leaves(program.example_inputs)
    if not any(map(_has_other_strides, weights)) and list(map(_strides, traced)) == list(map(_strides, flat)):
        return program
    export = partial(export_again, program=program, example=flat, spec=spec, strict=False)
    return _export_contiguous(program.module(), export)


def _export_contiguous(
    module: torch.nn.Module, export: Callable[[torch.nn.Module], ExportedProgram]
) -> ExportedProgram:
    """Exports a module with contiguous weights and plain trees, without gradients as ExecuTorch's examples do."""
    with torch.no_grad(), uncompared_masks(), comparable_strides(), _contiguous_weights(module) as weights:
        program = export(module)
    for stored in (program.state_dict, program.constants):
        stored.update({name: weight for name, weight in weights.items() if name in stored})
    for entry in program.module_call_graph:
        if signature := entry.signature:
            signature.in_spec, signature.out_spec = _plain(signature.in_spec), _plain(signature.out_spec)
    return program


@contextmanager
def _contiguous_weights(module: torch.nn.Module) -> Iterator[dict[str, torch.Tensor]]:
    """Makes a module's weights and buffers contiguous during an export; yields those that were not, by name.

    Kernels and backends choose layouts by themselves, and those of ExecuTorch take no channels-last weights. The module
    keeps its tensors.
    """
    tensors = {
        name: tensor
        for named in (module.named_parameters, module.named_buffers)
        for name, tensor in named(remove_duplicate=False)
        if _has_other_strides(tensor)
    }
    before = {id(tensor): (tensor, tensor.data) for tensor in tensors.values()}
    contiguous: dict[int, torch.Tensor] = {}
    try:
        for key, (tensor, data) in before.items():
            tensor.data = torch.empty(data.shape, dtype=data.dtype, device=data.device).copy_(data)
            is_parameter = isinstance(tensor, torch.nn.Parameter)
            contiguous[key] = torch.nn.Parameter(tensor.data, tensor.requires_grad) if is_parameter else tensor.data
        yield {name: contiguous[id(tensor)] for name, tensor in tensors.items()}
    finally:
        for tensor, data in before.values():
            tensor.data = data


def _strides(value: Any) -> Any:
    return value.stride() if isinstance(value, torch.Tensor) and value.layout is torch.strided else None


def _has_other_strides(tensor: Any) -> bool:
    """Whether a value is an image or a kernel that is not laid out in the order of its dimensions."""
    usual = type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) and tensor.layout is torch.strided
    return usual and tensor.dim() in (4, 5) and tensor.stride() != torch.empty(tensor.shape, device="meta").stride()


def _plain(spec: pytree.TreeSpec) -> pytree.TreeSpec:
    """A structure with tuples for namedtuples, dataclasses and other classes.

    Files are flat; programs are read where the user's classes are not imported.
    """
    if spec.is_leaf():
        return spec
    children = [_plain(child) for child in spec.children()]
    plain = spec.type in (tuple, list, dict, OrderedDict, type(None))
    return pytree.TreeSpec(spec.type if plain else tuple, spec.context if plain else None, children)
