"""`.pte`, `.ptd` files and containers as pieces that artifacts share, models' assets, and checks of what files hold."""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ...artifacts.digest import Digest, digest_bytes, digest_json, parse_digest
from ...artifacts.files import new_file
from ...artifacts.local_store import LocalStore
from ...artifacts.ref import ArtifactManifest, ArtifactRef, BlobRef, decoding
from ...configs.base import NAME_PATTERN
from ...errors import ObjectMissing, PteforgeError, StoreError
from ...formats.nfat.contents import is_zero
from ...formats.pte.contents import MIN_SHAREABLE, Extent, PteFile, Shareable, cut, shareable_extents
from ..engine.stage import Workspace

if TYPE_CHECKING:
    from ...formats.nfat.pack import PackedContainer


# Readers of file formats import flatbuffers, and that numpy: only functions that need them do.


def save_payload(
    content: bytes | memoryview,
    *,
    kind: str = "payload/pte",
    store: LocalStore,
    shareable: Shareable = MappingProxyType({}),
) -> ArtifactRef:
    """Stores a whole `.pte` as a composite artifact; equal bytes have equal refs. Raises FileFormatError."""
    from ...formats.pte.reader import read_pte  # noqa: PLC0415

    view = memoryview(content).cast("B")
    pte = read_pte(view)
    named = {pte.segments[named.segment]: shareable.get(named.key, ()) for named in pte.named_data}
    return _save([(view, _cut(shareable_extents(pte), named))], kind, store)


def save_data_file(content: memoryview, store: LocalStore, shareable: Shareable = MappingProxyType({})) -> ArtifactRef:
    """Stores a whole `.ptd` as a composite artifact, kind payload/ptd. Raises FileFormatError."""
    from ...formats.pte.ptd import ptd_extents  # noqa: PLC0415

    named = {extent: shareable.get(key, ()) for key, extent in ptd_extents(content) if extent.size >= MIN_SHAREABLE}
    return _save([(content, _cut(sorted(named), named))], "payload/ptd", store)


def _cut(extents: Iterable[Extent], parts: Mapping[Extent, tuple[Extent, ...]]) -> Iterator[Extent]:
    for extent in extents:
        yield from cut(extent, parts.get(extent, ()))


def _save(
    views: Sequence[tuple[memoryview, Iterable[Extent]]],
    kind: str,
    store: LocalStore,
    body: Mapping[str, Any] = MappingProxyType({}),
) -> ArtifactRef:
    """Stores views as one file, with an object for each extent (sorted, disjoint); adds `body` to the manifest's."""
    pieces: list[Piece] = []
    compressor, sha256 = zlib.compressobj(9), hashlib.sha256()
    compressed: list[bytes] = []

    def add_remainder(content: memoryview) -> None:
        if content:
            compressed.append(compressor.compress(content))
            pieces.append(Remainder(len(content)))

    for view, extents in views:
        position = 0
        for extent in extents:
            add_remainder(view[position : extent.offset])
            content = extent.of(view)
            pieces.append(Zeros(extent.size) if is_zero(content) else store.put_bytes(content))
            position = extent.end
        add_remainder(view[position:])
        sha256.update(view)
    compressed.append(compressor.flush())
    size, digest = sum(len(view) for view, _ in views), parse_digest(sha256.hexdigest())
    layout = FileLayout(size, digest, store.put_bytes(b"".join(compressed)), tuple(pieces))
    manifest = layout.to_manifest(kind)
    manifest = replace(manifest, body={**manifest.body, **body})
    return store.put_manifest(manifest, identity=layout.sha256)  # zlib builds differ, the file does not


def write_payload(ref: ArtifactRef, store: LocalStore, destination: Path) -> None:
    """Rebuilds a file at `destination` atomically; creates the folder if needed.

    Raises ObjectMissing or ObjectDamaged for an unusable object, StoreError if `ref` is not a file stored as pieces,
    and OSError if the file cannot be written. `destination` is then unchanged.
    """
    layout = _layout(ref, store)
    destination.parent.mkdir(parents=True, exist_ok=True)
    with new_file(destination) as file:
        sha256 = hashlib.sha256()
        for chunk in _chunks(layout, store):
            file.write(chunk)
            sha256.update(chunk)
        _check(sha256.hexdigest(), ref, layout, store)


def read_payload(ref: ArtifactRef, store: LocalStore) -> bytes:
    layout = _layout(ref, store)
    content = b"".join(_chunks(layout, store))
    _check(digest_bytes(content), ref, layout, store)
    return content


def payload_sha256(ref: ArtifactRef, store: LocalStore) -> Digest:
    """SHA-256 of the file, from the manifest alone; raises StoreErrors as `write_payload` does."""
    return _layout(ref, store).sha256


def save_packed(packed: PackedContainer, store: LocalStore) -> ArtifactRef:
    """Stores a container and its blobs as one file in pieces; weights are objects that payloads have, too."""
    files = [("", memoryview(packed.container)), *packed.blobs.items()]
    views = [(view, cut(Extent(0, len(view)), packed.shareable.get(key, ()))) for key, view in files]
    parts = {key: [astuple(part) for part in packed.shareable.get(key, ())] for key in packed.blobs}
    blobs = [[key, len(blob), parts[key]] for key, blob in packed.blobs.items()]
    body = {"alignment": packed.alignment, "container": len(packed.container), "blobs": blobs}
    return _save(views, "payload/nfat", store, body)


def load_packed(ref: ArtifactRef, store: LocalStore, scratch: Path) -> PackedContainer:
    """Inverse of `save_packed`; blobs are views of a file in `scratch`. Raises errors as `write_payload` does."""
    from ...formats.nfat.pack import PackedContainer  # noqa: PLC0415
    from ...formats.pte.reader import map_file  # noqa: PLC0415

    path = scratch / "container.nfat"
    write_payload(ref, store, path)
    view = map_file(path)
    match store.manifest(ref).body:
        case {"alignment": int() as alignment, "container": int() as position, "blobs": list() as described}:
            container, blobs, shareable = bytes(view[:position]), {}, {}
            with decoding(ref):
                for key, size, parts in described:
                    blobs[key] = view[position : position + size]
                    shareable[key] = tuple(Extent(*part) for part in parts)
                    position += size
            return PackedContainer(container, blobs, alignment, shareable)
    raise StoreError(f"object {ref.root.digest} in {store.root}: not a packed container")


@dataclass(frozen=True, slots=True)
class Remainder:
    """The next `size` bytes of the remainder."""

    size: int


@dataclass(frozen=True, slots=True)
class Zeros:
    """`size` zero bytes."""

    size: int


Piece = Remainder | Zeros | BlobRef  # A piece of a file; a `BlobRef` stands for the whole object


@dataclass(frozen=True, slots=True)
class FileLayout:
    """The pieces of a file in the store."""

    size: int
    sha256: Digest
    remainder: BlobRef  # the object with all bytes that are not worth an object of their own, compressed with zlib
    pieces: tuple[Piece, ...]  # the whole file, in order

    def to_manifest(self, kind: str) -> ArtifactManifest:
        blobs = dict.fromkeys([self.remainder, *(piece for piece in self.pieces if isinstance(piece, BlobRef))])
        index = {blob: position for position, blob in enumerate(blobs)}
        pieces = [_piece_to_json(piece, index) for piece in self.pieces]
        return ArtifactManifest(kind, tuple(blobs), {"size": self.size, "sha256": self.sha256, "extents": pieces})

    @classmethod
    def from_manifest(cls, manifest: ArtifactManifest) -> FileLayout:
        match manifest.body:
            case {"size": int() as size, "sha256": str() as sha256, "extents": list() as pieces} if manifest.blobs:
                read = tuple(_piece_from_json(piece, manifest.blobs) for piece in pieces)
                if sum(piece.size for piece in read) == size:
                    return cls(size, parse_digest(sha256), manifest.blobs[0], read)
        raise ValueError("not the manifest of a file stored as pieces")


def _piece_to_json(piece: Piece, index: dict[BlobRef, int]) -> list[Any]:
    if isinstance(piece, BlobRef):
        return ["blob", index[piece]]
    return ["glue" if isinstance(piece, Remainder) else "zeros", piece.size]


def _piece_from_json(value: Any, blobs: tuple[BlobRef, ...]) -> Piece:
    match value:
        case ["glue", int() as size] if size > 0:
            return Remainder(size)
        case ["zeros", int() as size] if size > 0:
            return Zeros(size)
        case ["blob", int() as position] if 0 <= position < len(blobs):
            return blobs[position]
    raise ValueError(f"not a piece: {value!r}")


ASSETS_KIND = "model/assets"


def save_assets(assets: Mapping[str, bytes], store: LocalStore) -> ArtifactRef:
    """Stores files by name; their order decides nothing."""
    blobs = {name: store.put_bytes(assets[name]) for name in sorted(assets)}
    objects = tuple(dict.fromkeys(blobs.values()))
    body = {name: objects.index(blob) for name, blob in blobs.items()}
    identity = digest_json({name: blob.digest for name, blob in blobs.items()})
    return store.put_manifest(ArtifactManifest(ASSETS_KIND, objects, body), identity)


def asset_blobs(ref: ArtifactRef, store: LocalStore) -> dict[str, BlobRef]:
    """The object of each file, by name. Raises StoreError if the artifact is none of assets."""
    manifest = store.manifest(ref)
    body = manifest.body
    if isinstance(body, dict) and all(re.fullmatch(NAME_PATTERN, str(name)) for name in body):
        with suppress(IndexError, TypeError):
            return {name: manifest.blobs[position] for name, position in body.items()}
    raise StoreError(f"object {ref.root.digest} in {store.root}: not the assets of a model")


def load_assets(ref: ArtifactRef, store: LocalStore) -> dict[str, bytes]:
    """Inverse of `save_assets`."""
    return {name: store.read(blob) for name, blob in asset_blobs(ref, store).items()}


_CHUNK = 1 << 20
_ZEROS = bytes(_CHUNK)


def _layout(ref: ArtifactRef, store: LocalStore) -> FileLayout:
    try:
        return FileLayout.from_manifest(store.manifest(ref))
    except ValueError as error:
        raise StoreError(f"object {ref.root.digest} in {store.root}: {error}") from error


def _chunks(layout: FileLayout, store: LocalStore) -> Iterator[bytes | memoryview]:
    size = sum(piece.size for piece in layout.pieces if isinstance(piece, Remainder))
    remainder = memoryview(_decompress(store.read(layout.remainder), size))
    for piece in layout.pieces:
        match piece:
            case Remainder(size):
                yield remainder[:size]
                remainder = remainder[size:]
            case Zeros(size):
                for start in range(0, size, _CHUNK):
                    yield memoryview(_ZEROS)[: size - start]
            case BlobRef():
                yield from _blob_chunks(piece, store)


def _decompress(compressed: bytes, size: int) -> bytes:
    """Decompresses at most `size` bytes, so that a damaged remainder cannot take more memory than the file."""
    with suppress(zlib.error):  # then the file's digest is wrong, and `_check` finds the damaged object
        return zlib.decompressobj().decompress(compressed, size) if size else b""
    return b""


def _blob_chunks(blob: BlobRef, store: LocalStore) -> Iterator[bytes]:
    try:
        with store.path(blob).open("rb") as file:
            while chunk := file.read(_CHUNK):
                yield chunk
    except FileNotFoundError:
        raise ObjectMissing(blob.digest, str(store.root)) from None


def _check(sha256: str, ref: ArtifactRef, layout: FileLayout, store: LocalStore) -> None:
    if sha256 == layout.sha256:
        return
    # The store verified each object once. Hash them again to find the one that has changed since.
    for blob in (ref.root, *layout.to_manifest(ref.kind).blobs):
        store.distrust(blob.digest)
        store.path(blob)
    raise StoreError(
        f"the pieces of the {ref.kind} artifact {ref.root.digest} in {store.root} do not make the file they should "
        f"(SHA-256 {sha256}, not {layout.sha256}); the stage that makes it has to run again"
    )


def write_delivered(file: ArtifactRef, data: ArtifactRef | None, work: Workspace) -> tuple[Path, tuple[Path, ...]]:
    """Writes a file and its weights, if it has its own, to the scratch folder; returns `.pte` and `.ptd`s."""
    paths = []
    for ref, name in ((file, "model.pte"), (data, "model.ptd")):
        if ref is not None:
            paths.append(work.scratch / name)
            write_payload(ref, work.store, paths[-1])
    return paths[0], tuple(paths[1:])


def check_file(pte: PteFile, *, methods: Collection[str], backends: Collection[str], what: str) -> None:
    """Raises PteforgeError if an emitted file lacks a method, or needs a backend that its target does not name."""
    names = {method.name for method in pte.methods}
    if missing := set(methods) - names:
        raise PteforgeError(f"{what} lacks the methods {sorted(missing)}; it has {sorted(names)}")
    if unexpected := set(pte.backends) - set(backends):
        raise PteforgeError(
            f"{what} needs the backends {sorted(unexpected)}, which its target does not name; "
            "the target's `backends` must list them"
        )
