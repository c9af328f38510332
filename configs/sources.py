"""Where a model comes from: a Python builder, or an exported program in a file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, JsonValue, Strict, Tag

from .base import FrozenModel

_BUILDER = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*(?:\.[^\W\d]\w*)*\Z")
_EITHER = "must be 'package.module:callable', the path of a .pt2 file, or a mapping with either `builder` or `program`"


def check_builder_name(text: str) -> str:
    """Checks the form ``package.module:callable``; raises ValueError for another one."""
    if not _BUILDER.match(text):
        raise ValueError(f"{text!r} is neither 'package.module:callable' nor the path of a .pt2 file")
    return text


BuilderName = Annotated[str, AfterValidator(check_builder_name)]
"""``package.module:name`` of something in the user's code."""


class BuilderSource(FrozenModel):
    """Python code that makes the model.

    The name stands for a callable that returns a `pteforge.ModelDefinition`, or a pair of a module and its example
    inputs; or for a class with the methods of ExecuTorch's ``EagerModelBase``: ``get_eager_model``,
    ``get_example_inputs`` and, if it likes, ``get_dynamic_shapes``. Which of them it is, the worker finds out.
    """

    builder: BuilderName = Field(
        description="package.module:callable, importable from python_path or from the environment."
    )
    kwargs: dict[str, JsonValue] = Field(default={}, description="Keyword arguments of the callable.")
    files: tuple[Path, ...] = Field(
        default=(),
        description="Files that the builder reads, such as checkpoints; the model is made again when they change.",
    )


class Dataset(FrozenModel):
    """Python code that gives samples, one after another."""

    dataset: BuilderName = Field(
        description="package.module:name of an iterable, or of a callable that gives one. Each sample is a tuple of "
        "positional inputs, or the only input."
    )
    kwargs: dict[str, JsonValue] = Field(default={}, description="Keyword arguments of the callable.")
    files: tuple[Path, ...] = Field(
        default=(), description="Files that it reads, relative to the zoo file; it is read again when they change."
    )
    samples: Annotated[int, Strict()] = Field(default=128, ge=1, description="Most samples to take.")


class ProgramSource(FrozenModel):
    """A program that ``torch.export.save`` wrote."""

    program: Path = Field(description="Path of the .pt2 file.")


def expand_source(written: object) -> object:
    """The mapping that a source's short form stands for; anything but text passes through."""
    if not isinstance(written, str):
        return written
    return {"program": written} if written.endswith(".pt2") else {"builder": written}


def _kind(source: object) -> str | None:
    if isinstance(source, BuilderSource | ProgramSource):
        return "<builder>" if isinstance(source, BuilderSource) else "<program>"
    if not isinstance(source, dict) or ("builder" in source) == ("program" in source):
        return None
    return "<builder>" if "builder" in source else "<program>"


Source = Annotated[
    Annotated[BuilderSource, Tag("<builder>")] | Annotated[ProgramSource, Tag("<program>")],
    Discriminator(_kind, custom_error_type="source", custom_error_message=_EITHER),
    BeforeValidator(expand_source),
]
"""Either source; a text is short for the mapping with just `builder` or `program`."""
