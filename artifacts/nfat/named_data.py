"""Named data by key in the files that have it: `.pte` and `.ptd`."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path

from ...errors import FileFormatError, InputError
from ..pte.contents import PteFile
from ..pte.tables import U32, U64, Flatbuffer, pick

_PTD_HEADER = struct.Struct("<4sIQQQQ")
_PTD_HEADER_AT = 8
_PTD_MAGIC = b"FH01"
_PTD_IDENTIFIER = b"FT01"


class FlatTensor(IntEnum):
    """Slots of the root table of a `.ptd`: ``flat_tensor.fbs`` of executorch 1.5.1."""

    SEGMENTS = 1
    NAMED_DATA = 2


class PtdSegment(IntEnum):
    """Slots of a segment."""

    OFFSET = 0
    SIZE = 1


class PtdNamedData(IntEnum):
    """Slots of a key."""

    KEY = 0
    SEGMENT_INDEX = 1


def map_file(path: Path) -> memoryview:
    """A file's bytes, mapped; raises InputError where it cannot be read, as FileFormatError where it is empty."""
    try:
        with path.open("rb") as file:
            # Not closed by hand: views of it live as long as somebody needs them.
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise FileFormatError(f"{path}: the file is empty") from error


def pte_named_data(content: memoryview, pte: PteFile) -> dict[str, memoryview]:
    """Views of a `.pte`'s named data; `pte` is what was read from `content`."""
    segments = [content[each.offset : each.offset + each.size] for each in pte.segments]
    return {each.key: segments[each.segment] for each in pte.named_data}


def ptd_named_data(content: memoryview) -> dict[str, memoryview]:
    """Views of a `.ptd`'s named data.

    Raises:
        FileFormatError: not a `.ptd`, cut short or damaged.
    """
    return {key: content[start : start + size] for key, start, size in ptd_places(content)}


def ptd_places(content: memoryview) -> Iterator[tuple[str, int, int]]:
    """Key, offset in the file and size of a `.ptd`'s named data; raises FileFormatError as `ptd_named_data` does."""
    if len(content) < _PTD_HEADER_AT + _PTD_HEADER.size or bytes(content[4:8]) != _PTD_IDENTIFIER:
        raise FileFormatError(f"not a .ptd file of a known version: bytes 4 to 8 should be {_PTD_IDENTIFIER!r}")
    magic, _, header_size, table_size, base, size = _PTD_HEADER.unpack_from(content, _PTD_HEADER_AT)
    if magic != _PTD_MAGIC or header_size + table_size > len(content) or base + size > len(content):
        raise FileFormatError("the .ptd file is damaged or cut short")
    # The header stands inside of the flatbuffer, whose offsets count from the start of the file.
    root = Flatbuffer(content[: header_size + table_size]).root()
    segments = []
    for node in root.children(FlatTensor.SEGMENTS):
        start, length = node.number(PtdSegment.OFFSET, U64), node.number(PtdSegment.SIZE, U64)
        if start + length > size:
            raise FileFormatError(f"damaged .ptd file: a segment has {length} bytes at {start}, all have {size}")
        segments.append((base + start, length))
    for node in root.children(FlatTensor.NAMED_DATA):
        segment = pick(segments, node.number(PtdNamedData.SEGMENT_INDEX, U32), "segment")
        yield node.text(PtdNamedData.KEY), *segment
