"""Dynamic shapes as zoo files write them, turned into what `torch.export.export` takes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from torch.export import Dim


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
