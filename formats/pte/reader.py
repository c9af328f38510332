"""Reading `.pte` files without ExecuTorch. Every byte is untrusted."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ...artifacts.files import open_input
from ...errors import FileFormatError, InputError
from . import schema_generated as schema
from .contents import METADATA_PREFIX, SIZES, Extent, KernelCall, Method, NamedData, PteFile, with_sizes
from .methods import read_calls, read_constants, read_method
from .tables import U32, U64, Flatbuffer, TableView, pick


def open_pte(path: Path) -> PteFile:
    """Reads what a file contains without its data; raises InputError if it cannot be read or is not a valid `.pte`."""
    view = map_file(path)
    with naming(path):
        return read_pte(view)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Puts the file's path in front of the messages of FileFormatErrors."""
    try:
        yield
    except FileFormatError as error:
        raise FileFormatError(f"{path}: {error}") from error


def map_file(path: Path) -> memoryview:
    """A file's bytes, mapped; raises InputError if it cannot be read, as FileFormatError if it is empty."""
    try:
        with open_input(path) as file:
            # Never closed explicitly: views and tracebacks may still refer to it.
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise FileFormatError(f"{path}: the file is empty") from error


def read_pte(content: bytes | memoryview | mmap.mmap) -> PteFile:
    """Reads what a whole `.pte` describes, but no tensors, and keeps no reference; FileFormatError for other bytes."""
    view = memoryview(content).cast("B")
    header = _read_header(view)
    program = Flatbuffer(view[: header.program_size]).root()
    segments = tuple(_segments(program, header, len(view)))
    delegate_data = program.children(schema.Program.BACKEND_DELEGATE_DATA)
    inline = [node.extent(schema.BackendDelegateInlineData.DATA) for node in delegate_data]
    methods = [read_method(plan, segments, inline) for plan in program.children(schema.Program.EXECUTION_PLAN)]
    data = [data for contents in methods for data in contents.data]
    external = {use.tensor.name: use.tensor for use in data if use.external}
    named = [NamedData(node.text(schema.NamedData.KEY), index) for node, index in _named_segments(program, segments)]
    sizes = {entry.key: segments[entry.segment].of(view) for entry in named if entry.key.startswith(_SIZES)}
    return PteFile(
        size=len(view),
        version=program.number(schema.Program.VERSION, U32),
        program_size=header.program_size,
        segment_base=header.segment_base,
        methods=tuple(_with_sizes(contents.method, sizes) for contents in methods),
        segments=segments,
        constants=read_constants(program, segments, data),
        external=tuple(external[name] for name in sorted(external)),
        named_data=tuple(entry for entry in named if not entry.key.startswith(METADATA_PREFIX)),
        metadata=tuple(entry for entry in named if entry.key.startswith(METADATA_PREFIX)),
    )


def _with_sizes(method: Method, entries: Mapping[str, memoryview]) -> Method:
    entry = entries.get(f"{_SIZES}{method.name}")
    return method if entry is None else with_sizes(method, bytes(entry))


def read_kernel_calls(content: bytes | memoryview | mmap.mmap) -> tuple[KernelCall, ...]:
    """The different calls of kernels in a `.pte`, method by method; raises as `read_pte`."""
    view = memoryview(content).cast("B")
    program = Flatbuffer(view[: _read_header(view).program_size]).root()
    plans = program.children(schema.Program.EXECUTION_PLAN)
    return tuple(dict.fromkeys(call for plan in plans for call in read_calls(plan)))


_SIZES = METADATA_PREFIX + SIZES
_POSITION = 8
_MAGIC = b"eh00"
_FIELDS = struct.Struct("<4sIQQ")
_SEGMENTS_SIZE = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class _Header:
    """Bytes of the flatbuffer, including this header, and where segments start (0: there are none)."""

    program_size: int
    segment_base: int


def _read_header(content: memoryview) -> _Header:
    size = len(content)
    if size < _POSITION or bytes(content[4:_POSITION]) != schema.IDENTIFIER:
        found = bytes(content[4:_POSITION])
        raise FileFormatError(
            f"not a .pte file of a known version: bytes 4 to 8 are {found!r} and should be {schema.IDENTIFIER!r}"
        )
    if bytes(content[_POSITION : _POSITION + len(_MAGIC)]) != _MAGIC:
        return _Header(size, 0)
    if size < _POSITION + _FIELDS.size:
        raise FileFormatError(f"the file is cut short: {size} bytes end inside the extended header")
    _, length, program_size, segment_base = _FIELDS.unpack_from(content, _POSITION)
    if length < _FIELDS.size:
        raise FileFormatError(f"damaged file: an extended header of {length} bytes is too short")
    if not _POSITION + _FIELDS.size <= program_size <= size:
        raise FileFormatError(f"the file is damaged or cut short: {size} bytes, the program alone has {program_size}")
    if segment_base and not program_size <= segment_base <= size:
        raise FileFormatError(f"the file is damaged or cut short: {size} bytes, segments start at {segment_base}")
    if length >= _FIELDS.size + _SEGMENTS_SIZE.size and size >= _POSITION + length:
        (segments_size,) = _SEGMENTS_SIZE.unpack_from(content, _POSITION + _FIELDS.size)
        if segment_base + segments_size > size:
            needed = f"segments need {segments_size} from {segment_base} on"
            raise FileFormatError(f"the file is cut short: {size} bytes, {needed}")
    return _Header(program_size, segment_base)


def _segments(program: TableView, header: _Header, size: int) -> Iterator[Extent]:
    """The segments, which have to lie in the file, after the program, without overlaps.

    Named data may lie inside of the constants, where operators and delegates use the same tensor.
    """
    segments = []
    for node in program.children(schema.Program.SEGMENTS):
        offset, length = node.number(schema.DataSegment.OFFSET, U64), node.number(schema.DataSegment.SIZE, U64)
        segments.append(Extent(header.segment_base + offset, length))
    shared = set(_in_constants(program, segments))
    end = header.program_size
    for segment in sorted(segment for index, segment in enumerate(segments) if segment.size and index not in shared):
        if segment.offset < end:
            raise FileFormatError(f"damaged file: the segment at {segment.offset} overlaps what ends at {end}")
        end = segment.end
    for index, segment in enumerate(segments):
        if segment.end > size:
            raise FileFormatError(
                f"the file is damaged or cut short: segment {index} has {segment.size} bytes at {segment.offset}, "
                f"the file {size}"
            )
    yield from segments


def _in_constants(program: TableView, segments: Sequence[Extent]) -> Iterator[int]:
    """Indices of the segments of named data that lie inside of the segment of constants."""
    group = program.child(schema.Program.CONSTANT_SEGMENT)
    index = 0 if group is None else group.number(schema.SubsegmentOffsets.SEGMENT_INDEX, U32)
    if group is None or index >= len(segments):
        return
    constants = segments[index]
    for _, named in _named_segments(program, segments):
        if named != index and constants.offset <= segments[named].offset and segments[named].end <= constants.end:
            yield named


def _named_segments(program: TableView, segments: Sequence[Extent]) -> Iterator[tuple[TableView, int]]:
    for node in program.children(schema.Program.NAMED_DATA):
        index = node.number(schema.NamedData.SEGMENT_INDEX, U32)
        pick(segments, index, "segment")
        yield node, index
