"""What a recipe does to a model's modules before they are exported."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, JsonValue, Tag

from .base import FrozenModel
from .sources import BuilderName

_EITHER = "must be a mapping with either `torchao`, the name of a config, or `callable`, package.module:name"


def _in_tuple(written: object) -> object:
    return (written,) if isinstance(written, str) else written


def _not_empty(value: tuple[str, ...]) -> tuple[str, ...]:
    if not value:
        raise ValueError("is empty; leave it out to take every layer")
    return value


Patterns = Annotated[tuple[str, ...], BeforeValidator(_in_tuple)]
"""Shell patterns (`fnmatch`) of fully qualified module names; a text is short for a list of one."""


class TorchaoTransform(FrozenModel):
    """Quantizes the weights of layers in place: ``torchao.quantization.quantize_`` with one of its configs."""

    torchao: str = Field(
        min_length=1,
        description="Name of a config of torchao.quantization, as its class is called or in snake case, such as "
        "int8_weight_only or Int8DynamicActivationIntxWeightConfig.",
    )
    params: dict[str, JsonValue] = Field(
        default={},
        description="Fields of the config. Data types by name (int4), enums by member, granularities as mappings such "
        "as {per_group: 32} and {per_axis: 0}, or by name (per_row).",
    )
    filter: Annotated[Patterns, AfterValidator(_not_empty)] = Field(
        default=("*",),
        description="Layers to quantize: patterns of their names in the method's module, such as encoder.*.",
    )
    exclude: Patterns = Field(default=(), description="Layers to leave alone: patterns, as for `filter`.")
    layers: tuple[Literal["linear", "embedding"], ...] = Field(
        default=("linear",), min_length=1, description="The kinds of layers to quantize."
    )


class CallableTransform(FrozenModel):
    """Calls a function of the user's with the method's module."""

    callable: BuilderName = Field(
        description="package.module:name of a function that takes the module and returns another one, or None after "
        "changing it in place. Importable from python_path or from the environment."
    )
    kwargs: dict[str, JsonValue] = Field(default={}, description="Keyword arguments of the function.")
    files: tuple[Path, ...] = Field(
        default=(),
        description="Files that it reads, relative to this file; the method is made again when they change.",
    )


def _kind(transform: object) -> str | None:
    if isinstance(transform, TorchaoTransform | CallableTransform):
        return "<torchao>" if isinstance(transform, TorchaoTransform) else "<callable>"
    if not isinstance(transform, dict) or ("torchao" in transform) == ("callable" in transform):
        return None
    return "<torchao>" if "torchao" in transform else "<callable>"


SourceTransform = Annotated[
    Annotated[TorchaoTransform, Tag("<torchao>")] | Annotated[CallableTransform, Tag("<callable>")],
    Discriminator(_kind, custom_error_type="transform", custom_error_message=_EITHER),
]
"""Either transform."""
