"""A container with the blobs that it points into: its payloads rebuilt byte for byte."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from mmap import mmap
from pathlib import Path

from ...errors import FileFormatError
from ..aside import aside_file
from ..digest import Digest, digest_bytes
from .contents import Blob, Extent, Manifest, Payload, Source
from .parts import parts_digest
from .v1 import MAGIC, read_v1
from .v1 import VERSION as V1
from .v2 import VERSION as V2
from .v2 import read_v2

Buffer = bytes | bytearray | memoryview | mmap

_START = struct.Struct("<4sI")
_CHUNK = 1 << 20
_ZEROS = memoryview(bytes(_CHUNK))


def read_container(content: Buffer, blobs: Mapping[Digest, Buffer] | None = None) -> Container:
    """Reads a container of version 1 or 2. Blobs are looked up when a payload needs them, not before.

    Args:
        content: the whole container and nothing else. It is kept, not copied.
        blobs: named data by key; those of other keys are not looked at.

    Raises:
        FileFormatError: not a container, of an unknown version, cut short or damaged.
    """
    view = memoryview(content).cast("B")
    if len(view) < _START.size or view[: len(MAGIC)] != MAGIC:
        raise FileFormatError(f"not an NFAT container: it starts with {bytes(view[: len(MAGIC)])!r}")
    _, version = _START.unpack_from(view)
    if version == V1:
        manifest, inline = read_v1(view)
    elif version == V2:
        manifest, inline = read_v2(view)
    else:
        raise FileFormatError(f"an NFAT container of version {version}; this pteforge reads {V1} and {V2}")
    return Container(version, manifest, inline, blobs or {})


@dataclass(frozen=True)
class Container:
    """What `read_container` gives.

    Attributes:
        version: 1 or 2.
        manifest: what it says.
        inline: the inline section; in version 1 the data section.
        named_data: where blobs are looked up.
    """

    version: int
    manifest: Manifest
    inline: memoryview
    named_data: Mapping[Digest, Buffer]

    @property
    def payloads(self) -> tuple[Payload, ...]:
        """By preference, the first is the best."""
        return self.manifest.payloads

    def payload(self, name: str) -> Payload:
        """The first payload of a name; raises FileFormatError, naming those there are."""
        for payload in self.payloads:
            if payload.name == name:
                return payload
        names = ", ".join(payload.name for payload in self.payloads)
        raise FileFormatError(f"there is no payload {name}; there are: {names}")

    def rebuild(self, payload: Payload) -> bytes:
        """A payload's bytes; raises FileFormatError where a blob is missing or bytes are damaged."""
        content = b"".join(self.chunks(payload))
        if payload.sha256 is not None and digest_bytes(content) != payload.sha256:
            raise self._damaged(payload)
        return content

    def write(self, payload: Payload, destination: Path) -> None:
        """Writes a payload to a file, which readers see as it was or whole; its folder is made where missing.

        Raises:
            FileFormatError: a blob is missing or bytes are damaged; `destination` is as it was.
            OSError: the folder or its disk does not take the file.
        """
        with aside_file(destination.parent) as (part, file):
            sha256 = hashlib.sha256()
            for chunk in self.chunks(payload):
                file.write(chunk)
                sha256.update(chunk)
            file.flush()
            if payload.sha256 not in (None, sha256.hexdigest()):
                raise self._damaged(payload)
            part.replace(destination)

    def verify(self, payload: Payload) -> None:
        """Checks that a payload can be rebuilt to what it was, in little memory; raises FileFormatError if not."""
        sha256 = hashlib.sha256()
        for chunk in self.chunks(payload):
            sha256.update(chunk)
        if payload.sha256 not in (None, sha256.hexdigest()):
            raise self._damaged(payload)

    def chunks(self, payload: Payload) -> Iterator[memoryview]:
        """A payload's bytes in order, not verified as a whole. Blobs are looked up first, all of them.

        Raises:
            FileFormatError: a blob is missing or has another size, the payload needs an extension, or what the
                container says of it is damaged.
        """
        if payload.features:
            raise FileFormatError(
                f"payload {payload.name} needs extensions that this pteforge does not know ({payload.features:#x})"
            )
        parts = payload.parts_sha256
        if parts and payload.sha256 and parts != self._parts_digest(payload, payload.sha256):
            raise FileFormatError(f"payload {payload.name} is damaged: its parts do not have SHA-256 {parts}")
        blobs = {index: self._blob(self.manifest.blobs[index], payload) for index in payload.blobs}
        return self._chunks(payload, blobs)

    def _chunks(self, payload: Payload, blobs: Mapping[int, memoryview]) -> Iterator[memoryview]:
        for extent in payload.extents:
            if extent.source is Source.ZEROS:
                for start in range(0, extent.size, _CHUNK):
                    yield _ZEROS[: extent.size - start]
            else:
                source = self.inline if extent.source is Source.INLINE else blobs[extent.blob]
                yield _stretch(source, extent)

    def _parts_digest(self, payload: Payload, sha256: Digest) -> Digest:
        return parts_digest(payload.size, sha256, payload.extents, self.inline, self.manifest.blobs)

    def _blob(self, blob: Blob, payload: Payload) -> memoryview:
        found = self.named_data.get(blob.digest)
        if found is None:
            raise FileFormatError(
                f"payload {payload.name} needs the blob {blob.digest}, which is not in the file's named data; "
                "is it in a .ptd file that was not given?"
            )
        view = memoryview(found).cast("B")
        if len(view) != blob.size:
            raise FileFormatError(
                f"payload {payload.name} needs the blob {blob.digest} of {blob.size} bytes; it has {len(view)}"
            )
        return view

    def _damaged(self, payload: Payload) -> FileFormatError:
        """Says which blob is damaged, or that it is the container itself."""
        for index in payload.blobs:
            blob = self.manifest.blobs[index]
            if digest_bytes(self._blob(blob, payload)) != blob.digest:
                return FileFormatError(f"payload {payload.name} is damaged: the blob {blob.digest} has other bytes")
        return FileFormatError(f"payload {payload.name} is damaged: its bytes do not have SHA-256 {payload.sha256}")


def _stretch(source: memoryview, extent: Extent) -> memoryview:
    return source[extent.offset : extent.offset + extent.size]
