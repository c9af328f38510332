"""Version 2: sixteen bytes, the manifest, the inline section. README.md specifies it."""

from __future__ import annotations

import struct

from ...errors import FileFormatError
from .contents import BYTE_ALIGNMENT, Manifest
from .limits import check_manifest
from .manifest_reader import read_manifest
from .manifest_writer import write_manifest
from .v1 import MAGIC

VERSION = 2
MAX_INLINE = (1 << 32) - 1

_START = struct.Struct("<4sIII")


def write_v2(manifest: Manifest, inline: bytes | bytearray) -> bytes:
    """A container of version 2; raises FileFormatError where what it would say breaks a rule."""
    check_manifest(manifest, len(inline))
    container = assemble(write_manifest(manifest), inline)
    read_v2(memoryview(container))  # sizes of what was written have limits, too
    return container


def assemble(table: bytes, inline: bytes | bytearray) -> bytes:
    """A container of a manifest's bytes, which are not looked at, and an inline section."""
    if len(inline) > MAX_INLINE:
        raise FileFormatError(f"an inline section of {len(inline)} bytes; {MAX_INLINE} are possible")
    padding = bytes(-(_START.size + len(table)) % BYTE_ALIGNMENT)
    return b"".join([_START.pack(MAGIC, VERSION, len(table), len(inline)), table, padding, inline])


def read_v2(content: memoryview) -> tuple[Manifest, memoryview]:
    """What a version 2 container says, and its inline section.

    Raises:
        FileFormatError: damaged, cut short or with something behind it.
    """
    if len(content) < _START.size:
        raise FileFormatError(f"the container is cut short: {len(content)} bytes, its start has {_START.size}")
    _, _, manifest_size, inline_size = _START.unpack_from(content)
    manifest_end = _START.size + manifest_size
    inline_start = manifest_end + -manifest_end % BYTE_ALIGNMENT
    if inline_start + inline_size != len(content):
        raise FileFormatError(f"the container has {len(content)} bytes and says {inline_start + inline_size}")
    if any(content[manifest_end:inline_start]):
        raise FileFormatError("the bytes between the manifest and the inline section are not zero")
    manifest = read_manifest(content[_START.size : manifest_end])
    check_manifest(manifest, inline_size)
    return manifest, content[inline_start:]
