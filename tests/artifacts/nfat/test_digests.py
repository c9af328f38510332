"""The digest of a payload's parts covers what the container says of it, and leaves the bytes of blobs to their keys."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import replace

import pytest
from pteforge.artifacts.digest import Digest
from pteforge.artifacts.nfat.container import read_container
from pteforge.artifacts.nfat.contents import Source
from pteforge.artifacts.nfat.v2 import write_v2
from pteforge.errors import FileFormatError


def _specified(container, payload) -> str:
    """The digest in the words of the specification, by another way than the package's."""
    described = struct.pack("<Q", payload.size) + bytes.fromhex(payload.sha256)
    for extent in payload.extents:
        described += struct.pack("<QQII", extent.position, extent.offset, extent.source, extent.blob)
    for extent in payload.extents:
        if extent.source is Source.INLINE:
            described += bytes(container.inline[extent.offset : extent.offset + extent.size])
        if extent.source is Source.BLOB:
            described += bytes.fromhex(container.manifest.blobs[extent.blob].digest)
    return hashlib.sha256(described).hexdigest()


def test_packed_payloads_have_it(packed):
    """Every payload that is packed has the digest that the specification says."""
    container = packed.open()
    assert [each.parts_sha256 for each in container.payloads] == [
        _specified(container, each) for each in container.payloads
    ]


def test_damaged_descriptions_are_found(packed):
    """A wrong digest of parts makes its payload unusable by every way to it, and no other one."""
    container = packed.open()
    first, last = container.payloads
    wrong = replace(first, parts_sha256=Digest("ab" * 32))
    damaged = read_container(
        write_v2(replace(container.manifest, payloads=(wrong, last)), bytes(container.inline)), packed.blobs
    )
    damaged.verify(damaged.payload(last.name))
    for use in (damaged.rebuild, damaged.verify):
        with pytest.raises(FileFormatError, match="its parts do not have SHA-256 abab"):
            use(damaged.payload(first.name))


def test_other_blobs_are_found(packed):
    """An extent that was led to another blob is found without reading any blob."""
    container = packed.open()
    first = container.payloads[0]
    assert len(container.manifest.blobs) > 1
    turned = tuple(container.manifest.blobs[::-1])
    damaged = replace(container, manifest=replace(container.manifest, blobs=turned))
    with pytest.raises(FileFormatError, match="its parts do not have SHA-256"):
        next(damaged.chunks(first))
