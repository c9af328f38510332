"""Adds metadata to a `.pte` file: its program is written again, with more named data; its segments stay as they are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from executorch.exir._serialize._flatbuffer_program import _flatbuffer_to_program, _program_to_flatbuffer
from executorch.exir._serialize._program import _ExtendedHeader, _insert_flatbuffer_header
from executorch.exir._serialize.padding import aligned_size, pad_to
from executorch.exir.emit._emitter import _Emitter
from executorch.exir.schema import DataSegment, NamedData, Program

from ...artifacts.files import staging_file
from ...formats.pte.contents import METADATA_PREFIX, SIZES, Extent, PteFile
from ...formats.pte.metadata import MetadataValue, constant_method, encode_value, metadata_of, returning_methods
from ...formats.pte.reader import map_file, read_pte


def write_metadata(
    source: Path,
    entries: Mapping[str, MetadataValue],
    destination: Path,
    *,
    constant_methods: bool,
    segment_alignment: int,
    delegate_alignment: int | None = None,
) -> None:
    """Writes a `.pte` file, plain or fat, with metadata in place of what it has; an empty mapping removes that.

    Equal arguments give equal bytes.

    The flatbuffer is written by the private serializer of executorch 1.5.1, which writes those of `to_executorch`.

    Args:
        source: the file, which stays as it is.
        entries: value by key, without the prefix.
        destination: written atomically.
        constant_methods: whether constant methods return the entries, too. A method of that name that the file has
            already stays.
        segment_alignment: of segments, in bytes, as in the file.
        delegate_alignment: of delegates' data in the program, in bytes; None for ExecuTorch's own.

    Raises:
        FileFormatError: `source` is not a `.pte`.
        ValueError: a value has a type that the format lacks, or more than 64 bits.
        OSError: a file cannot be written.
    """
    view = map_file(source)
    pte = read_pte(view)
    program = _flatbuffer_to_program(bytes(view[: pte.program_size]))
    end = _remove_entries(program, pte, metadata_of(pte, view))
    added = _add_entries(program, entries, end, segment_alignment)
    if constant_methods:
        _add_constant_methods(program, entries)
    content = _with_header(program, end + len(added), segment_alignment, delegate_alignment)
    with staging_file(destination.parent) as (part, file):
        file.write(content)
        file.write(Extent(pte.segment_base, end).of(view))
        file.write(added)
        file.flush()
        part.replace(destination)


def _remove_entries(program: Program, pte: PteFile, present: Mapping[str, MetadataValue]) -> int:
    """Removes metadata, and the constant methods that return it; returns where the other segments end."""
    outdated = returning_methods(pte, present)
    program.execution_plan = [plan for plan in program.execution_plan if plan.name not in outdated]
    named = [entry for entry in program.named_data or () if not entry.key.startswith(METADATA_PREFIX)]
    program.named_data = named or None  # as the emitter has it
    last = min((entry.segment for entry in pte.metadata), default=len(pte.segments))
    if any(entry.segment_index >= last for entry in named):
        last = len(pte.segments)  # others follow, as no writer of metadata leaves them
    program.segments = program.segments[:last]
    return max((segment.offset + segment.size for segment in program.segments), default=0)


def _add_entries(program: Program, entries: Mapping[str, MetadataValue], end: int, alignment: int) -> bytes:
    """Adds a segment for each entry after those that end at `end`; returns the bytes that follow them."""
    added, named = b"", list(program.named_data or ())
    for key, value in entries.items():
        content = encode_value(value)
        offset = aligned_size(end + len(added), alignment)
        added = pad_to(added, offset - end) + content
        named.append(NamedData(f"{METADATA_PREFIX}{key}", len(program.segments)))
        program.segments.append(DataSegment(offset, len(content)))
    program.named_data = named or None
    return added


def _add_constant_methods(program: Program, entries: Mapping[str, MetadataValue]) -> None:
    """Adds plans as `to_executorch` makes them of `constant_methods`, which return the items of a list flat."""
    taken = {plan.name for plan in program.execution_plan}
    values = {
        name: list(value) if isinstance(value, tuple) else value
        for key, value in entries.items()
        if (name := constant_method(key)) not in taken and not isinstance(value, bytes) and not key.startswith(SIZES)
    }
    # only tensors need an emitter, and there are none
    program.execution_plan += _Emitter._emit_prim_getters(None, values)  # noqa: SLF001 - nothing public emits plans


def _with_header(program: Program, segments_size: int, alignment: int, delegate_alignment: int | None) -> bytes:
    """The program's bytes up to where its segments begin, as `serialize_pte_binary` writes them."""
    flatbuffer = _program_to_flatbuffer(program, delegate_alignment=delegate_alignment)
    if not segments_size:
        return bytes(flatbuffer.data)
    header_size = aligned_size(_ExtendedHeader.EXPECTED_LENGTH, flatbuffer.max_alignment)
    size = header_size + len(flatbuffer.data)
    base = aligned_size(size, alignment)
    header = _ExtendedHeader(program_size=size, segment_base_offset=base, segment_data_size=segments_size)
    content = _insert_flatbuffer_header(flatbuffer.data, r"ET[0-9a-zA-Z]{2}", pad_to(header.to_bytes(), header_size))
    return bytes(pad_to(content, base))
