"""Trees of tensors and plain values (example inputs, eager outputs) as artifacts, without pickle."""

from __future__ import annotations

from typing import Any

from ...errors import StoreError
from ..local_store import LocalStore
from ..manifest import Manifest
from ..ref import ArtifactRef
from .storages import map_storage
from .trees import TreeDecoder, TreeEncoder

_FORMAT = 1


def save_value(value: Any, *, kind: str, store: LocalStore) -> ArtifactRef:
    """Stores a tree of dict, list, tuple, int, float, bool, str, bytes, None and dense CPU tensors.

    Types, strides, exact floats and shared storages are kept. Equal values have equal bytes: the identity is the root's
    digest.

    Raises:
        StoreError: something else is in the tree; the message says where.
    """
    encoder = TreeEncoder(store.put_bytes)
    tree = encoder.encode(value)
    body = {"format": _FORMAT, "value": tree, "storages": encoder.storages}
    return store.put_manifest(Manifest(kind, tuple(encoder.blobs), body))


def load_value(ref: ArtifactRef, store: LocalStore) -> Any:
    """Inverse of `save_value`; tensors are mapped copy-on-write.

    Raises:
        ObjectMissing, ObjectDamaged: a part of the artifact.
        StoreError: the artifact is no value, or of another version.
    """
    manifest = store.manifest(ref)
    match manifest.body:
        case {"format": 1, "value": tree, "storages": list() as numbers}:
            blobs = manifest.blobs
            storages = [map_storage(store.path(blobs[number]), blobs[number].size) for number in numbers]
            try:
                return TreeDecoder(storages, lambda number: store.read(blobs[number])).decode(tree)
            except ValueError as error:
                raise StoreError(f"the {ref.kind} {ref.root.digest} cannot be loaded: {error}") from error
    raise StoreError(
        f"the {ref.kind} {ref.root.digest} is not a value of format {_FORMAT}; the stage that makes it has to run again"
    )
