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
from torch.utils import _pytree as pytree

from ...artifacts.digest import Digest, digest_bytes
from ...configs.model import MethodDefinition, ModelDefinition
from ...errors import SourceError
from ..programs.weights import content_of
from ..upstream.torch_export import comparable_strides, uncompared_masks
from ..usercode.inputs import check_bounded, check_fits
from ..usercode.model_source import BuiltModel, by_name
from ..usercode.modules import convert_prepared, copy_module, for_inference, is_prepared
from .buckets import make_bucket
from .eager import is_like_eager, refusal, run_eager
from .sizes import (
    AskedSize,
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
    """Bounds per positional input, as JSON, to `Dim`s.

    Args:
        inputs: one entry per positional input: None, a mapping of dimension index to {min, max, name, multiple_of}, or
            a list of such entries for an input that is a tuple.

    Returns:
        The `dynamic_shapes` argument of `torch.export.export`. Dimensions of one name are one `Dim`.
    """
    taken = set(_names(inputs))
    free = (name for name in map("dim{}".format, itertools.count()) if name not in taken)
    dims: dict[str, Any] = {}
    return tuple(_shape(entry, dims, free) for entry in inputs)


def check_entries(inputs: Sequence[Any], example: Sequence[Any], what: str) -> None:
    """Checks that entries, as `to_dims` takes them, have the structure of the inputs.

    Raises SourceError if the number of entries differs, or an input lacks a dimension.
    """
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

    Returns:
        The model, in which a bucket takes the place of its method; the method's name; bounds of dynamic sizes that
        replace its own; and the bucket, if it is one.

    Raises:
        SourceError: the model has no such method, none that dynamic_shapes name, or not the bucket's dimensions.
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
    methods = {bucket.name if own == name else own: static if own == name else methods[own] for own in methods}
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
            for name, weight in made.module.named_parameters(remove_duplicate=False)
            if type(weight) is torch.nn.Parameter and weight.layout is torch.strided
        }
        for method, made in definition.methods.items()
    }


_INT64 = range(-(2**63), 2**63)


def emitted_constants(constants: Mapping[str, Any]) -> dict[str, Any]:
    """Constants as ExecuTorch emits them (exir/emit/_emitter.py, `_emit_prim_getters`).

    Args:
        constants: name to value: int, float, bool, str, torch.dtype, torch.layout, tensor, or a tree of these.

    Raises:
        SourceError: something else is there, or an integer of more than 64 bits.
    """
    return {
        name: pytree.tree_map(lambda leaf, name=name: _emitted(name, leaf), tree) for name, tree in constants.items()
    }


def _emitted(name: str, leaf: Any) -> Any:
    match leaf:
        case bool() | float() | str():
            return leaf
        case int() if leaf in _INT64:
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
    """Exports a method as `export_method` does, for the sizes that it computes as eager does.

    Sizes that hints leave to torch.export become one where the program is right for equal ones only, and stay those of
    the examples where eager takes none of the first few that `draw_inputs` draws.

    Returns:
        The program, and a message for each dimension that takes fewer sizes than `Dim.AUTO` asks for.

    Raises:
        SourceError: as `export_method`; a size has no upper bound, or a `Dim` names sizes that the program is not for.
    """
    program = export_method(name, method, shapes, strict=strict, state=state)
    example, what = method.example_inputs[0], f"method {name!r}"
    asked = asked_sizes(method.module, example, dynamic_shapes_of(name, method, shapes))
    _settle_minimum(program, method, asked, what)
    # what was prepared has its fake quantization converted
    tied = {} if is_prepared(method.module) else tied_sizes(program, asked, _trial(program, method))
    flat, spec = pytree.tree_flatten((example, {}))

    def again(tied: Mapping[Any, Any]) -> ExportedProgram:
        export = partial(export_again, program=program, example=flat, spec=spec, strict=strict, tied=tied)
        return _export_contiguous(_traced_module(name, method), export)

    if asked and (tied or needs_export(program)):
        with suppress(Exception):  # the first one is as right, but takes sizes that it is not for
            program = again(tied)
            _settle_minimum(program, method, asked, what)
    check_bounded(program, name)
    examples = [pytree.tree_leaves((inputs, {})) for inputs in method.example_inputs]
    for number, leaves in enumerate(examples):
        check_fits(program, leaves, f"example {number} of {what}")
    why = leave_refused(program, asked, examples, partial(refusal, program, method.module, example), draws)
    if why and needs_export(program):
        with suppress(Exception):
            program = again({})
    return program, list(unkept_sizes(program, asked, what, why))


def _settle_minimum(program: ExportedProgram, method: MethodDefinition, asked: Sequence[AskedSize], what: str) -> None:
    if not is_prepared(method.module):
        settle_minimum(program, asked, _trial(program, method), what)


def _trial(program: ExportedProgram, method: MethodDefinition) -> Trial:
    return partial(is_like_eager, program, method.module, method.example_inputs[0])


def dynamic_shapes_of(name: str, method: MethodDefinition, shapes: Shapes) -> Any:
    """The argument of torch.export: those of the zoo file, or else the definition's own; SourceError if they misfit."""
    if not shapes or name not in shapes:
        check_written(method.dynamic_shapes, f"method {name!r}")
        return method.dynamic_shapes
    entries = shapes[name]
    if isinstance(entries, dict):
        entries = by_name(entries, method, f"dynamic_shapes of method {name!r}")
    check_entries(entries, method.example_inputs[0], f"method {name!r}")
    return to_dims(entries)


def _traced_module(name: str, method: MethodDefinition) -> torch.nn.Module:
    """A copy to trace, since what a module keeps of a call would be fake from then on; converted, if it is prepared."""
    if is_prepared(method.module):
        return convert_prepared(method.module, f"method {name!r}")
    return copy_module(method.module)


def export_method(
    name: str, method: MethodDefinition, shapes: Shapes, *, strict: bool, state: str = ""
) -> ExportedProgram:
    """Exports a method with its first example. A module that PT2E has prepared is converted before.

    Observers and fake quantization could not be converted after the export. `state` is the module's, for messages, such
    as " after source_transforms". Raises SourceError if it does not take its example inputs or its dynamic shapes, or
    was prepared and never trained.
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
        if unknown := [type(each) for each in outputs if dataclasses.is_dataclass(each)]:
            raise SourceError(
                f"method {name!r} returns a {unknown[0].__name__}, which torch.export does not know; call "
                f"torch.export.register_dataclass({unknown[0].__name__}) next to the class, or return a tuple or dict"
            ) from error
        if dynamic is not None and isinstance(error, torch._dynamo.exc.UserError):  # noqa: SLF001 - has no public name
            said = re.split(r"\s+(?=For more information about|The error above occurred)", str(error))[0]
            raise SourceError(f"method {name!r} cannot be exported with its dynamic shapes: {said}") from error
        raise


def with_usual_layouts(program: ExportedProgram, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> ExportedProgram:
    """A program, exported again if weights or inputs are laid out in a way that kernels or hosts do not.

    Args:
        program: as torch.export made it.
        args: example inputs with memory of their own, laid out as hosts do: contiguous, or with channels last.
        kwargs: those that are given by keyword.
    """
    held = [*program.state_dict.values(), *program.constants.values()]
    flat, spec = pytree.tree_flatten((args, dict(kwargs)))
    traced = pytree.tree_leaves(program.example_inputs)
    if not any(map(_has_other_strides, held)) and list(map(_strides, traced)) == list(map(_strides, flat)):
        return program
    export = partial(export_again, program=program, example=flat, spec=spec, strict=False)
    return _export_contiguous(program.module(), export)


def _export_contiguous(
    module: torch.nn.Module, export: Callable[[torch.nn.Module], ExportedProgram]
) -> ExportedProgram:
    """Exports a module with weights that are laid out as usual, and plain trees.

    Without gradients, as ExecuTorch's examples do: state that is written to gets none.
    """
    with torch.no_grad(), uncompared_masks(), comparable_strides(), _contiguous_weights(module) as weights:
        program = export(module)
    for stored in (program.state_dict, program.constants):
        stored.update({name: weight for name, weight in weights.items() if name in stored})
    return _with_plain_trees(program)


@contextmanager
def _contiguous_weights(module: torch.nn.Module) -> Iterator[dict[str, torch.Tensor]]:
    """Lays out a module's weights and buffers as usual, for the time of an export; yields those that were not, by name.

    Kernels and backends choose layouts by themselves, and those of ExecuTorch take no channels-last weights. The module
    keeps its tensors.
    """
    given = {
        name: tensor
        for named in (module.named_parameters, module.named_buffers)
        for name, tensor in named(remove_duplicate=False)
        if _has_other_strides(tensor)
    }
    before = {id(tensor): (tensor, tensor.data) for tensor in given.values()}
    made: dict[int, torch.Tensor] = {}
    try:
        for key, (tensor, data) in before.items():
            tensor.data = torch.empty(data.shape, dtype=data.dtype, device=data.device).copy_(data)
            made[key] = _like(tensor)
        yield {name: made[id(tensor)] for name, tensor in given.items()}
    finally:
        for tensor, data in before.values():
            tensor.data = data


def _strides(value: Any) -> Any:
    return value.stride() if isinstance(value, torch.Tensor) and value.layout is torch.strided else None


def _has_other_strides(tensor: Any) -> bool:
    """Whether a value is an image or a kernel that is not laid out in the order of its dimensions."""
    usual = type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) and tensor.layout is torch.strided
    return usual and tensor.dim() in (4, 5) and tensor.stride() != torch.empty(tensor.shape, device="meta").stride()


def _like(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor with the data that another one has now, and a parameter if that is one."""
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(tensor.data, requires_grad=tensor.requires_grad)
    return tensor.data


_PLAIN = (tuple, list, dict, OrderedDict, type(None))


def _with_plain_trees(program: ExportedProgram) -> ExportedProgram:
    """The program, with tuples for namedtuples, dataclasses and other classes of inputs and outputs.

    Files are flat; programs are read where the user's classes are not imported.
    """
    for entry in program.module_call_graph:
        if signature := entry.signature:
            signature.in_spec, signature.out_spec = _plain(signature.in_spec), _plain(signature.out_spec)
    return program


def _plain(spec: pytree.TreeSpec) -> pytree.TreeSpec:
    if spec.is_leaf():
        return spec
    children = [_plain(child) for child in spec.children()]
    plain = spec.type in _PLAIN
    return pytree.TreeSpec(spec.type if plain else tuple, spec.context if plain else None, children)
