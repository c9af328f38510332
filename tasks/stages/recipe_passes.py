"""The passes that a recipe names, imported and made."""

from __future__ import annotations

import pkgutil
from collections.abc import Sequence
from typing import Any

from executorch.exir.pass_base import ExportedProgramPassBase
from executorch.exir.pass_manager import PassType
from torch.export import ExportedProgram

from ...errors import SourceError
from ..params import PassParams
from .user_code import failed


def recipe_passes(named: Sequence[PassParams], program: ExportedProgram) -> list[PassType | ExportedProgramPassBase]:
    """Calls what makes the passes.

    Args:
        named: the callables.
        program: the method's ATen program, for those that take it.

    Raises:
        SourceError: a callable cannot be imported, raises, or gives something else than passes.
    """
    return [
        each for position, params in enumerate(named) for each in _made(params, program, f"edge.passes[{position}]")
    ]


def _made(params: PassParams, program: ExportedProgram, where: str) -> list[PassType | ExportedProgramPassBase]:
    name = params.source["builder"]
    given = () if params.method is None else (params.method, program)
    try:
        made: Any = pkgutil.resolve_name(name)(*given, **params.source["kwargs"])
    except Exception as error:
        raise failed(f"{where} {name}", error) from error
    passes = list(made) if isinstance(made, list | tuple) else [made]
    for each in passes:
        if not (callable(each) or isinstance(each, ExportedProgramPassBase)):
            raise SourceError(f"{where} {name} gave a {type(each).__name__}, and not a pass")
    return passes
