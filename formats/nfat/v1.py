"""Version 1: the layout that upstream proposes, a table and whole payloads. README.md specifies it."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from ...errors import FileFormatError, InputError
from .contents import BYTE_ALIGNMENT, Description, Manifest, MappedExtent, Payload, Source

MAGIC = b"NFAT"
VERSION = 1
NO_BACKEND = "portable"
"""Id of entries that need no backend."""

_START = struct.Struct("<4sII")
_ENTRY = struct.Struct("<32sQQ")
_ID_SIZE = 32
_MAX_ENTRIES = 64
_MAX_GAP = 4095

_Bytes = bytes | bytearray | memoryview


def pack_v1(entries: Sequence[tuple[str, _Bytes]]) -> bytes:
    """A container of version 1 from backend ids and payloads, by preference; raises InputError for an invalid id."""
    if len(entries) > _MAX_ENTRIES:
        raise InputError(f"{len(entries)} payloads; an NFAT container takes {_MAX_ENTRIES}")
    chunks: list[_Bytes] = [_START.pack(MAGIC, VERSION, len(entries))]
    offset = 0
    for backend_id, content in entries:
        size = memoryview(content).nbytes
        chunks.append(_ENTRY.pack(_encode_id(backend_id), offset, size))
        offset += size
    return b"".join([*chunks, *(content for _, content in entries)])


def read_v1(content: memoryview) -> tuple[Manifest, memoryview]:
    """The manifest of a version 1 container, and its data section, where offsets of extents begin."""
    if len(content) < _START.size:
        raise FileFormatError(f"the container is cut short: {len(content)} bytes, its start has {_START.size}")
    _, _, count = _START.unpack_from(content)
    if count > _MAX_ENTRIES:
        raise FileFormatError(f"{count} payloads; {_MAX_ENTRIES} are possible")
    table_end = _START.size + count * _ENTRY.size
    if table_end > len(content):
        raise FileFormatError(f"the container is cut short: {len(content)} bytes, its table ends at {table_end}")
    section = content[table_end:]
    payloads = tuple(_payloads(content[_START.size : table_end], section))
    return Manifest(payloads, alignment=BYTE_ALIGNMENT), section


def _payloads(table: memoryview, section: memoryview) -> Iterator[Payload]:
    end = 0
    for raw_id, offset, size in _ENTRY.iter_unpack(table):
        backend_id = _decode_id(raw_id)
        if offset < end:
            raise FileFormatError(f"payload {backend_id} at {offset} overlaps what ends at {end}")
        if offset + size > len(section):
            raise FileFormatError(
                f"the container is cut short: payload {backend_id} has {size} bytes at {offset}, "
                f"the data section {len(section)}"
            )
        _check_gap(section, end, offset)
        end = offset + size
        backends = () if backend_id == NO_BACKEND else (backend_id,)
        extents = (MappedExtent(0, size, Source.INLINE, offset),) if size else ()
        yield Payload(Description(backend_id, backends), size, None, extents)
    _check_gap(section, end, len(section))


def _check_gap(section: memoryview, start: int, end: int) -> None:
    if end - start > _MAX_GAP or any(section[start:end]):
        raise FileFormatError(f"the {end - start} bytes at {start} of the data section belong to no payload")


def _encode_id(backend_id: str) -> bytes:
    if not 1 <= len(backend_id) <= _ID_SIZE or not all(" " < letter <= "~" for letter in backend_id):
        raise InputError(
            f"{backend_id!r} cannot be a backend id in NFAT version 1: "
            f"1 to {_ID_SIZE} printable ASCII characters without blanks can"
        )
    return backend_id.encode("ascii")


def _decode_id(raw_id: bytes) -> str:
    used = raw_id.rstrip(b"\0")
    if not used or not all(ord(" ") < byte <= ord("~") for byte in used):
        raise FileFormatError(f"{raw_id!r} is not a backend id padded with NULs")
    return used.decode("ascii")
