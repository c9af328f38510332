"""Trees of tensors and plain values (example inputs, eager outputs) as artifacts, without pickle."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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


def save_values(values: Iterable[Any], *, kind: str, store: LocalStore) -> ArtifactRef:
    """Stores values one after another, each as `save_value` would: never more than one is in memory.

    Raises:
        StoreError: see `save_value`.
    """
    refs = [save_value(value, kind=f"{kind}/item", store=store) for value in values]
    blobs = dict.fromkeys(blob for ref in refs for blob in store.objects_of(ref))
    return store.put_manifest(Manifest(kind, tuple(blobs), {"items": [ref.to_json() for ref in refs]}))


def load_values(ref: ArtifactRef, store: LocalStore) -> Iterator[Any]:
    """Inverse of `save_values`: one value after another, each mapped when it is asked for.

    Raises:
        ObjectMissing, ObjectDamaged: a part of the artifact.
        StoreError: the artifact is something else.
    """
    for item in _items(ref, store):
        yield load_value(ArtifactRef.from_json(item), store)


def count_values(ref: ArtifactRef, store: LocalStore) -> int:
    """How many values `load_values` gives. Raises what it raises."""
    return len(_items(ref, store))


def _items(ref: ArtifactRef, store: LocalStore) -> list[Any]:
    match store.manifest(ref).body:
        case {"items": list() as items}:
            return items
    raise StoreError(f"the {ref.kind} {ref.root.digest} is not a sequence of values")
