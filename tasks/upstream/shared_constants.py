"""Executorch 1.5.1 writes a tensor twice that an operator and a delegate use, such as a tied embedding; here, once.

`serialize_pte_binary` (exir/_serialize/_program.py) puts the constants of operators into one segment, and each buffer
of the delegates' named data into one of its own. A segment is a place in the file that the runtime loads by offset and
size, so one of named data may lie inside of the constants. Constants are then aligned as segments are, so that all data
keeps its alignment. Delete once the serializer compares the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from executorch.exir._serialize import _program, _serialize
from executorch.exir._serialize._cord import Cord, FileBackedData
from executorch.exir._serialize._named_data_store import NamedDataStoreOutput
from executorch.exir._serialize._program import PTEFile
from executorch.exir.schema import Buffer, DataSegment, NamedData, Program

from ...artifacts.digest import Digest, digest_bytes

MIN_SHARED = 1 << 16
"""Bytes; smaller tensors are written twice, so that files without large ones are byte for byte as upstream's."""


@contextmanager
def constants_once() -> Iterator[None]:
    """While the context is open, named data that equals a constant is written as a part of the constants."""
    plain = _serialize.serialize_pte_binary
    _serialize.serialize_pte_binary = _serialize_once
    try:
        yield
    finally:
        _serialize.serialize_pte_binary = plain


def _serialize_once(
    pte_file: PTEFile, *, segment_alignment: int = 128, constant_tensor_alignment: int | None = None, **options: Any
) -> Cord:
    """In place of `serialize_pte_binary`."""
    named = pte_file.named_data
    places = _places(pte_file.program.constant_buffer, named) if named else {}
    if named and places:
        inside = {key: entry for key, entry in named.pte_data.items() if entry.buffer_index in places}
        apart = {key: entry for key, entry in named.pte_data.items() if entry.buffer_index not in places}
        pte_file = replace(pte_file, named_data=NamedDataStoreOutput(named.buffers, apart, {}))
        wanted = (constant_tensor_alignment or _program.ALIGNMENT, *(entry.alignment for entry in inside.values()))
        constant_tensor_alignment = max(segment_alignment, *wanted)  # powers of two
    plain = _program._program_to_flatbuffer  # noqa: SLF001 - the only step between placing segments and writing them

    def to_flatbuffer(program: Program, **others: Any) -> Any:
        segments: dict[int, int] = {}
        for key, entry in inside.items():
            constant = places[entry.buffer_index]
            if constant not in segments:
                segments[constant] = len(program.segments)
                start = program.segments[program.constant_segment.segment_index].offset
                offset = start + program.constant_segment.offsets[constant]
                program.segments.append(DataSegment(offset, len(named.buffers[entry.buffer_index])))
            program.named_data = [*(program.named_data or ()), NamedData(key, segments[constant])]
        return plain(program, **others)

    if places:
        _program._program_to_flatbuffer = to_flatbuffer  # noqa: SLF001 - as above
    try:
        return _program.serialize_pte_binary(
            pte_file,
            segment_alignment=segment_alignment,
            constant_tensor_alignment=constant_tensor_alignment,
            **options,
        )
    finally:
        _program._program_to_flatbuffer = plain  # noqa: SLF001 - as above


def _places(constants: list[Buffer], named: NamedDataStoreOutput) -> dict[int, int]:
    """Index of the constant with the same bytes, by index of the buffer. Constants can be aligned to powers of two."""
    entries = named.pte_data.values()
    odd = {entry.buffer_index for entry in entries if entry.alignment & (entry.alignment - 1)}
    sizes = {entry.buffer_index: len(named.buffers[entry.buffer_index]) for entry in entries}
    sizes = {number: size for number, size in sizes.items() if size >= MIN_SHARED and number not in odd}
    known = {
        digest_bytes(constant.storage): index
        for index, constant in enumerate(constants)
        if len(constant.storage) in sizes.values()
    }
    lengths = {len(constants[index].storage) for index in known.values()}
    found = {number: known.get(_digest(named.buffers[number])) for number, size in sizes.items() if size in lengths}
    return {number: index for number, index in found.items() if index is not None}


def _digest(buffer: bytes | FileBackedData) -> Digest:
    return Digest(buffer.sha256().hex()) if isinstance(buffer, FileBackedData) else digest_bytes(buffer)
