"""Dynamic sizes of inputs: bounds from the zoo file as torch has them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.export import Dim

from ...errors import SourceError


def to_dims(inputs: list[Any]) -> tuple[Any, ...]:
    """Bounds per positional input, as JSON, to `Dim`s.

    Args:
        inputs: one entry per positional input: None, a mapping of dimension index to {min, max, name}, or a list of
            such entries for an input that is a tuple.

    Returns:
        The `dynamic_shapes` argument of `torch.export.export`. Dimensions of one name are one `Dim`.
    """
    taken = set(_names(inputs))
    free = (name for name in map("dim{}".format, itertools.count()) if name not in taken)
    dims: dict[str, Any] = {}
    return tuple(_shape(entry, dims, free) for entry in inputs)


def check_entries(inputs: Sequence[Any], example: Sequence[Any], what: str) -> None:
    """Checks that entries, as `to_dims` takes them, have the structure of the inputs.

    Raises:
        SourceError: the number of entries differs, or an input lacks a dimension.
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
    name = bounds["name"] or next(free)
    if name not in dims:
        dims[name] = Dim(name, min=bounds["min"], max=bounds["max"])
    return dims[name]
