"""The passes that recipes name by import path."""

from __future__ import annotations

import pkgutil
from collections.abc import Sequence
from typing import Any

from executorch.exir.pass_base import ExportedProgramPassBase
from executorch.exir.pass_manager import PassType
from torch.export import ExportedProgram

from ...errors import SourceError
from ..stage import CallableParams
from .model_source import user_code_error


def recipe_passes(
    named: Sequence[tuple[CallableParams, str | None]], program: ExportedProgram
) -> list[PassType | ExportedProgramPassBase]:
    """The passes that callables make, each given a method's name and its program, or nothing where the name is None.

    Raises:
        SourceError: a callable cannot be imported, raises, or does not return passes.
    """
    return [
        made
        for position, (params, method) in enumerate(named)
        for made in _made(params, () if method is None else (method, program), f"edge.passes[{position}]")
    ]


def run_aten_passes(named: Sequence[CallableParams], method: str, program: ExportedProgram) -> ExportedProgram:
    """The program after functions of a method's name and its ATen program, each of which returns a program.

    Raises:
        SourceError: a function cannot be imported, raises, or does not return a program.
    """
    for position, params in enumerate(named):
        name = params.source["builder"]
        where = f"aten_passes[{position}] {name}"
        try:
            made: Any = pkgutil.resolve_name(name)(method, program, **params.source["kwargs"])
        except Exception as error:
            raise user_code_error(where, error) from error
        if not isinstance(made, ExportedProgram):
            raise SourceError(
                f"{where} gave a {type(made).__name__}, and not the program; return it, also if unchanged"
            )
        program = made
    return program


def _made(params: CallableParams, given: tuple[Any, ...], where: str) -> list[PassType | ExportedProgramPassBase]:
    name = params.source["builder"]
    try:
        made: Any = pkgutil.resolve_name(name)(*given, **params.source["kwargs"])
    except Exception as error:
        raise user_code_error(f"{where} {name}", error) from error
    passes = list(made) if isinstance(made, list | tuple) else [made]
    for found in passes:
        if not (callable(found) or isinstance(found, ExportedProgramPassBase)):
            raise SourceError(f"{where} {name} gave a {type(found).__name__}, and not a pass")
    return passes
