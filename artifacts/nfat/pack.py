"""Several `.pte` files as one container of version 2, in which equal bytes are stored once."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from ...errors import FileFormatError, InputError
from ..digest import Digest, digest_bytes
from ..pte.contents import PteFile
from ..pte.reader import read_pte
from .container import Buffer, Container, read_container
from .contents import DEFAULT_ALIGNMENT, Blob, Description, Extent, Manifest, Payload
from .fat_file import BACKEND_ID
from .limits import check_description
from .parts import parts_digest
from .placement import plan
from .sharing import Sharing
from .storage import Storage
from .stretches import Stretch, stretches
from .v2 import write_v2


@dataclass(frozen=True, slots=True)
class PackedContainer:
    """A container, and what has to be stored beside it.

    Attributes:
        container: bytes of the container: the delegate's data.
        blobs: named data by key; views of the payloads that were packed.
        alignment: bytes; where blobs have to start in their file is a multiple of it.
    """

    container: bytes
    blobs: Mapping[Digest, memoryview]
    alignment: int

    @property
    def size(self) -> int:
        """Bytes of the container and all blobs."""
        return len(self.container) + sum(len(blob) for blob in self.blobs.values())

    def open(self) -> Container:
        """The same as a container to read."""
        return read_container(self.container, self.blobs)


def pack_v2(
    payloads: Sequence[tuple[Description, Buffer]],
    *,
    alignment: int = DEFAULT_ALIGNMENT,
    metadata: Mapping[str, str] | None = None,
    fallback: bool = True,
) -> PackedContainer:
    """Packs payloads; the same payloads in the same order give the same bytes.

    Args:
        payloads: what each is, and its `.pte` file, by preference. A file that is mapped is only read where needed.
        alignment: of blobs in their file, a power of two from 16 on.
        metadata: free-form text about the container.
        fallback: whether the last payload has to run without backends, which is a rule for files that are published.

    Raises:
        InputError: there is no fallback, or a payload is a fat file itself; as FileFormatError where a payload is not a
            `.pte` or a description breaks one of the format's limits.
    """
    descriptions = [
        replace(description, backends=tuple(sorted(set(description.backends)))) for description, _ in payloads
    ]
    contents = [memoryview(content).cast("B") for _, content in payloads]
    for description in descriptions:
        check_description(description)
    if fallback and (not descriptions or descriptions[-1].backends):
        raise InputError("the last payload of a fat file has to be one that needs no backend, such as portable")
    every = [
        stretch
        for index, (description, content) in enumerate(zip(descriptions, contents, strict=True))
        for stretch in stretches(index, _read(description, content))
    ]
    return pack_stretches(descriptions, contents, every, alignment, metadata or {})


def pack_stretches(
    descriptions: Sequence[Description],
    contents: Sequence[memoryview],
    every: Collection[Stretch],
    alignment: int,
    metadata: Mapping[str, str],
) -> PackedContainer:
    """Packs files of any kind, given what should stay in one piece and what may be shared.

    Args:
        descriptions: what each payload is, by preference.
        contents: their bytes.
        every: stretches that together are all bytes of all payloads, in any order.
        alignment: of blobs in their file.
        metadata: free-form text about the container.

    Raises:
        FileFormatError: a limit of the format is broken.
    """
    stored = Storage(contents, plan(Sharing(contents, every)))
    blobs = tuple(Blob(digest, len(blob)) for digest, blob in stored.blobs.items())
    manifest = Manifest(
        tuple(
            _payload(description, content, stored.extents(index), stored.inline, blobs)
            for index, (description, content) in enumerate(zip(descriptions, contents, strict=True))
        ),
        blobs,
        alignment,
        metadata,
    )
    return PackedContainer(write_v2(manifest, stored.inline), stored.blobs, alignment)


def _payload(
    description: Description,
    content: memoryview,
    extents: Sequence[Extent],
    inline: bytes | bytearray,
    blobs: Sequence[Blob],
) -> Payload:
    sha256 = digest_bytes(content)
    parts_sha256 = parts_digest(len(content), sha256, extents, inline, blobs)
    return Payload(description, len(content), sha256, tuple(extents), parts_sha256=parts_sha256)


def _read(description: Description, content: memoryview) -> PteFile:
    try:
        pte = read_pte(content)
    except FileFormatError as error:
        raise FileFormatError(f"payload {description.name}: {error}") from error
    if BACKEND_ID in (*pte.backends, *description.backends):
        raise InputError(
            f"payload {description.name} is a fat file itself, and those do not nest: extract its payloads"
        )
    return pte
