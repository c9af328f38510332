"""A `.pte` in the store as pieces, and rebuilt from them byte for byte.

Each tensor, delegate and named blob is an object of its own, shared with whatever else has the same bytes.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from ...errors import ObjectMissing, StoreError
from ..aside import aside_file
from ..digest import Digest, digest_bytes
from ..local_store import LocalStore
from ..ref import ArtifactRef, BlobRef
from .cuts import Range, cut
from .extents import Extent, Glue, Pieces, Zeros

_CHUNK = 1 << 20
_PAGE = 1 << 14
_ZEROS = bytes(_CHUNK)


def save_payload(content: bytes | memoryview, *, kind: str = "payload/pte", store: LocalStore) -> ArtifactRef:
    """Stores a `.pte` as a composite artifact.

    Args:
        content: the whole file.
        kind: the artifact's kind.
        store: takes the objects.

    Returns:
        The ref; equal bytes give equal refs.

    Raises:
        FileFormatError: the bytes are not a valid `.pte`.
    """
    # Here, because it imports numpy (by way of flatbuffers), which rebuilding a file has no need of.
    from .reader import read_pte  # noqa: PLC0415

    view = memoryview(content).cast("B")
    return save_pieces(view, cut(read_pte(view)), kind=kind, store=store)


def save_pieces(view: memoryview, ranges: Iterable[Range], *, kind: str, store: LocalStore) -> ArtifactRef:
    """Stores a file of any format as a composite artifact.

    Args:
        view: the whole file.
        ranges: what is worth an object of its own, by offset, without overlaps.
        kind: the artifact's kind.
        store: takes the objects.
    """
    extents: list[Extent] = []
    glue = zlib.compressobj(9)
    compressed: list[bytes] = []
    position = 0

    def glue_until(end: int) -> None:
        if end > position:
            compressed.append(glue.compress(view[position:end]))
            extents.append(Glue(end - position))

    for each in ranges:
        glue_until(each.offset)
        piece = view[each.offset : each.end]
        extents.append(Zeros(each.size) if _is_zero(piece) else store.put_bytes(piece))
        position = each.end
    glue_until(len(view))
    compressed.append(glue.flush())
    pieces = Pieces(len(view), digest_bytes(view), store.put_bytes(b"".join(compressed)), tuple(extents))
    return store.put_manifest(pieces.to_manifest(kind), identity=pieces.sha256)  # zlib builds differ, the file does not


def write_payload(ref: ArtifactRef, store: LocalStore, destination: Path) -> None:
    """Rebuilds a `.pte` at `destination`, which readers see as it was or whole; its folder is made where it is missing.

    Raises:
        ObjectMissing, ObjectDamaged: an object cannot be used; `destination` is as it was.
        StoreError: `ref` is not a `.pte` kept as pieces.
        OSError: the folder or its disk does not take the file.
    """
    pieces = _pieces(ref, store)
    destination.parent.mkdir(parents=True, exist_ok=True)
    with aside_file(destination.parent) as (part, file):
        sha256 = hashlib.sha256()
        for chunk in _chunks(pieces, store):
            file.write(chunk)
            sha256.update(chunk)
        file.flush()
        _check(sha256.hexdigest(), ref, pieces, store)
        part.replace(destination)


def read_payload(ref: ArtifactRef, store: LocalStore) -> bytes:
    """A `.pte`'s bytes; raises StoreErrors as `write_payload` does."""
    pieces = _pieces(ref, store)
    content = b"".join(_chunks(pieces, store))
    _check(digest_bytes(content), ref, pieces, store)
    return content


def payload_sha256(ref: ArtifactRef, store: LocalStore) -> Digest:
    """SHA-256 of the `.pte` file, from the manifest alone; raises StoreErrors as `write_payload` does."""
    return _pieces(ref, store).sha256


def _pieces(ref: ArtifactRef, store: LocalStore) -> Pieces:
    try:
        return Pieces.from_manifest(store.manifest(ref))
    except ValueError as error:
        raise StoreError(f"object {ref.root.digest} in {store.root}: {error}") from error


def _chunks(pieces: Pieces, store: LocalStore) -> Iterator[bytes | memoryview]:
    """The file's bytes, in order, unverified as a whole."""
    glue = memoryview(_decompress(store.read(pieces.glue), pieces.glue_size))
    for extent in pieces.extents:
        match extent:
            case Glue(size):
                yield glue[:size]
                glue = glue[size:]
            case Zeros(size):
                for start in range(0, size, _CHUNK):
                    yield memoryview(_ZEROS)[: size - start]
            case BlobRef():
                yield from _blob_chunks(extent, store)


def _decompress(compressed: bytes, size: int) -> bytes:
    """At most `size` bytes of the glue: nothing that is wrong with it can take more memory than the file has."""
    try:
        return zlib.decompressobj().decompress(compressed, size) if size else b""
    except zlib.error:
        return b""  # then the file's digest is wrong, and the search for the damaged object begins


def _blob_chunks(blob: BlobRef, store: LocalStore) -> Iterator[bytes]:
    try:
        with store.path(blob).open("rb") as file:
            while chunk := file.read(_CHUNK):
                yield chunk
    except FileNotFoundError:
        raise ObjectMissing(blob.digest, str(store.root)) from None


def _check(sha256: str, ref: ArtifactRef, pieces: Pieces, store: LocalStore) -> None:
    """Raises where the rebuilt file is not the one that was stored."""
    if sha256 == pieces.sha256:
        return
    # The store had verified every object once; hash them again to find the one that has changed since.
    for blob in (ref.root, *pieces.to_manifest(ref.kind).blobs):
        store.objects.distrust(blob.digest)
        store.path(blob)
    raise StoreError(
        f"the pieces of the {ref.kind} artifact {ref.root.digest} in {store.root} do not make the file they should "
        f"(SHA-256 {sha256}, not {pieces.sha256}); the stage that makes it has to run again"
    )


def _is_zero(piece: memoryview) -> bool:
    """Whether all bytes are zero; stops at the first chunk with another."""
    # As bytes: memoryviews are compared item by item.
    chunks = (bytes(piece[start : start + _PAGE]) for start in range(0, piece.nbytes, _PAGE))
    return all(chunk == _ZEROS[: len(chunk)] for chunk in chunks)
