"""Models: one of a zoo, with its source, shapes, calibration data and limits; and what a builder returns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import (
    AfterValidator,
    ConfigDict,
    Discriminator,
    Field,
    RootModel,
    StrictBool,
    StrictInt,
    Tag,
    field_validator,
    model_validator,
)

from .base import Bytes, FrozenModel, MethodName, Names, Seconds
from .metadata import Metadata
from .sources import Dataset, ProgramSource, Source
from .verification import Accuracy, VerifyOverrides

if TYPE_CHECKING:
    import torch


class DimRange(FrozenModel):
    """The range of a dynamic dimension."""

    min: StrictInt = Field(ge=0, description="Smallest size.")
    max: StrictInt = Field(ge=1, description="Largest size.")
    name: str | None = Field(None, description="Identifier; dimensions of one name are equal; null: independent.")
    multiple_of: StrictInt = Field(
        1, ge=1, exclude_if=lambda step: step == 1, description="All sizes are multiples of it, min and max too."
    )

    @model_validator(mode="after")
    def _bounds_and_name(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min ({self.min}) is more than max ({self.max})")
        for bound, size in (("min", self.min), ("max", self.max)):
            if size % self.multiple_of:
                raise ValueError(f"{bound} ({size}) is no multiple of {self.multiple_of}")
        if self.name is not None and not self.name.isidentifier():
            raise ValueError(f"name {self.name!r} is not a Python identifier")
        return self


def _shape_kind(value: object) -> str | None:
    if value is None:
        return "<static>"
    if isinstance(value, dict):
        return "<dims>"
    return "<nested>" if isinstance(value, list | tuple) else None


DimIndex = Annotated[int, Field(ge=0)]


class InputShape(RootModel[object]):
    """One input: a tensor's dynamic dimensions by index, None if it is static, or the shapes of a tuple's parts."""

    model_config = ConfigDict(frozen=True)

    root: Annotated[
        Annotated[None, Tag("<static>")]
        | Annotated[dict[DimIndex, DimRange], Tag("<dims>")]
        | Annotated[tuple[InputShape, ...], Tag("<nested>")],
        Discriminator(
            _shape_kind,
            custom_error_type="input_shape",
            custom_error_message="must be a mapping of dimension index to {min, max, name, multiple_of}, null for "
            "a static input, or a list of these for an input that is a tuple",
        ),
    ]

    def ranges(self) -> list[DimRange]:
        if isinstance(self.root, dict):
            return list(self.root.values())
        return [dim for part in self.root or () for dim in part.ranges()]


def _shapes_kind(value: object) -> str | None:
    if isinstance(value, dict):
        return "<by name>"
    return "<by position>" if isinstance(value, list | tuple) else None


MethodShapes = Annotated[
    Annotated[tuple[InputShape, ...], Tag("<by position>")] | Annotated[dict[str, InputShape], Tag("<by name>")],
    Discriminator(
        _shapes_kind,
        custom_error_type="method_shapes",
        custom_error_message="must be a list with one entry per input, or a mapping of the names of inputs to entries",
    ),
]
DynamicShapes = dict[MethodName, MethodShapes]
"""Method name to one entry per input, or to entries of inputs by the names of ``forward``'s parameters."""


def _check_dim_names(shapes: DynamicShapes) -> DynamicShapes:
    for method, entries in shapes.items():
        inputs = entries.values() if isinstance(entries, dict) else entries
        named: dict[str, DimRange] = {}
        for dim in (dim for shape in inputs for dim in shape.ranges()):
            if dim.name and named.setdefault(dim.name, dim) != dim:
                raise ValueError(f"the dimension {dim.name!r} of {method} has different bounds in two places")
    return shapes


def _check_sizes(sizes: tuple[int, ...]) -> tuple[int, ...]:
    if not sizes or any(size >= following for size, following in pairwise(sizes)):
        raise ValueError(f"{list(sizes)} must be sizes in ascending order, at least one, each once")
    return sizes


BucketSizes = Annotated[
    tuple[Annotated[StrictInt, Field(ge=1)], ...],
    AfterValidator(_check_sizes),
    Field(json_schema_extra={"minItems": 1}),
]

_MOST_BUCKETS = 32


class MethodConfig(FrozenModel):
    """What a zoo asks of one method of a model."""

    buckets: dict[str, BucketSizes] = Field(
        {},
        description="Name of a dynamic dimension to ascending sizes. The method becomes one method for each size, or "
        "combination of sizes, in which the dimension is static: forward_32, forward_128.",
    )

    @field_validator("buckets")
    @classmethod
    def _not_too_many(cls, buckets: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        if (count := math.prod(map(len, buckets.values()))) > _MOST_BUCKETS:
            raise ValueError(f"has {count} combinations of sizes, each of which is exported; at most {_MOST_BUCKETS}")
        return buckets


class DeviceLimits(FrozenModel):
    """Bytes that each method of a file may take on a device, with the largest of the inputs that are tried."""

    planned: Bytes | None = Field(None, description="Planned memory, all ids together: bytes, or text such as 256KiB.")
    method: Bytes | None = Field(None, description="Buffer of the method allocator; needs a place with nfat_run.")
    total: Bytes | None = Field(
        None, description="Planned memory, both allocators, and heap of backends and kernels; needs such a place."
    )

    @property
    def written(self) -> dict[str, int]:
        """The limits by name, without those that are left out."""
        return {name: limit for name in type(self).model_fields if (limit := getattr(self, name)) is not None}


class Limits(FrozenModel):
    """Limits of each stage of a model, where a stage that exceeds one is killed; and of its methods on a device."""

    timeout: Seconds = Field(3600.0, description="Wall time of one stage: seconds, or text such as 90s, 10m, 1h30m.")
    memory: Bytes = Field(8 * 2**30, description="Memory of one stage: bytes, or text such as 512MiB, 4GiB.")
    device: DeviceLimits | None = Field(None, description="Memory of methods on a device; recipes that need more fail.")


class ModelOptions(FrozenModel):
    """How a model is exported, wherever it comes from."""

    seed: StrictInt = Field(0, ge=0, lt=2**63, description="Random seed that is set before the builder runs.")
    strict: StrictBool = Field(False, description="Trace with torch.export's strict mode.")
    dynamic_shapes: Annotated[DynamicShapes, AfterValidator(_check_dim_names)] | None = Field(
        None,
        description="Replaces the builder's dynamic shapes: method name to a list with one entry per input, or to a "
        "mapping of inputs' names to entries. An entry is a mapping of dimension index to {min, max, name, "
        "multiple_of}, null for a static input, or a list of entries for an input that is a tuple.",
    )
    methods: dict[MethodName, MethodConfig] = Field({}, description="Method name to its buckets (static sizes).")
    calibration: dict[str, Dataset] | None = Field(
        None, description="Method name to the dataset that calibrates quantizers; other methods use the example inputs."
    )
    limits: Limits = Field(Limits(), description="Limits of each stage, and of methods on a device.")
    metadata: Metadata | None = Field(
        None, description="What the file says about the model: labels, preprocessing, licence, where it comes from."
    )


class ModelConfig(ModelOptions):
    """One model of a zoo."""

    source: Source = Field(description="A builder (package.module:callable), a .pt2 file, or a model (hf:org/name).")
    recipes: Names | None = Field(None, description="Recipes to lower it with; left out: those of the zoo's defaults.")
    verify: VerifyOverrides | None = Field(None, description="Bounds that replace those of the recipe, field by field.")
    accuracy: Accuracy | None = Field(None, description="Replaces the recipe's evaluator or bounds, field by field.")

    @model_validator(mode="after")
    def _buckets_need_modules(self) -> Self:
        if isinstance(self.source, ProgramSource) and any(method.buckets for method in self.methods.values()):
            raise ValueError(
                "methods: a .pt2 file is exported already, so its sizes cannot become static; "
                "give a builder, or export a program for each size"
            )
        return self


@dataclass(frozen=True)
class MethodDefinition:
    """One entry point of a model.

    Attributes:
        module: the ``nn.Module`` whose ``forward`` becomes the method. Methods may share submodules and so weights.
        example_inputs: one tuple of positional arguments per example; tensors of the shapes and dtypes that the
            method takes on the device. The first one traces; verification runs all of them.
        dynamic_shapes: as ``torch.export.export`` takes it, for all arguments; None where all is static.
        example_kwarg_inputs: one mapping of keyword arguments per example; empty where all are positional. The file
            takes inputs by position: keywords follow, in the order of the first example's.
        padding: parameter name to the value that fills an input up to the size of a bucket, of a module whose outputs
            do not depend on what is added, such as 0 for a mask. `export` tries it with eager.
    """

    module: torch.nn.Module
    example_inputs: Sequence[tuple[Any, ...]] = ()
    dynamic_shapes: Mapping[str, Any] | Sequence[Any] | None = None
    example_kwarg_inputs: Sequence[Mapping[str, Any]] = ()
    padding: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class MethodCall:
    """One call of a method, with its positional and keyword arguments."""

    method: str
    inputs: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ModelDefinition:
    """A model as a builder hands it over.

    Attributes:
        methods: method name (a Python identifier, ``forward`` for the usual single one) to its definition.
        constant_methods: name to what the file returns without computing: int, float, bool, str, torch.dtype, tensors,
            and lists, tuples and dicts of them, which the runtime gives flat.
        sequences: calls that verification makes one after another on one loaded program, each sequence from fresh
            state; for methods that share their state (``compile.share_mutable_buffers``).
        assets: name to content of files that are delivered next to the model's `.pte` files, such as a tokenizer.
        metadata: what the file says about the model: a `pteforge.configs.Metadata`, or a mapping of its fields. A zoo's
            `metadata` replaces it, field by field.
        notes: what else is to be known of its files, as warnings say it.
    """

    methods: Mapping[str, MethodDefinition]
    constant_methods: Mapping[str, Any] = field(default_factory=dict)
    sequences: Sequence[Sequence[MethodCall]] = ()
    assets: Mapping[str, bytes] = field(default_factory=dict)
    metadata: Metadata | Mapping[str, Any] | None = None
    notes: Sequence[str] = ()
