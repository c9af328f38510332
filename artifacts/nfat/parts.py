"""The digest of what a payload is put together from: it covers all that the container says without reading a blob."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

from ..digest import Digest
from .contents import Blob, Extent, Source

EXTENT = struct.Struct("<QQII")
"""Position, offset, source and blob, as they lie in a manifest."""

_SIZE = struct.Struct("<Q")


def parts_digest(
    size: int, sha256: Digest, extents: Sequence[Extent], inline: bytes | bytearray | memoryview, blobs: Sequence[Blob]
) -> Digest:
    """SHA-256 of a payload's size and SHA-256, its extents, and for each of them its inline bytes or its blob's digest.

    Args:
        size: of the payload.
        sha256: of the payload.
        extents: of the payload, which have to keep the format's rules.
        inline: the inline section.
        blobs: all blobs of the container.
    """
    view = memoryview(inline)
    digest = hashlib.sha256(_SIZE.pack(size) + bytes.fromhex(sha256))
    for each in extents:
        digest.update(EXTENT.pack(each.position, each.offset, each.source, each.blob))
    for each in extents:
        if each.source is Source.INLINE:
            digest.update(view[each.offset : each.offset + each.size])
        elif each.source is Source.BLOB:
            digest.update(bytes.fromhex(blobs[each.blob].digest))
    return Digest(digest.hexdigest())
