"""Packed containers and `.ptd` files in the store: blobs are objects, shared with all that has the same bytes."""

from __future__ import annotations

from ...errors import StoreError
from ..local_store import LocalStore
from ..manifest import Manifest
from ..pte.cuts import SMALLEST, Range
from ..pte.pieces import save_pieces
from ..ref import ArtifactRef
from .named_data import map_file, ptd_places
from .pack import PackedContainer

KIND = "payload/nfat"


def save_packed(packed: PackedContainer, store: LocalStore) -> ArtifactRef:
    """Stores a container and its blobs; equal ones give equal refs."""
    container = store.put_bytes(packed.container)
    blobs = [store.put_bytes(blob) for blob in packed.blobs.values()]
    objects = tuple(dict.fromkeys((container, *blobs)))
    body = {"alignment": packed.alignment, "keys": [blob.digest for blob in blobs]}
    return store.put_manifest(Manifest(KIND, objects, body))


def load_packed(ref: ArtifactRef, store: LocalStore) -> PackedContainer:
    """Inverse of `save_packed`; blobs are mapped.

    Raises:
        ObjectMissing, ObjectDamaged: an object cannot be used.
        StoreError: `ref` is something else.
    """
    manifest = store.manifest(ref)
    objects = {blob.digest: blob for blob in manifest.blobs}
    match manifest.body:
        case {"alignment": int() as alignment, "keys": list() as keys} if objects and objects.keys() >= set(keys):
            blobs = {key: map_file(store.path(objects[key])) for key in keys}
            return PackedContainer(store.read(manifest.blobs[0]), blobs, alignment)
    raise StoreError(f"object {ref.root.digest} in {store.root}: not a packed container")


def save_data_file(content: memoryview, store: LocalStore) -> ArtifactRef:
    """Stores a `.ptd` file (payload/ptd), which `artifacts.pte.pieces.write_payload` rebuilds.

    Raises:
        FileFormatError: the bytes are not a valid `.ptd`.
    """
    places = sorted({(offset, size) for _, offset, size in ptd_places(content) if size >= SMALLEST})
    return save_pieces(content, [Range(*place) for place in places], kind="payload/ptd", store=store)
