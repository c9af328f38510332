"""What an NFAT container says, as plain values; README.md specifies what they mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from ..digest import Digest

BACKEND_ID = "NfatBackend"
"""Id of the delegate that runs a container."""

DEFAULT_ALIGNMENT = 128
"""Bytes: where ExecuTorch puts segments, and with them blobs, in a file."""

BYTE_ALIGNMENT = 16
"""What ExecuTorch's loaders promise for addresses; positions and offsets of extents are equal modulo this."""


class Source(IntEnum):
    """Where an extent's bytes come from."""

    ZEROS = 0
    INLINE = 1
    BLOB = 2


@dataclass(frozen=True, slots=True)
class Extent:
    """A stretch of a payload.

    Attributes:
        position: where it starts in the payload.
        size: number of bytes.
        source: where its bytes are.
        offset: where they start there; 0 for zeros.
        blob: index of the blob; 0 for other sources.
    """

    position: int
    size: int
    source: Source
    offset: int = 0
    blob: int = 0


@dataclass(frozen=True, slots=True)
class Blob:
    """`size` bytes outside of the container. Their key in named data is `digest`."""

    digest: Digest
    size: int


@dataclass(frozen=True, slots=True)
class Description:
    """What people and runtimes have to know about a payload to choose it.

    Attributes:
        name: what it is called, for example ``xnnpack``.
        backends: ids of the runtime backends that it needs.
        methods: names of its methods.
        executorch_version: version that made it; empty where it is not known.
        metadata: free-form text.
    """

    name: str
    backends: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    executorch_version: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Payload:
    """A specialization in a container.

    Attributes:
        description: what it is.
        size: bytes of the file.
        sha256: SHA-256 of the file; None in containers of version 1, which do not say.
        extents: where its bytes are, by position; empty where `features` is not 0: what they mean is then not known.
        features: extensions that a reader has to know to use it; none is known.
        parts_sha256: what `parts.parts_digest` gives; None where the container does not say.
    """

    description: Description
    size: int
    sha256: Digest | None
    extents: tuple[Extent, ...]
    features: int = 0
    parts_sha256: Digest | None = None

    @property
    def name(self) -> str:
        """What it is called."""
        return self.description.name

    @property
    def blobs(self) -> tuple[int, ...]:
        """Indices of the blobs that it points into, each once, ascending."""
        return tuple(sorted({extent.blob for extent in self.extents if extent.source is Source.BLOB}))


@dataclass(frozen=True, slots=True)
class Manifest:
    """All that a container says.

    Attributes:
        payloads: by preference, the first is the best.
        blobs: what extents point into.
        alignment: promised for the positions of blobs in their file, in bytes.
        metadata: free-form text.
    """

    payloads: tuple[Payload, ...]
    blobs: tuple[Blob, ...] = ()
    alignment: int = DEFAULT_ALIGNMENT
    metadata: Mapping[str, str] = field(default_factory=dict)
