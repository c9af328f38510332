"""Buckets: a method of the model with static sizes in place of dynamic ones."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.export import ExportedProgram

from ...configs.base import did_you_mean
from ...configs.model import MethodDefinition, ModelDefinition
from ...errors import SourceError, VerificationFailed
from ...formats.pte.buckets import Bucket
from ..upstream.compat import DerivedDim, pytree
from ..usercode.inputs import fit_sizes
from ..usercode.model_source import by_name
from .eager import agrees_with_eager, run_eager, written_buffers
from .sizes import input_dims, is_dim

_Rows = Sequence[tuple[int, int, int, str]]  # as `Bucket.inputs`


def make_bucket(method: MethodDefinition, dynamic: Any, bucket: Bucket) -> tuple[MethodDefinition, Bucket]:
    """The method with static sizes and examples cut or repeated to them, and the bucket with its inputs.

    Sizes are those of a `Dim`, by name, or of the first one that derives from it if no input has the `Dim` itself.
    Raises SourceError if the method has no dimension of a name, or a size is not among its sizes.
    """
    example, what = method.example_inputs[0], f"buckets of method {bucket.method!r}"
    dims = input_dims(method.module, example, dynamic)
    named = {_root_name(dim): dim for *_, dim in reversed(dims)}
    named |= {_root_name(dim): dim for *_, dim in dims if not isinstance(dim, DerivedDim)}
    named.pop("", None)
    roots: dict[str, int] = {}
    for name, size in bucket.sizes.items():
        if name not in named:
            listed = f"it has {', '.join(named)}" if named else 'give one a name: Dim("sequence", min=1, max=128)'
            raise SourceError(f"{what}: there is no dynamic dimension {name!r}{did_you_mean(name, [*named])}; {listed}")
        dim, step, offset = named[name], 1, 0
        if isinstance(dim, DerivedDim):
            step, offset = dim.fn(1) - dim.fn(0), dim.fn(0)
        least, most = dim.min or 1, dim.max or math.inf
        if (size - offset) % step or not least <= size <= most:
            every = f" in steps of {step}" if step > 1 else ""
            raise SourceError(f"{what}: {name!r} takes {least} to {most}{every}, and {size} is not among these sizes")
        roots[name] = (size - offset) // step
    inputs = tuple(
        (position, dimension, _size(dim, roots), _root_name(dim))
        for position, dimension, _, dim in dims
        if _root_name(dim) in roots
    )
    examples = [_fitted(args, inputs) for args in method.example_inputs]
    static = replace(method, dynamic_shapes=_static(dynamic, roots), example_inputs=examples)
    return static, bucket.model_copy(update={"inputs": inputs})


def _root_name(dim: Any) -> str:
    """The name of a `Dim`, of its root if it is derived, or that a source gave to a hint; empty without one."""
    return str(getattr(getattr(dim, "root", dim), "__name__", ""))


def _size(dim: Any, roots: Mapping[str, int]) -> Any:
    """The size of a dimension that becomes static; any other dimension unchanged."""
    if not is_dim(dim) or _root_name(dim) not in roots:
        return dim
    size = roots[_root_name(dim)]
    return dim.fn(size) if isinstance(dim, DerivedDim) else size


def _static(dynamic: Any, roots: Mapping[str, int]) -> Any:
    match dynamic:
        case Mapping():
            return {key: _static(entry, roots) for key, entry in dynamic.items()}
        case list() | tuple():
            return tuple(_static(entry, roots) for entry in dynamic)
    return _size(dynamic, roots)


def _fitted(args: tuple[Any, ...], rows: _Rows) -> tuple[Any, ...]:
    leaves, spec = pytree.tree_flatten(args)
    for position, dimension, size, _ in rows:
        shape = list(leaves[position].shape)
        shape[dimension] = size
        leaves[position] = fit_sizes(leaves[position], shape)
    fitted: tuple[Any, ...] = pytree.tree_unflatten(leaves, spec)
    return fitted


def check_stateless(program: ExportedProgram, bucket: Bucket, definition: ModelDefinition) -> None:
    """Raises SourceError if a bucket changes buffers, which others would not see, or if sequences call its method."""
    way_out = "define a method for each size, such as prefill and decode"
    if state := sorted(written_buffers(program)):
        raise SourceError(
            f"method {bucket.method!r} cannot have buckets: it keeps state ({state[0]!r}), and each bucket would have "
            f"its own; {way_out}, and lower them with `compile: {{share_mutable_buffers: true}}`"
        )
    if any(call.method == bucket.method for calls in definition.sequences for call in calls):
        raise SourceError(f"method {bucket.method!r} cannot have buckets: `sequences` of the model call it; {way_out}")


def try_padding(method: MethodDefinition, bucket: Bucket) -> Bucket | None:
    """The bucket with its padding if eager computes the same for padded inputs; None if padding changes outputs.

    `method` is the bucket's own, and has `padding`. Outputs that are longer with padded inputs are cut.
    """
    example = method.example_inputs[0]
    values = by_name(method.padding, method, f"padding of method {bucket.method!r}")
    leaves = [[value] * len(pytree.tree_leaves(arg)) for value, arg in zip(values, example, strict=True)]
    padding = [value for of_argument in leaves for value in of_argument]
    if any(padding[position] is None for position, *_ in bucket.inputs):
        return None
    divisors = {name: number for number, name in enumerate(bucket.sizes, 2)}  # different, to tell them apart
    rows = [(at, dimension, max(1, size // divisors[name]), name) for at, dimension, size, name in bucket.inputs]
    short = _fitted(example, rows)
    flat, spec = pytree.tree_flatten(short)
    bucket = bucket.model_copy(update={"padding": tuple(padding)})
    padded = pytree.tree_unflatten(bucket.pad(flat), spec)
    try:
        expected, outputs = (run_eager(method.module, (args, {}), "padded inputs") for args in (short, padded))
        bucket = bucket.model_copy(update={"outputs": tuple(_longer(bucket, rows, expected, outputs))})
        return bucket if agrees_with_eager(bucket.cut(flat, outputs), flat, expected) else None
    except (SourceError, VerificationFailed):
        return None


def _longer(
    bucket: Bucket, rows: _Rows, expected: Sequence[Any], outputs: Sequence[Any]
) -> Iterator[tuple[int, int, int, int]]:
    """`Bucket.outputs`, from what eager returns for short inputs, of `rows`, and for padded ones."""
    of_size = {(short, most): (at, of) for (*_, short, _), (at, of, most, _) in zip(rows, bucket.inputs, strict=True)}
    for number, pair in enumerate(zip(expected, outputs, strict=True)):
        shapes = zip(*(value.shape for value in pair if isinstance(value, torch.Tensor)), strict=False)
        for dimension, sizes in enumerate(shapes):
            if len(set(sizes)) == 2 and sizes in of_size:
                yield number, dimension, *of_size[sizes]
