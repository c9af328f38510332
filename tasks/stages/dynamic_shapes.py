"""Dynamic shapes as zoo files write them, turned into what `torch.export.export` takes."""

from __future__ import annotations

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
    dims: dict[str, Any] = {}
    return tuple(_shape(entry, dims) for entry in inputs)


def _shape(entry: Any, dims: dict[str, Any]) -> Any:
    match entry:
        case None:
            return None
        case dict():
            return {int(index): _dim(bounds, dims) for index, bounds in entry.items()}
    return tuple(_shape(item, dims) for item in entry)


def _dim(bounds: dict[str, Any], dims: dict[str, Any]) -> Any:
    name = bounds["name"] or f"dim{len(dims)}"
    if name not in dims:
        dims[name] = Dim(name, min=bounds["min"], max=bounds["max"])
    return dims[name]
