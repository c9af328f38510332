"""What a model builder returns: methods with example inputs. Torch is not imported here, so that configs stay light."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .metadata import Metadata

if TYPE_CHECKING:
    import torch


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
    """

    module: torch.nn.Module
    example_inputs: Sequence[tuple[Any, ...]] = ()
    dynamic_shapes: Mapping[str, Any] | Sequence[Any] | None = None
    example_kwarg_inputs: Sequence[Mapping[str, Any]] = ()


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
    """

    methods: Mapping[str, MethodDefinition]
    constant_methods: Mapping[str, Any] = field(default_factory=dict)
    sequences: Sequence[Sequence[MethodCall]] = ()
    assets: Mapping[str, bytes] = field(default_factory=dict)
    metadata: Metadata | Mapping[str, Any] | None = None
