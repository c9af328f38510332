"""Where a model and its samples come from: a Python builder, an exported program in a file, a dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field, JsonValue, Strict, Tag

from .base import FrozenModel, ObjectReference, by_key


class BuilderSource(FrozenModel):
    """Python code that makes the model.

    The reference names a callable that returns a `pteforge.ModelDefinition` or a pair of a module and its example
    inputs, or a class with the methods of ExecuTorch's ``EagerModelBase``: ``get_eager_model``, ``get_example_inputs``
    and optionally ``get_dynamic_shapes``. The worker finds out which.
    """

    builder: ObjectReference = Field(description="package.module:callable, from python_path or the environment.")
    kwargs: dict[str, JsonValue] = Field({}, description="Keyword arguments of the callable.")
    files: tuple[Path, ...] = Field(
        (), description="Files that the builder reads, such as checkpoints; the model is built again when they change."
    )


class ProgramSource(FrozenModel):
    """A program that ``torch.export.save`` wrote."""

    program: Path = Field(description="Path of the .pt2 file.")


class Dataset(FrozenModel):
    """Python code that yields samples."""

    dataset: ObjectReference = Field(
        description="package.module:name of an iterable, or of a callable that returns one. Each sample is a tuple of "
        "positional inputs, or the only input."
    )
    kwargs: dict[str, JsonValue] = Field({}, description="Keyword arguments of the callable.")
    files: tuple[Path, ...] = Field(
        (), description="Files that it reads, relative to the zoo file; samples are read again when they change."
    )
    samples: Annotated[int, Strict()] = Field(128, ge=1, description="Maximum number of samples to take.")


def source_key(text: str) -> str:
    """The key that a source written as text is short for: ``program`` or ``builder``."""
    return "program" if text.endswith(".pt2") else "builder"


_PROBLEM = "must be 'package.module:callable', the path of a .pt2 file, or a mapping with either `builder` or `program`"

Source = Annotated[
    Annotated[BuilderSource, Tag("<builder>")] | Annotated[ProgramSource, Tag("<program>")],
    by_key("builder", "program", problem=_PROBLEM),
    BeforeValidator(lambda written: {source_key(written): written} if isinstance(written, str) else written),
]
"""Either source; text is short for a mapping with only `builder` or `program`."""
