"""The extended header: how long a `.pte`'s flatbuffer is, and where its segments start.

Source: ``executorch/exir/_serialize/_program.py`` of executorch 1.5.1. The header stands at byte 8, between the
flatbuffer's file identifier and its tables. All numbers are little-endian. Files without segment data have none.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ...errors import FileFormatError
from .schema import IDENTIFIER

_POSITION = 8
_MAGIC = b"eh00"
_FIELDS = struct.Struct("<4sIQQ")
_SEGMENTS_SIZE = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Header:
    """What a file's first bytes say.

    Attributes:
        program_size: bytes of the flatbuffer, this header included.
        segment_base: where segments start; 0 for none.
    """

    program_size: int
    segment_base: int


def read_header(content: memoryview) -> Header:
    """Reads the header of a whole file; FileFormatError where the file is no `.pte`, or cut short."""
    size = len(content)
    if size < _POSITION or bytes(content[4:_POSITION]) != IDENTIFIER:
        found = bytes(content[4:_POSITION])
        raise FileFormatError(
            f"not a .pte file of a known version: bytes 4 to 8 are {found!r} and should be {IDENTIFIER!r}"
        )
    if bytes(content[_POSITION : _POSITION + len(_MAGIC)]) != _MAGIC:
        return Header(size, 0)
    if size < _POSITION + _FIELDS.size:
        raise FileFormatError(f"the file is cut short: {size} bytes end inside of the extended header")
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
            raise FileFormatError(
                f"the file is cut short: {size} bytes, segments need {segments_size} from {segment_base} on"
            )
    return Header(program_size, segment_base)
