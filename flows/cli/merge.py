"""`pteforge merge`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ...artifacts.nfat.contents import Description
from ...artifacts.nfat.data_file import kept_outside
from ...artifacts.nfat.fat_file import BACKEND_ID
from ...artifacts.nfat.limits import check_description
from ...artifacts.nfat.named_data import map_file
from ...artifacts.nfat.pack import pack_v2
from ...artifacts.pte.contents import PteFile
from ...artifacts.pte.reader import read_pte
from ...errors import FileFormatError, InputError
from ...runtime.signature import signature_mismatch
from .fat_input import data_files
from .fat_output import check_output, write_fat_file, written_size
from .options import DATA_OUT
from .printable import printable
from .summary import format_size


def merge_files(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME=]FILE.pte...",
            help="Plain .pte files by preference; the last needs no backend.",
            show_default=False,
        ),
    ],
    *,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="OUT.pte", help="Where it goes.", show_default=False)],
    data_out: DATA_OUT = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Make a fat file of plain ones that were made elsewhere. Payloads are called as their files, or as you say."""
    for path in filter(None, (out, data_out)):
        check_output(path)
    sources = [_open(argument) for argument in files]
    _check_names(sources)
    _check_fallback(sources[-1])
    for source in sources[:-1]:
        _check_signature(source, sources[-1])
    packed = pack_v2([(source.description, source.content) for source in sources])
    write_fat_file(packed, sources[-1].content, out, data_out)
    size, alone = written_size(out, data_out), sum(len(source.content) for source in sources)
    names = [source.name for source in sources]
    if as_json:
        typer.echo(json.dumps({"file": str(out), "payloads": names, "size": size, "sum": alone}, indent=2))
    else:
        shown = f"{format_size(size)}, payloads {', '.join(names)}; alone they have {format_size(alone)}"
        typer.echo(f"{printable(str(out))}: {shown}")


@dataclass(frozen=True, slots=True)
class _Source:
    """A file to merge: what it is called, where it is, its bytes and what they say."""

    name: str
    path: Path
    content: memoryview
    pte: PteFile

    @property
    def description(self) -> Description:
        """What the container says of it. The version of ExecuTorch that made it is not in a `.pte`."""
        return Description(self.name, self.pte.backends, tuple(method.name for method in self.pte.methods))


def _open(argument: str) -> _Source:
    name, path = _name_and_path(argument)
    content = map_file(path)
    try:
        pte = read_pte(content)
    except FileFormatError as error:
        raise FileFormatError(f"{path}: {error}") from error
    source = _Source(name, path, content, pte)
    if BACKEND_ID in pte.backends:
        raise InputError(f"{path} is a fat file itself, and those do not nest; `pteforge extract` takes payloads out")
    if kept_outside(path, pte) or data_files(path, None):
        raise InputError(f"{path} keeps weights in a .ptd file; payloads have to be complete: export it without")
    try:
        check_description(source.description)
    except FileFormatError as error:
        raise InputError(f"{path}: {error}; NAME={path.name} gives it another name") from error
    return source


def _name_and_path(argument: str) -> tuple[str, Path]:
    name, separator, path = argument.partition("=")
    if not separator or Path(argument).exists():  # a file's name may have an equals sign
        return Path(argument).stem, Path(argument)
    return name, Path(path)


def _check_names(sources: Sequence[_Source]) -> None:
    paths: dict[str, Path] = {}
    for source in sources:
        other = paths.setdefault(source.name, source.path)
        if other is not source.path:
            raise InputError(
                f"{other} and {source.path} would both be called {source.name}; NAME={source.path} gives another name"
            )


def _check_fallback(last: _Source) -> None:
    if last.pte.backends:
        raise InputError(
            f"{last.path} is the last payload and needs {', '.join(last.pte.backends)}; the last one has to run "
            "everywhere: put one there that needs no backend, such as a model lowered for the portable kernels"
        )


def _check_signature(source: _Source, last: _Source) -> None:
    """All payloads have to be called alike; the fat file takes the last one's signature."""
    methods = {method.name: method for method in source.pte.methods}
    wanted = {method.name: method for method in last.pte.methods}
    for name in sorted(wanted.keys() - methods.keys()):
        raise InputError(f"{source.path} has no method {name!r}, which {last.path} has")
    for name in sorted(methods.keys() - wanted.keys()):
        raise InputError(f"{source.path} has a method {name!r}, which {last.path} has not")
    for name, method in wanted.items():
        if problem := signature_mismatch(method, methods[name]):
            raise InputError(f"{source.path}: method {name!r}: {problem}, as in {last.path}")
