"""The configs of torchao's `quantize_`, found by parsing its sources.

Parsing takes 25 ms once per process; importing torchao would take 3 s, also in a subprocess the first time, and the
check must stay light. A test compares the result with the imported classes.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from ...configs.base import did_you_mean
from ...configs.quantize import TorchaoTransform
from ...errors import TargetError
from ..engine.keys.code import parse_module
from ..engine.keys.search import ModuleSearch
from ..engine.stage import CallableParams, Params

PACKAGES = ("torchao.quantization", "torchao.prototype.quantization.codebook_coreml")
"""The second one is for codebooks, which Core ML supports."""


class TorchaoParams(Params):
    """One call of `torchao.quantization.quantize_`."""

    config: str
    fields: dict[str, Any] = Field(default={})  # its fields, as JSON
    otherwise: dict[str, Any] | None = None  # of layers whose features are no multiple of a group; None: refused
    include: tuple[str, ...] = ("*",)  # patterns of names of the layers to quantize
    exclude: tuple[str, ...] = ()  # patterns of names of layers to leave out
    layers: tuple[str, ...] = ("linear",)  # kinds of layers, ``linear`` and ``embedding``
    at_least: float | None = None  # share of the method's weights that must be integers after all transforms
    filter_fn: CallableParams | None = None  # says of every module whether to quantize it, in place of these
    rounding: Literal["nearest", "gptq"] = "nearest"


class EqualizingParams(Params):
    """How a decoder is changed, see `equalization`."""

    equalize: Literal["rotate", "awq"]
    bits: int = 4
    group_size: int = 32


_BASE = "AOBaseConfig"
_ENDING = "Config"
_INT_MM = "Int8DynamicActivationInt8WeightConfig"
_IN_INTEGERS = ("Int8DynamicActivationIntxWeightConfig", "IntxWeightOnlyConfig")


def class_name(written: str) -> str:
    """The name of a config's class from that name or its snake case; raises TargetError for unknown ones."""
    for name in torchao_configs():
        if written in (name, snake_case(name), snake_case(name.removesuffix(_ENDING))):
            return name
    known = tuple(torchao_configs())
    if written.islower():
        known = tuple(snake_case(name.removesuffix(_ENDING)) for name in known)
    raise TargetError(f"torchao.quantization has no config {written!r}{did_you_mean(written, known)}")


def check_transform(transform: TorchaoTransform) -> None:
    """Raises TargetError for an unknown config or unknown names of its params; does not check values."""
    name = class_name(transform.torchao)
    fields = torchao_configs()[name]
    if name == _INT_MM:
        raise TargetError(
            f"torchao's {name} multiplies with aten._int_mm, which ExecuTorch does not have; use "
            "int8_dynamic_activation_intx_weight with params: {weight_dtype: int8}"
        )
    if transform.rounding != "nearest" and (name not in _IN_INTEGERS or transform.layers != ("linear",)):
        names = " or ".join(snake_case(name.removesuffix(_ENDING)) for name in _IN_INTEGERS)
        rounding = f"`rounding: {transform.rounding}`"
        raise TargetError(f"{rounding} is for linear layers, with {names}; leave it out for others")
    for field in (*transform.params, *(transform.otherwise or ())):
        if field not in fields:
            raise TargetError(f"torchao's {name} has no field {field!r}{did_you_mean(field, fields)}")


@cache
def torchao_configs() -> Mapping[str, tuple[str, ...]]:
    """Fields of public config classes, except classes composed of other configs."""
    finder = ModuleSearch()
    modules: dict[str, set[str]] = {}
    for package in PACKAGES:
        for node in _statements(finder.locate(package)):
            if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module:
                names = {alias.name for alias in node.names if alias.asname is None and alias.name.endswith(_ENDING)}
                modules.setdefault(f"{package}.{node.module}", set()).update(names)
    found: dict[str, tuple[str, ...]] = {}
    for module, names in modules.items():
        for node in _statements(finder.locate(module)) if names else ():
            bases = [base.id for base in getattr(node, "bases", ()) if isinstance(base, ast.Name)]
            if isinstance(node, ast.ClassDef) and node.name in names and _BASE in bases:
                fields = _fields(node)
                if not any(_BASE in text for text in fields.values()):
                    found[node.name] = tuple(fields)
    return found


def _statements(file: Path | None) -> list[ast.stmt]:
    return parse_module(file.read_bytes(), str(file)).body if file else []


def _fields(definition: ast.ClassDef) -> dict[str, str]:
    return {
        node.target.id: ast.unparse(node.annotation)
        for node in definition.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


def snake_case(name: str) -> str:
    """The form in which recipes may write the name of one of torchao's classes."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
