"""`pteforge init`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ...errors import InputError, convert_os_errors
from . import completion
from .options import option


def init(
    builder: Annotated[str, typer.Argument(metavar="PACKAGE.MODULE:BUILDER", show_default=False)],
    file: Annotated[Path, typer.Argument(help="The zoo file to write.")] = Path("zoo.yaml"),
    *,
    recipe: Annotated[
        list[str] | None,
        option("A shipped recipe; may be given again.", "NAME", "xnnpack-fp32", complete=completion.shipped_recipes),
    ] = None,
) -> None:
    """Write a zoo file for a builder, the name of a model or a .pt2 file, with comments that say how to go on."""
    from ...configs.load import DEFAULT_RECIPE, zoo_text
    from ...configs.sources import expand_source

    folder, (kind, _) = file.absolute().parent, expand_source(builder)
    if kind == "program" and not (folder / builder).is_file():
        raise InputError(f"{builder!r} is no file in {folder}")
    optional, needed = _arguments(builder, folder) if kind == "builder" else ([], [])
    text = zoo_text(builder, recipe or [DEFAULT_RECIPE], optional, needed)
    if file.exists():
        raise InputError(f"{file} is there already, and is not overwritten; name another file")
    with convert_os_errors(InputError, f"{file} cannot be written"), file.open("x", encoding="utf-8") as opened:
        opened.write(text)
    typer.echo(f"wrote {file}; lower it with: pteforge export {file}")


def _arguments(builder: str, folder: Path) -> tuple[Sequence[str], Sequence[str]]:
    """What a builder takes, and what it needs; raises InputError if there is no such builder."""
    from ...configs.base import check_object_reference
    from ...tasks.engine.keys.builder import find_builder, find_signature
    from ...tasks.engine.keys.search import ModuleSearch

    try:
        check_object_reference(builder)
    except ValueError as error:
        raise InputError(f"{builder!r} is not written as package.module:builder") from error
    search = ModuleSearch((folder,))
    find_builder(builder, search)
    signature = find_signature(builder, search)
    needed = signature.needed if signature else ()
    return [name for name in signature.names if name not in needed] if signature else [], needed
