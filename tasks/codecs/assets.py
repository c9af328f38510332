"""The assets of a model, files that are delivered with it, in the store: one object for each."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ...artifacts.digest import digest_json
from ...artifacts.local_store import LocalStore
from ...artifacts.ref import ArtifactManifest, ArtifactRef, BlobRef
from ...configs.base import NAME_PATTERN
from ...errors import StoreError

KIND = "model/assets"


def save_assets(assets: Mapping[str, bytes], store: LocalStore) -> ArtifactRef:
    """Stores files by name; their order decides nothing."""
    blobs = {name: store.put_bytes(assets[name]) for name in sorted(assets)}
    objects = tuple(dict.fromkeys(blobs.values()))
    body = {name: objects.index(blob) for name, blob in blobs.items()}
    identity = digest_json({name: blob.digest for name, blob in blobs.items()})
    return store.put_manifest(ArtifactManifest(KIND, objects, body), identity)


def asset_blobs(ref: ArtifactRef, store: LocalStore) -> dict[str, BlobRef]:
    """The object of each file, by name. Raises StoreError if the artifact is none of assets."""
    manifest = store.manifest(ref)
    match manifest.body:
        case dict() as body if all(re.fullmatch(NAME_PATTERN, str(name)) for name in body):
            try:
                return {name: manifest.blobs[position] for name, position in body.items()}
            except (IndexError, TypeError) as error:
                raise StoreError(f"object {ref.root.digest} in {store.root}: not the assets of a model") from error
    raise StoreError(f"object {ref.root.digest} in {store.root}: not the assets of a model")


def load_assets(ref: ArtifactRef, store: LocalStore) -> dict[str, bytes]:
    """Inverse of `save_assets`."""
    return {name: store.read(blob) for name, blob in asset_blobs(ref, store).items()}
