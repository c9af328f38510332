"""The manifest of a `.pte` kept as pieces: which bytes of which object stand one after another in the file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..digest import Digest, parse_digest
from ..manifest import Manifest
from ..ref import BlobRef


@dataclass(frozen=True, slots=True)
class Glue:
    """The next `size` bytes of the glue."""

    size: int


@dataclass(frozen=True, slots=True)
class Zeros:
    """`size` zero bytes."""

    size: int


Extent = Glue | Zeros | BlobRef
"""A stretch of the file; a `BlobRef` stands for the whole of that object."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """How a file is made of objects.

    Attributes:
        size: bytes of the file.
        sha256: SHA-256 of the file.
        glue: the object with everything that is not worth an object of its own, compressed with zlib.
        extents: the file from its first byte to its last.
    """

    size: int
    sha256: Digest
    glue: BlobRef
    extents: tuple[Extent, ...]

    @property
    def glue_size(self) -> int:
        """Bytes of the glue before compression."""
        return sum(extent.size for extent in self.extents if isinstance(extent, Glue))

    def to_manifest(self, kind: str) -> Manifest:
        """The manifest: the same pieces give the same bytes."""
        blobs = dict.fromkeys([self.glue, *(extent for extent in self.extents if isinstance(extent, BlobRef))])
        index = {blob: position for position, blob in enumerate(blobs)}
        extents = [_extent_to_json(extent, index) for extent in self.extents]
        return Manifest(kind, tuple(blobs), {"size": self.size, "sha256": self.sha256, "extents": extents})

    @classmethod
    def from_manifest(cls, manifest: Manifest) -> Pieces:
        """Inverse of `to_manifest`; raises ValueError for manifests of other things."""
        match manifest.body:
            case {"size": int() as size, "sha256": str() as sha256, "extents": list() as extents} if manifest.blobs:
                read = tuple(_extent_from_json(extent, manifest.blobs) for extent in extents)
                if sum(extent.size for extent in read) == size:
                    return cls(size, parse_digest(sha256), manifest.blobs[0], read)
        raise ValueError("not the manifest of a .pte kept as pieces")


def _extent_to_json(extent: Extent, index: dict[BlobRef, int]) -> list[Any]:
    match extent:
        case Glue(size):
            return ["glue", size]
        case Zeros(size):
            return ["zeros", size]
        case BlobRef():
            return ["blob", index[extent]]


def _extent_from_json(value: Any, blobs: tuple[BlobRef, ...]) -> Extent:
    match value:
        case ["glue", int() as size] if size > 0:
            return Glue(size)
        case ["zeros", int() as size] if size > 0:
            return Zeros(size)
        case ["blob", int() as position] if 0 <= position < len(blobs):
            return blobs[position]
    raise ValueError(f"not an extent: {value!r}")
