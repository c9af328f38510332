"""`pteforge extract`, `merge` and `thin`: commands that split and combine fat files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...artifacts.digest import digest_file
from ...errors import FileFormatError, InputError, convert_os_errors, printable
from ...tasks.results.tables import fat_cost, format_size
from . import completion
from .options import AS_JSON, DATA, DATA_OUT, OUT, argument, check_output, option, split_names
from .terminal import print_json
from .weights import data_files, open_fat_file

if TYPE_CHECKING:
    from ...formats.nfat.container import Buffer, Container
    from ...formats.nfat.contents import Description, Payload
    from ...formats.nfat.pack import PackedContainer
    from ...formats.pte.contents import PteFile


_SHARE_TRANSPOSED = Annotated[
    bool,
    typer.Option(
        "--share-transposed/--no-share-transposed",
        help="Store a weight once for several layouts, and for 32-bit and 16-bit numbers; no: for apps with a delegate "
        "that lacks it.",
    ),
]


def extract_payload(
    file: Annotated[Path, argument("A fat .pte file.")],
    name: Annotated[str, argument("The payload's name.", complete=completion.payloads)],
    *,
    out: OUT,
    data: DATA = None,
    as_json: AS_JSON = False,
) -> None:
    """Extract a payload from a fat file: the plain .pte that was packed, byte for byte."""
    check_output(out)
    container = open_fat_file(file, data).container
    payload, *more = _named_payloads(file, container, [name])
    if more:
        raise InputError(f"{file} has {1 + len(more)} payloads called {name}, so the name is ambiguous")
    with convert_os_errors(InputError, f"output cannot be written to {out}"):
        _unpack_payload(file, container, payload, out)
    sha256 = digest_file(out)
    if as_json:
        print_json({"file": str(out), "payload": name, "size": payload.size, "sha256": sha256})
        return
    unchecked = "" if payload.sha256 else " (not checked: containers of version 1 have no digests)"
    typer.echo(f"{printable(str(out))}: {format_size(payload.size)}, SHA-256 {sha256}{unchecked}")


def merge_files(
    files: Annotated[
        list[str], argument("Plain .pte files by preference; the last needs no backend.", "[NAME=]FILE.pte...")
    ],
    *,
    out: OUT,
    data_out: DATA_OUT = None,
    share_transposed: _SHARE_TRANSPOSED = True,
    as_json: AS_JSON = False,
) -> None:
    """Combine plain files into a fat one, with the metadata of the last. Payloads are named for their files."""
    from ...formats.nfat.pack import pack_v2
    from ...runtime.selection import scratch_folder

    check_output(out, data_out)
    with scratch_folder() as folder:
        sources = [_without_metadata(_open(argument), folder / str(index)) for index, argument in enumerate(files)]
        _check_distinct(sources)
        fallback = sources[-1]
        if backends := ", ".join(fallback.pte.backends):
            raise InputError(
                f"{fallback.path} is the last payload and needs {backends}, but has to run everywhere: end with a "
                "file that needs no backend, such as a model lowered for the portable kernels"
            )
        for source in sources[:-1]:
            _check_signature(source, fallback)
        payloads = [(source.description, source.content) for source in sources]
        packed = pack_v2(payloads, share_transposed=share_transposed)
        size = _write_fat_file(packed, fallback.content, out, data_out, metadata_of=fallback.path)
    sizes = {source.name: len(source.content) for source in sources}
    total = sum(sizes.values())
    if as_json:
        print_json({"file": str(out), "payloads": list(sizes), "size": size, "sum": total})
        return
    summary = f"{format_size(size)}, payloads {', '.join(sizes)}; separately they have {format_size(total)}"
    typer.echo(f"{printable(str(out))}: {summary}; {fat_cost(size, sizes)}")


def thin_file(
    file: Annotated[Path, argument("A fat .pte file.")],
    *,
    keep: Annotated[
        list[str], option("Payloads to keep; their order stays.", "NAME,...", False, complete=completion.payloads)
    ],
    out: OUT,
    data: DATA = None,
    data_out: DATA_OUT = None,
    share_transposed: _SHARE_TRANSPOSED = True,
    as_json: AS_JSON = False,
) -> None:
    """Keep only some payloads of a fat file. The result is byte-identical to a file packed from just those."""
    from ...runtime.selection import scratch_folder

    check_output(out, data_out)
    names = split_names(keep)
    if not names:
        raise InputError("--keep names no payload")
    container = open_fat_file(file, data).container
    payloads = _named_payloads(file, container, names)
    with scratch_folder() as folder:
        contents = [_map_payload(file, container, one, folder / str(index)) for index, one in enumerate(payloads)]
        # Users of a file without transposed extents may have a delegate that lacks them.
        share_transposed &= any(payload.features for payload in container.payloads)
        packed = _pack(container, payloads, contents, share_transposed=share_transposed)
        size = _write_fat_file(packed, contents[-1], out, data_out, metadata_of=file)
    kept = [payload.name for payload in payloads]
    if as_json:
        print_json({"file": str(out), "payloads": kept, "size": size})
        return
    typer.echo(f"{printable(str(out))}: {format_size(size)}, payloads {', '.join(kept)}")
    if needed := payloads[-1].description.backends:
        typer.echo(f"note: it has no fallback; the last payload needs {', '.join(needed)}", err=True)


@dataclass(frozen=True, slots=True)
class _Source:
    name: str
    path: Path
    content: memoryview
    pte: PteFile

    @property
    def description(self) -> Description:
        """The description without a version of ExecuTorch, which a `.pte` does not have."""
        from ...formats.nfat.contents import Description

        return Description(self.name, self.pte.backends, tuple(method.name for method in self.pte.methods))


def _open(argument: str) -> _Source:
    from ...formats.nfat.contents import BACKEND_ID
    from ...formats.nfat.limits import check_description
    from ...formats.pte.ptd import external_weights
    from ...formats.pte.reader import map_file, read_pte

    name, separator, file = argument.partition("=")
    path = Path(file)
    if not separator or Path(argument).exists():  # a file name may contain an equals sign
        name, path = Path(argument).stem, Path(argument)
    content = map_file(path)
    try:
        pte = read_pte(content)
    except FileFormatError as error:
        raise FileFormatError(f"{path}: {error}") from error
    source = _Source(name, path, content, pte)
    if BACKEND_ID in pte.backends:
        raise InputError(f"{path} is a fat file itself, and those do not nest; `pteforge extract` extracts payloads")
    if external_weights(path, pte) or data_files(path, None):
        raise InputError(f"{path} keeps weights in a .ptd file; payloads must be complete: export it without")
    try:
        check_description(source.description)
    except FileFormatError as error:
        raise InputError(f"{path}: {error}; NAME={path.name} gives it another name") from error
    return source


def _without_metadata(source: _Source, path: Path) -> _Source:
    """The plain file without metadata, which belongs to the fat file; written to `path`."""
    from ...formats.nfat.contents import BYTE_ALIGNMENT
    from ...formats.pte.reader import map_file, read_pte
    from ...runtime.quiet import quiet

    if not source.pte.metadata:
        return source
    with quiet():
        from ...tasks.backend.file_programs import write_metadata

        base = source.pte.segment_base
        alignment = max(BYTE_ALIGNMENT, base & -base)  # the greatest that the file can have been written with
        write_metadata(source.path, {}, path, constant_methods=False, segment_alignment=alignment)
    content = map_file(path)
    return replace(source, content=content, pte=read_pte(content))


def _check_distinct(sources: Sequence[_Source]) -> None:
    paths: dict[str, Path] = {}
    for source in sources:
        other = paths.setdefault(source.name, source.path)
        if other is not source.path:
            raise InputError(
                f"{other} and {source.path} would both be called {source.name}; NAME={source.path} gives another name"
            )


def _check_signature(source: _Source, last: _Source) -> None:
    """Checks that a payload has the signature of the last one, which is the fat file's; raises InputError if not."""
    from ...runtime.signature import signature_mismatch

    methods = {method.name: method for method in source.pte.methods}
    wanted = {method.name: method for method in last.pte.methods}
    if missing := sorted(wanted.keys() - methods.keys()):
        raise InputError(f"{source.path} has no method {missing[0]!r}, which {last.path} has")
    if unexpected := sorted(methods.keys() - wanted.keys()):
        raise InputError(f"{source.path} has a method {unexpected[0]!r}, which {last.path} does not have")
    for name, method in wanted.items():
        if problem := signature_mismatch(method, methods[name]):
            raise InputError(f"{source.path}: method {name!r}: {problem}, as in {last.path}")


def _pack(
    container: Container, payloads: tuple[Payload, ...], contents: list[memoryview], *, share_transposed: bool
) -> PackedContainer:
    """Packs the payloads into a container of the same version; it needs no fallback."""
    from ...formats.nfat.container import V1, pack_v1
    from ...formats.nfat.contents import DEFAULT_ALIGNMENT
    from ...formats.nfat.pack import PackedContainer, pack_v2

    if container.version == V1:
        # Version 1 does not say which payload uses which named data.
        named = {key: memoryview(content) for key, content in container.named_data.items()}
        entries = [(payload.name, content) for payload, content in zip(payloads, contents, strict=True)]
        return PackedContainer(pack_v1(entries), named, DEFAULT_ALIGNMENT)
    checks = {payload.name: check for payload in payloads if (check := container.golden_check(payload))}
    return pack_v2(
        [(payload.description, content) for payload, content in zip(payloads, contents, strict=True)],
        alignment=container.manifest.alignment,
        metadata=container.manifest.metadata,
        fallback=False,
        share_transposed=share_transposed,
        checks=checks,
    )


def _named_payloads(file: Path, container: Container, names: Sequence[str]) -> tuple[Payload, ...]:
    """The payloads with these names, by priority; raises InputError, which lists the payloads, if one is unknown."""
    from ...runtime.selection import check_names

    check_names(file, container, names)
    return tuple(payload for payload in container.payloads if payload.name in names)


def _unpack_payload(file: Path, container: Container, payload: Payload, path: Path) -> None:
    """Writes a payload; errors name the fat file."""
    try:
        container.write(payload, path)
    except FileFormatError as error:
        raise FileFormatError(f"{file}: {error}") from error


def _map_payload(file: Path, container: Container, payload: Payload, path: Path) -> memoryview:
    from ...formats.pte.reader import map_file

    if payload.size == 0:  # empty files cannot be mapped
        return memoryview(b"")
    _unpack_payload(file, container, payload, path)
    return map_file(path)


def _write_fat_file(
    packed: PackedContainer, signature: Buffer, path: Path, data_path: Path | None, *, metadata_of: Path
) -> int:
    """Writes a fat file, with the methods of the payload `signature`; raises InputError if it cannot.

    The weights go to `data_path`, a `.ptd` file, if it is given, and otherwise into the file. The metadata of the file
    that it is made from is copied, except for the digest of its provenance. Returns the size.
    """
    from ...configs.metadata import PROVENANCE
    from ...formats.pte.metadata import read_metadata, returning_methods
    from ...formats.pte.reader import open_pte
    from ...runtime.quiet import quiet

    with quiet(), convert_os_errors(InputError, f"output cannot be written to {path}"):
        from ...tasks.backend.file_programs import write_fat, write_metadata

        write_fat(packed, memoryview(signature), path, data_path=data_path)
        metadata = read_metadata(metadata_of)
        returned = bool(returning_methods(open_pte(metadata_of), metadata))
        metadata.pop(PROVENANCE, None)
        if metadata:
            write_metadata(path, metadata, path, constant_methods=returned, segment_alignment=packed.alignment)
        return path.stat().st_size + (data_path.stat().st_size if data_path else 0)
