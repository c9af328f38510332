"""`pteforge metadata`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...errors import InputError, printable
from .options import AS_JSON
from .terminal import print_json

if TYPE_CHECKING:
    from ...formats.pte.metadata import MetadataValue


def show_metadata(
    file: Annotated[Path, typer.Argument(help="A .pte file.", show_default=False)],
    *,
    as_json: AS_JSON = False,
) -> None:
    """Show what a .pte file says about its model: labels, preprocessing, licence, where it comes from.

    The digest of its provenance is checked against the file next to it, FILE.json, if there is one.
    """
    from ...configs.metadata import PROVENANCE
    from ...formats.pte.metadata import metadata_json, read_metadata

    metadata = read_metadata(file)
    origin = _origin(file, metadata[PROVENANCE]) if PROVENANCE in metadata else None
    if as_json:
        print_json({"metadata": metadata_json(metadata), "origin": origin})
        return
    for line in metadata_lines(metadata):
        typer.echo(line)
    if not metadata:
        typer.echo(f"{printable(str(file))} has no metadata", err=True)
    elif origin:
        typer.echo(f"made from: {_made_from(origin)}")


def metadata_lines(metadata: Mapping[str, MetadataValue], limit: int | None = None) -> Iterator[str]:
    """A line for each entry, cut at `limit` characters of its value."""
    width = max(map(len, metadata), default=0)
    for key, value in metadata.items():
        text = ", ".join(map(str, value)) if isinstance(value, tuple) else _text(value)
        if limit is not None and len(text) > limit:
            count = f" ({len(value)} in all)" if isinstance(value, tuple) else ""
            text = f"{text[:limit]}...{count}"
        yield f"{printable(key):{width}}  {printable(text)}"


def _text(value: Any) -> str:
    return f"{len(value)} bytes" if isinstance(value, bytes) else str(value)


def _origin(file: Path, digest: object) -> Any | None:
    """What a digest is of, as the provenance next to the file has it; None if there is none, or it is another file's.

    Raises InputError if the provenance describes the file, but what it says was changed.
    """
    from ...artifacts.digest import digest_file, digest_json
    from ...artifacts.files import read_sidecar

    path = file.with_suffix(".json")
    try:
        written = json.loads(read_sidecar(path))
        origin, sha256 = written["origin"], written["file"]["sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if digest_file(file) != sha256:
        return None
    if digest_json(origin) != digest:
        raise InputError(
            f"{path} was changed: the SHA-256 of its `origin` is {digest_json(origin)}, and {file} says {digest}"
        )
    return origin


def _made_from(origin: Any) -> str:
    named = {name: origin.get(name) for name in ("model", "recipe")}
    toolchain = ", ".join(f"{name} {version}" for name, version in (origin.get("toolchain") or {}).items())
    return printable(f"model {named['model']}, recipe {named['recipe']}, with {toolchain}")
