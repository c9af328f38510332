"""torchao's configs, made of the plain values that a recipe gives for their fields."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterator, Mapping
from enum import Enum
from types import NoneType, UnionType
from typing import Any, ForwardRef, Union, get_args, get_origin

import torch
from torchao.core.config import AOBaseConfig
from torchao.quantization import granularity
from torchao.quantization.granularity import Granularity

from ...configs.suggestions import did_you_mean
from ...errors import TargetError
from ..torchao_configs import PACKAGES, snake_case


def make_config(name: str, fields: Mapping[str, Any]) -> AOBaseConfig:
    """A config of torchao's `quantize_`.

    Args:
        name: name of its class.
        fields: its fields as JSON: data types and members of enums by name; granularities by name in snake case, alone
            (``per_row``) or as the only key of a mapping to their size or axis (``{per_group: 32}``).

    Raises:
        TargetError: there is no such class or field, a value is not of the field's type, or torchao refuses it.
    """
    package = next((each for each in PACKAGES if hasattr(importlib.import_module(each), name)), PACKAGES[0])
    found = getattr(importlib.import_module(package), name, None)
    if not (isinstance(found, type) and issubclass(found, AOBaseConfig) and dataclasses.is_dataclass(found)):
        raise TargetError(f"torchao.quantization has no config {name!r}")
    types = {field.name: field.type for field in dataclasses.fields(found)}
    values = {}
    for field, written in fields.items():
        if field not in types:
            raise TargetError(f"torchao's {name} has no field {field!r}{did_you_mean(field, tuple(types))}")
        values[field] = _value(written, tuple(_members(types[field])), f"torchao's {name}: {field}")
    if "set_inductor_config" in types:
        # It is about torch.compile, which has no part in this, and would change settings of the whole process.
        values.setdefault("set_inductor_config", False)
    try:
        config: AOBaseConfig = found(**values)
    except Exception as error:
        raise TargetError(f"torchao's {name} refuses {dict(fields)}: {type(error).__name__}: {error}") from error
    return config


def group_size(config: AOBaseConfig) -> int | None:
    """How many weights of a row share a scale; None where that is no fixed number."""
    for name, value in vars(config).items():
        size = value.group_size if isinstance(value, granularity.PerGroup) else value if name == "group_size" else None
        if isinstance(size, int) and size > 0:
            return size
    return None


def _value(written: Any, types: tuple[Any, ...], what: str) -> Any:
    """What a JSON value stands for in a field of these types."""
    for kind in types:
        if kind in (NoneType, bool, int, str) and type(written) is kind:
            return written
        if kind is float and type(written) in (int, float):
            return float(written)
        if kind is torch.dtype and isinstance(written, str):
            return _data_type(written, what)
        if isinstance(kind, type) and issubclass(kind, Enum) and isinstance(written, str):
            return _member(written, kind, what)
        if _is_granularity(kind) and isinstance(written, str | dict):
            return _granularity(written, what)
        if get_origin(kind) is list and isinstance(written, list):
            return [_value(each, tuple(_members(get_args(kind)[0])), what) for each in written]
    expected = " or ".join(getattr(kind, "__name__", str(kind)) for kind in types)
    raise TargetError(f"{what} must be {expected}, not {written!r}")


def _data_type(written: str, what: str) -> torch.dtype:
    found = getattr(torch, written.removeprefix("torch."), None)
    if not isinstance(found, torch.dtype):
        names = sorted(name for name, value in vars(torch).items() if isinstance(value, torch.dtype))
        raise TargetError(f"{what}: {written!r} is no data type of torch{did_you_mean(written, names)}")
    return found


def _member(written: str, kind: type[Enum], what: str) -> Enum:
    names = {member.name.lower(): member for member in kind}
    if written.lower() not in names:
        raise TargetError(f"{what}: {kind.__name__} has no {written!r}{did_you_mean(written, tuple(names))}")
    return names[written.lower()]


def _granularity(written: str | dict[str, Any], what: str) -> Granularity:
    classes = {
        snake_case(name): found
        for name, found in vars(granularity).items()
        if isinstance(found, type) and issubclass(found, Granularity) and found is not Granularity
    }
    name, *others = [written] if isinstance(written, str) else list(written)
    if others or name not in classes:
        raise TargetError(
            f"{what} is a granularity, such as per_row or {{per_group: 32}}; {written!r} is none"
            f"{did_you_mean(name, tuple(classes))}"
        )
    sizes = () if isinstance(written, str) else (_tuple(written[name]),)
    if any(type(size) is not int for size in (sizes[0] if sizes and isinstance(sizes[0], tuple) else sizes)):
        raise TargetError(f"{what}: {name} takes whole numbers, not {written[name]!r}")  # type: ignore[index]  # a str has no sizes
    try:
        made: Granularity = classes[name](*sizes)
    except TypeError as error:
        raise TargetError(f"{what}: {error}; write it as {{{name}: NUMBER}}") from error
    return made


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _is_granularity(kind: Any) -> bool:
    if isinstance(kind, ForwardRef):
        return isinstance(getattr(granularity, kind.__forward_arg__, None), type)
    return isinstance(kind, type) and issubclass(kind, Granularity)


def _members(annotation: Any) -> Iterator[Any]:
    if get_origin(annotation) in (Union, UnionType):
        for member in get_args(annotation):
            yield from _members(member)
    else:
        yield annotation
