"""What leaves the stream of a program: tensor storages, large bytes and named data, each a blob of its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from executorch.exir._serialize._cord import FileBackedData

from ..local_store import LocalStore
from ..manifest import Manifest
from ..ref import BlobRef
from .storages import StorageTable, map_storage, storage_bytes

_STORAGE, _BYTES, _FILE = "storage", "bytes", "file"


@dataclass
class BlobSink:
    """Puts what leaves a stream into the store; hashes everything once.

    Attributes:
        store: where blobs go.
        storages: numbers the storages and keeps the digests that publishing gives.
        blobs: every blob and its number, in order of first use.
        entries: for each number in the stream, what to make of which blob.
    """

    store: LocalStore
    storages: StorageTable
    blobs: dict[BlobRef, int] = field(default_factory=dict)
    entries: list[tuple[str, int]] = field(default_factory=list)
    _numbers: dict[int, int] = field(default_factory=dict)

    def put_storage(self, storage: torch.UntypedStorage) -> int:
        """Publishes a storage's bytes, the same storage once; storages with equal bytes share a blob."""
        key = self.storages.number(storage)
        if key not in self._numbers:
            blob = self.store.put_bytes(storage_bytes(storage))
            self.storages.note_digest(storage, blob.digest)
            self._numbers[key] = self._entry(_STORAGE, blob)
        return self._numbers[key]

    def put_bytes(self, content: bytes) -> int:
        """Publishes bytes."""
        blob = self.store.put_bytes(content)
        self.storages.note_bytes_digest(content, blob.digest)
        return self._entry(_BYTES, blob)

    def put_buffer(self, content: bytes | FileBackedData) -> int:
        """Publishes a buffer that stays in the store's file when it is loaded."""
        if isinstance(content, FileBackedData):
            content = content.to_bytes()
        blob = self.store.put_bytes(content)
        self.storages.note_bytes_digest(content, blob.digest)
        return self._entry(_FILE, blob)

    def number(self, blob: BlobRef) -> int:
        """The blob's number in the manifest."""
        return self.blobs.setdefault(blob, len(self.blobs))

    def _entry(self, kind: str, blob: BlobRef) -> int:
        self.entries.append((kind, self.number(blob)))
        return len(self.entries) - 1


def open_externals(manifest: Manifest, entries: list[tuple[str, int]], store: LocalStore) -> list[Any]:
    """What `BlobSink` put away, by number; storages and named data are not read yet.

    Raises ObjectMissing or ObjectDamaged.
    """
    return [_open(kind, manifest.blobs[number], store) for kind, number in entries]


def _open(kind: str, blob: BlobRef, store: LocalStore) -> Any:
    if kind == _STORAGE:
        return map_storage(store.path(blob), blob.size)
    if kind == _BYTES:
        return store.read(blob)
    return FileBackedData(str(store.path(blob)), sha256=bytes.fromhex(blob.digest))
