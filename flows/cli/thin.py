"""`pteforge thin`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ...artifacts.nfat.container import Container
from ...artifacts.nfat.contents import DEFAULT_ALIGNMENT, Payload
from ...artifacts.nfat.pack import PackedContainer, pack_v2
from ...artifacts.nfat.v1 import VERSION as V1
from ...artifacts.nfat.v1 import pack_v1
from ...errors import InputError
from ...runtime.scratch import scratch_folder
from .fat_input import map_payload, named_payloads, open_fat_file, split_names
from .fat_output import check_output, write_fat_file, written_size
from .options import DATA, DATA_OUT
from .printable import printable
from .summary import format_size


def thin_file(
    file: Annotated[Path, typer.Argument(help="A fat .pte file.", show_default=False)],
    *,
    keep: Annotated[
        list[str], typer.Option(metavar="NAME,...", help="Payloads to keep; their order stays.", show_default=False)
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="OUT.pte", help="Where it goes.", show_default=False)],
    data: DATA = None,
    data_out: DATA_OUT = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Make a fat file of some payloads of another one: the file that packing just those gives, byte for byte."""
    for path in filter(None, (out, data_out)):
        check_output(path)
    names = split_names(keep)
    if not names:
        raise InputError("--keep names no payload")
    container = open_fat_file(file, data).container
    payloads = named_payloads(file, container, names)
    with scratch_folder() as folder:
        contents = [map_payload(file, container, each, folder / str(index)) for index, each in enumerate(payloads)]
        write_fat_file(_pack(container, payloads, contents), contents[-1], out, data_out)
    kept, size = [payload.name for payload in payloads], written_size(out, data_out)
    if as_json:
        typer.echo(json.dumps({"file": str(out), "payloads": kept, "size": size}, indent=2))
        return
    typer.echo(f"{printable(str(out))}: {format_size(size)}, payloads {', '.join(kept)}")
    if needed := payloads[-1].description.backends:
        typer.echo(f"note: it has no fallback; the last payload needs {', '.join(needed)}", err=True)


def _pack(container: Container, payloads: tuple[Payload, ...], contents: list[memoryview]) -> PackedContainer:
    """The payloads as a container of the same version. Without a fallback if that is what is wanted."""
    if container.version == V1:
        # Which payload uses what of the named data is not known in version 1.
        named = {key: memoryview(content) for key, content in container.named_data.items()}
        entries = [(each.name, content) for each, content in zip(payloads, contents, strict=True)]
        return PackedContainer(pack_v1(entries), named, DEFAULT_ALIGNMENT)
    return pack_v2(
        [(each.description, content) for each, content in zip(payloads, contents, strict=True)],
        alignment=container.manifest.alignment,
        metadata=container.manifest.metadata,
        fallback=False,
    )
