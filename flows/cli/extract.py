"""`pteforge extract`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ...artifacts.digest import digest_file
from ...errors import InputError
from .fat_input import named_payloads, open_fat_file, write_payload
from .fat_output import check_output
from .options import DATA
from .printable import printable
from .summary import format_size


def extract_payload(
    file: Annotated[Path, typer.Argument(help="A fat .pte file.", show_default=False)],
    name: Annotated[str, typer.Argument(help="Which payload.", show_default=False)],
    *,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="OUT.pte", help="Where it goes.", show_default=False)],
    data: DATA = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Take one payload out of a fat file: the plain .pte file that went into it, byte for byte."""
    check_output(out)
    container = open_fat_file(file, data).container
    payload, *more = named_payloads(file, container, [name])
    if more:
        raise InputError(f"{file} has {1 + len(more)} payloads called {name}; which one is meant cannot be said")
    try:
        write_payload(file, container, payload, out)
    except OSError as error:
        raise InputError(f"output cannot be written to {out}: {error.strerror or error}") from error
    sha256 = digest_file(out)
    if as_json:
        typer.echo(json.dumps({"file": str(out), "payload": name, "size": payload.size, "sha256": sha256}, indent=2))
    else:
        checked = "" if payload.sha256 else " (not checked: containers of version 1 have no digests)"
        typer.echo(f"{printable(str(out))}: {format_size(payload.size)}, SHA-256 {sha256}{checked}")
