"""What calls change in a module: buffers, and state in Python attributes, which no program has."""

from __future__ import annotations

import itertools
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, NamedTuple

import torch
from torch.fx import GraphModule

from ..upstream.compat import FakeTensor, pytree


class StateChange(NamedTuple):
    """A part of a module that has another value after calls."""

    name: str
    is_buffer: bool


def changes(before: torch.nn.Module, after: torch.nn.Module) -> list[StateChange]:
    """What differs between a module and a copy of it, parameters aside."""
    old, new = _values(before), _values(after)
    keys = (key for key in {**old, **new} if key not in old or key not in new or not is_same(old[key], new[key]))
    return list(dict.fromkeys(change for change, _ in keys))


_OF_TORCH = frozenset(vars(torch.nn.Module()))
_CONSTANTS = (int, float, complex, str, bytes, frozenset, torch.dtype, type(None))
_VALUES = (*_CONSTANTS, bytearray, set, torch.Tensor, itertools.count)
_CONTAINERS = (Mapping, list, tuple, deque)


def mutable_parts(module: torch.nn.Module) -> dict[int, Any]:
    """The layers, containers, tensors and plain objects of a module, parameters aside, by id."""
    constant = (*_CONSTANTS, tuple, torch.device, Enum, FunctionType, BuiltinFunctionType)
    return {id(value): value for _, _, value in _reached(module) if not isinstance(value, constant)}


def _values(module: torch.nn.Module) -> dict[tuple[StateChange, tuple[Any, ...]], Any]:
    """Values of buffers and attributes, also those inside containers and plain objects, by where they are."""
    values: dict[tuple[StateChange, tuple[Any, ...]], Any] = {}
    for part, inside, value in _reached(module):
        if isinstance(value, _CONTAINERS):
            values[part, (*inside, "length")] = len(value)
        elif _is_value(value):
            values[part, inside] = repr(value) if isinstance(value, itertools.count) else value
    return values


def _is_value(value: Any) -> bool:
    return isinstance(value, _VALUES) or hasattr(value, "__array__")


def _reached(module: torch.nn.Module) -> Iterator[tuple[StateChange, tuple[Any, ...], Any]]:
    """Yields what buffers and attributes hold, with where that is; containers and plain objects once."""
    seen = set[int]()
    ahead: list[tuple[StateChange, tuple[Any, ...], Any]] = [(StateChange("", is_buffer=False), (), module)]
    while ahead:
        part, inside, value = ahead.pop()
        if not _is_value(value) and (id(value) in seen or isinstance(value, type | ModuleType)):
            continue
        yield part, inside, value
        if _is_value(value):
            continue
        if isinstance(value, _CONTAINERS):
            entries: Iterable[tuple[Any, Any]] = value.items() if isinstance(value, Mapping) else enumerate(value)
            ahead += [(part, (*inside, str(key)), entry) for key, entry in entries]
        else:
            ahead += [(attribute, (), content) for attribute, content in _parts(part.name, value)]
        seen.add(id(value))


def _parts(name: str, value: Any) -> list[tuple[StateChange, Any]]:
    """Attributes of a module or a plain object, with a module's buffers and submodules."""
    prefix, buffers = f"{name}." if name else "", dict[str, Any]()
    slots = [slot for each in type(value).__mro__ for slot in getattr(each, "__slots__", ())]
    parts = {slot: getattr(value, slot) for slot in slots if slot[:2] != "__" and hasattr(value, slot)}
    parts |= getattr(value, "__dict__", {})
    if isinstance(value, torch.nn.Module):
        buffers, modules = parts["_buffers"], parts["_modules"]
        parts = {} if isinstance(value, GraphModule) else parts
        parts = {key: part for key, part in parts.items() if key not in _OF_TORCH} | modules
    return [
        *((StateChange(prefix + key, is_buffer=False), part) for key, part in parts.items()),
        *((StateChange(prefix + key, is_buffer=True), part) for key, part in buffers.items()),
    ]


def is_same(one: Any, other: Any) -> bool:
    """Whether two values are equal, or cannot be compared."""
    if type(one) is not type(other):
        return False
    try:
        one, other = (torch.as_tensor(each) if hasattr(each, "__array__") else each for each in (one, other))
        if not isinstance(one, torch.Tensor):
            return bool(one == other or one != one)  # noqa: PLR0124 - NaN
        if (one.shape, one.dtype) != (other.shape, other.dtype):
            return False
        return bool(((one == other) | ((one != one) & (other != other))).all())  # noqa: PLR0124 - as above
    except Exception:  # noqa: BLE001 - whatever the classes of values raise
        return True


def is_of_trace(values: Iterable[Any]) -> bool:
    """Whether a tensor among the values exists in a trace only."""
    return any(isinstance(value, FakeTensor) for value in values)


def left_by_traces(module: torch.nn.Module) -> list[str]:
    """Global variables and attributes of classes in which a trace of the module has left a tensor."""
    classes = dict.fromkeys(type(part) for part in module.modules())
    code = dict.fromkeys(each.__module__ for each in classes)
    owners = {name: sys.modules.get(name) for name in code} | {each.__qualname__: each for each in classes}
    return [
        f"{owner}.{name}"
        for owner, value in owners.items()
        for name, value in list(getattr(value, "__dict__", {}).items())
        if is_of_trace(pytree.tree_leaves(value))
    ]
