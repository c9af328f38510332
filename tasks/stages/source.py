"""Building a model from its source, inside the worker: the user's code runs here and nowhere else."""

from __future__ import annotations

import os
import pkgutil
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram

from ...configs.definition import MethodDefinition, ModelDefinition
from ...errors import SourceError
from ..stage import Workspace
from .user_code import failed


@dataclass(frozen=True)
class BuiltModel:
    """A model ready to export.

    Attributes:
        definition: its methods; for a `.pt2` file the module of its one method runs the exported program.
        program: the program of a `.pt2` file, which needs no export.
        keyword_inputs: keyword example inputs of a `.pt2` file.
    """

    definition: ModelDefinition
    program: ExportedProgram | None = None
    keyword_inputs: Mapping[str, Any] | None = None


def seed_everything(seed: int) -> None:
    """Seeds torch, numpy and random: random weights and inputs are the same in every run."""
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - builders use the global generator, so it is the one to seed
    random.seed(seed)


def build_model(source: Mapping[str, Any], seed: int, work: Workspace) -> BuiltModel:
    """Builds a model in the zoo file's folder, everything seeded.

    Args:
        source: key fields of its source.
        seed: for `seed_everything`.
        work: where.

    Raises:
        SourceError: the builder fails, or the `.pt2` file cannot be read.
    """
    os.chdir(work.folder)
    seed_everything(seed)
    return load_program_file(work.program_file) if work.program_file else build(source["builder"], source["kwargs"])


def build(builder: str, arguments: Mapping[str, Any]) -> BuiltModel:
    """Calls a builder.

    Args:
        builder: ``pkg.mod:name`` of a callable, or of a class with get_eager_model and get_example_inputs.
        arguments: its keyword arguments.

    Raises:
        SourceError: it cannot be imported, raises, or returns something else than a model definition.
    """
    try:
        made = pkgutil.resolve_name(builder)(**arguments)
        definition = _eager_model(made) if hasattr(made, "get_eager_model") else _definition(builder, made)
    except SourceError:
        raise
    except Exception as error:
        raise failed(f"builder {builder}", error) from error
    check_definition(f"builder {builder}", definition)
    return BuiltModel(definition)


def load_program_file(path: Path) -> BuiltModel:
    """Reads a `.pt2` file.

    Raises:
        SourceError: it cannot be read, or was saved without example inputs.
    """
    try:
        program = torch.export.load(path)
    except Exception as error:
        raise SourceError(f"{path.name} is not a program that torch {torch.__version__} can load: {error}") from error
    if program.example_inputs is None:
        raise SourceError(
            f"{path.name} holds no example inputs, so nothing could be verified; save it as torch.export.export made it"
        )
    args, kwargs = program.example_inputs
    method = MethodDefinition(module=program.module(), example_inputs=[tuple(args)])
    return BuiltModel(ModelDefinition({"forward": method}), program, kwargs)


def _eager_model(made: Any) -> ModelDefinition:
    """The shape of executorch.examples.models.model_base.EagerModelBase."""
    shapes = made.get_dynamic_shapes() if hasattr(made, "get_dynamic_shapes") else None
    method = MethodDefinition(made.get_eager_model(), [tuple(made.get_example_inputs())], shapes)
    return ModelDefinition({"forward": method})


def _definition(builder: str, made: Any) -> ModelDefinition:
    match made:
        case ModelDefinition():
            return made
        case (torch.nn.Module() as module, tuple() as inputs):
            return ModelDefinition({"forward": MethodDefinition(module, [inputs])})
        case (torch.nn.Module() as module, list() as examples):
            return ModelDefinition({"forward": MethodDefinition(module, examples)})
    raise SourceError(
        f"builder {builder} returned {type(made).__name__}; it must return a pteforge.ModelDefinition, "
        "or a pair of an nn.Module and a tuple of example inputs"
    )


def check_definition(what: str, definition: ModelDefinition) -> None:
    """Checks a definition; raises SourceError, whose message begins with `what` it is."""
    if not definition.methods:
        raise SourceError(f"{what} defines no method")
    for name, method in definition.methods.items():
        if not name.isidentifier():
            raise SourceError(f"{what}: method name {name!r} is not a Python identifier")
        if not isinstance(method.module, torch.nn.Module):
            raise SourceError(f"{what}: method {name!r} has a {type(method.module).__name__} as its module")
        examples: Sequence[Any] = method.example_inputs
        if not examples or not all(isinstance(example, tuple) for example in examples):
            raise SourceError(f"{what}: example_inputs of {name!r} must be a list of tuples, at least one")
    if clash := set(definition.methods) & set(definition.constant_methods):
        raise SourceError(f"{what}: {sorted(clash)} are methods and constant methods at once")
