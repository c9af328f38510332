"""Which keys a place in a configuration takes: what suggestions for misspelt keys are drawn from."""

from __future__ import annotations

from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, RootModel

from .fields import FieldPath
from .recipe import Recipe


def known_keys(model: type[BaseModel], path: FieldPath) -> tuple[str, ...]:
    """Keys that the mapping at `path` below `model` may have; none where any key may stand."""
    types = [model]
    for part in path:
        types = [below for annotation in types for below in _below(annotation, part)]
    keys: dict[str, None] = {}
    for annotation in types:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            keys |= dict.fromkeys(annotation.model_fields)
            keys |= dict.fromkeys(("extends", "function", "kwargs")) if annotation is Recipe else {}
    return tuple(keys)


def _below(annotation: Any, part: str | int) -> Iterator[Any]:
    """The types that may stand at a key or index of a value of that type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        if part in annotation.model_fields:
            yield from _members(annotation.model_fields[str(part)].annotation)
    elif get_origin(annotation) is dict:
        yield from _members(get_args(annotation)[1])
    elif get_origin(annotation) is tuple:
        yield from _members(get_args(annotation)[0])


def _members(annotation: Any) -> Iterator[Any]:
    """The types that a union, an annotated type or a root model comes down to."""
    if get_origin(annotation) is Annotated:
        yield from _members(get_args(annotation)[0])
    elif isinstance(annotation, type) and issubclass(annotation, RootModel):
        yield from _members(annotation.model_fields["root"].annotation)
    elif get_origin(annotation) in (Union, UnionType):
        for member in get_args(annotation):
            yield from _members(member)
    elif annotation is not NoneType:
        yield annotation
