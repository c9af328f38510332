"""The contents of an NFAT container as plain values. README.md specifies what they mean."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from ...artifacts.digest import Digest
from ..pte.contents import Extent

BACKEND_ID = "NfatBackend"  # id of the delegate that runs a container
DEFAULT_ALIGNMENT = 128  # bytes: ExecuTorch's alignment of segments, and of blobs, in a file

BYTE_ALIGNMENT = 16
"""The alignment of addresses that ExecuTorch's loaders promise; positions and offsets are equal modulo this."""


TRANSPOSED_EXTENTS = 1  # bit of `features`: some extents are stored transposed

HALF_EXTENTS = 2
"""Bit of `features`: some extents are stored as 32-bit numbers, and are 16-bit ones in the payload."""

_KNOWN_FEATURES = TRANSPOSED_EXTENTS | HALF_EXTENTS


class Source(IntEnum):
    """The source of an extent's bytes."""

    ZEROS = 0
    INLINE = 1
    BLOB = 2


@dataclass(frozen=True, slots=True)
class MappedExtent:
    """An extent of a payload, and where its bytes are: `Extent` of the schema, with its size."""

    position: int  # offset in the payload
    size: int
    source: Source
    offset: int = 0  # in its source; 0 for zeros
    blob: int = 0  # index of the blob; 0 for other sources
    half: bool = False  # stored as 32-bit floating-point numbers, of which the payload has the nearest 16-bit ones

    @property
    def stored(self) -> Extent:
        return Extent(self.offset, 2 * self.size if self.half else self.size)


@dataclass(frozen=True, slots=True)
class MatrixShape:
    """A batch of matrices: (batch, rows, columns) items of `item` bytes. The number of bytes implies the batch."""

    item: int
    rows: int
    columns: int

    @property
    def swapped(self) -> MatrixShape:
        """The shape after a transpose: (batch, columns, rows)."""
        return MatrixShape(self.item, self.columns, self.rows)


@dataclass(frozen=True, slots=True)
class Transpose:
    """The extent with index `extent` has stored bytes of a shape, each matrix transposed."""

    extent: int
    shape: MatrixShape


@dataclass(frozen=True, slots=True)
class Blob:
    """`size` bytes outside the container. Their key in named data is `digest`."""

    digest: Digest
    size: int


@dataclass(frozen=True, slots=True)
class Description:
    """The facts by which people and runtimes choose a payload."""

    name: str  # for example ``xnnpack``
    backends: tuple[str, ...] = ()  # ids of the runtime backends that it needs
    methods: tuple[str, ...] = ()
    executorch_version: str = ""  # the one that made it; empty if unknown
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SelfCheck:
    """How a payload checks itself."""

    blob: int  # index of the blob with the golden cases, which `golden.read_cases` reads
    tolerance: float  # largest ratio of noise to signal of an output, see README.md
    repeats: int  # runs of each case


@dataclass(frozen=True, slots=True)
class Payload:
    """A specialization in a container."""

    description: Description
    size: int
    sha256: Digest | None  # of the file; None in containers of version 1
    extents: tuple[MappedExtent, ...]  # by position; empty if `unknown_features` make their meaning unknown
    features: int = 0  # extensions that a reader has to know to use it
    parts_sha256: Digest | None = None  # see `parts_digest`; None if the container does not have it
    transposes: tuple[Transpose, ...] = ()  # by extent; some if `features` has `TRANSPOSED_EXTENTS`
    self_check: SelfCheck | None = None  # None if it carries no golden cases

    @property
    def name(self) -> str:
        return self.description.name

    @property
    def unknown_features(self) -> int:
        return self.features & ~_KNOWN_FEATURES

    @property
    def transposed_bytes(self) -> int:
        return sum(self.extents[transpose.extent].size for transpose in self.transposes)

    @property
    def half_bytes(self) -> int:
        return sum(extent.size for extent in self.extents if extent.half)

    @property
    def halves(self) -> tuple[int, ...]:
        """Indices of the extents that are stored as 32-bit numbers, ascending."""
        return tuple(index for index, extent in enumerate(self.extents) if extent.half)

    @property
    def blobs(self) -> tuple[int, ...]:
        """Indices of the blobs that it points into, ascending."""
        return tuple(sorted({extent.blob for extent in self.extents if extent.source is Source.BLOB}))


@dataclass(frozen=True, slots=True)
class Manifest:
    """The description of a container."""

    payloads: tuple[Payload, ...]  # by preference, best first
    blobs: tuple[Blob, ...] = ()
    alignment: int = DEFAULT_ALIGNMENT  # of blobs in their file, in bytes
    metadata: Mapping[str, str] = field(default_factory=dict)


EXTENT = struct.Struct("<QQII")  # position, offset, source and blob: the layout in a manifest
TRANSPOSE = struct.Struct("<IIII")  # extent, item, rows and columns: the layout in a manifest
HALF = struct.Struct("<I")  # extent: the layout in a manifest

_SIZE = struct.Struct("<Q")

_PAGE = bytes(1 << 14)


def parts_digest(
    size: int,
    sha256: Digest,
    extents: Sequence[MappedExtent],
    inline: bytes | bytearray | memoryview,
    blobs: Sequence[Blob],
    transposes: Sequence[Transpose] = (),
) -> Digest:
    """SHA-256 of a payload's size, SHA-256, extents, transposes and halves, and inline bytes or blob digests."""
    view = memoryview(inline)
    digest = hashlib.sha256(_SIZE.pack(size) + bytes.fromhex(sha256))
    for extent in extents:
        digest.update(EXTENT.pack(extent.position, extent.offset, extent.source, extent.blob))
    for transpose in transposes:
        shape = transpose.shape
        digest.update(TRANSPOSE.pack(transpose.extent, shape.item, shape.rows, shape.columns))
    for index, extent in enumerate(extents):
        if extent.half:
            digest.update(HALF.pack(index))
    for extent in extents:
        if extent.source is Source.INLINE:
            digest.update(extent.stored.of(view))
        elif extent.source is Source.BLOB:
            digest.update(bytes.fromhex(blobs[extent.blob].digest))
    return Digest(digest.hexdigest())


def is_zero(content: memoryview) -> bool:
    """Whether all bytes are zero; stops at the first page that has another."""
    # Compared as bytes, because memoryviews are compared item by item.
    pages = (bytes(content[start : start + len(_PAGE)]) for start in range(0, len(content), len(_PAGE)))
    return all(page == _PAGE[: len(page)] for page in pages)
