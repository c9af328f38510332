"""The configs of torchao's `quantize_`, found by reading its sources: importing it would import torch."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from ..configs.source_transforms import TorchaoTransform
from ..configs.suggestions import did_you_mean
from ..errors import TargetError
from .keys.code import parse_module
from .keys.search import ModuleSearch

PACKAGES = ("torchao.quantization", "torchao.prototype.quantization.codebook_coreml")
"""Where they are; the second one is for codebooks, which Core ML takes."""

_BASE = "AOBaseConfig"
_ENDING = "Config"


def class_name(written: str) -> str:
    """The name of a config's class, whether written as such or in snake case; TargetError where there is none."""
    for name in torchao_configs():
        if written in (name, snake_case(name), snake_case(name.removesuffix(_ENDING))):
            return name
    known = tuple(torchao_configs())
    if written.islower():
        known = tuple(snake_case(name.removesuffix(_ENDING)) for name in known)
    raise TargetError(f"torchao.quantization has no config {written!r}{did_you_mean(written, known)}")


def check_transform(transform: TorchaoTransform) -> None:
    """Checks a transform's config and the names of its params, but not their values; TargetError where they are not."""
    name = class_name(transform.torchao)
    fields = torchao_configs()[name]
    for field in transform.params:
        if field not in fields:
            raise TargetError(f"torchao's {name} has no field {field!r}{did_you_mean(field, fields)}")


@cache
def torchao_configs() -> Mapping[str, tuple[str, ...]]:
    """Public config classes to their fields, those left out that are made of other configs."""
    search = ModuleSearch()
    modules: dict[str, set[str]] = {}
    for package in PACKAGES:
        for node in _statements(search.locate(package)):
            if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module:
                names = {alias.name for alias in node.names if alias.asname is None and alias.name.endswith(_ENDING)}
                modules.setdefault(f"{package}.{node.module}", set()).update(names)
    found: dict[str, tuple[str, ...]] = {}
    for module, names in modules.items():
        for node in _statements(search.locate(module)) if names else ():
            if isinstance(node, ast.ClassDef) and node.name in names and _derives(node):
                fields = dict(_fields(node))
                if not any(_BASE in text for text in fields.values()):
                    found[node.name] = tuple(fields)
    return found


def _statements(file: Path | None) -> list[ast.stmt]:
    return parse_module(file.read_bytes(), str(file)).body if file else []


def _derives(definition: ast.ClassDef) -> bool:
    return any(isinstance(base, ast.Name) and base.id == _BASE for base in definition.bases)


def _fields(definition: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Names and annotations."""
    for node in definition.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, ast.unparse(node.annotation)


def snake_case(name: str) -> str:
    """How recipes may write the name of one of torchao's classes."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
