"""Tensor storages as blobs outside of a program's stream: their bytes, who shares them, mapping them back."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from executorch.exir._serialize._cord import FileBackedData

from ...artifacts.digest import Digest, digest_bytes
from ...artifacts.local_store import LocalStore
from ...artifacts.ref import ArtifactManifest, BlobRef


def storage_bytes(storage: torch.UntypedStorage) -> memoryview:
    size = storage.nbytes()
    if size == 0:
        return memoryview(b"")
    return memoryview((ctypes.c_char * size).from_address(storage.data_ptr())).cast("B")


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is just a type, a shape and strides over a storage."""
    return tensor.layout is torch.strided and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg())


def map_storage(path: Path, size: int) -> torch.UntypedStorage:
    """Maps a file copy-on-write: pages are read on use, and writes never reach the file."""
    if size == 0:
        return torch.UntypedStorage(0)
    return torch.UntypedStorage.from_file(str(path), shared=False, nbytes=size)


_STORAGE, _BYTES, _FILE = "storage", "bytes", "file"


@dataclass
class StorageTable:
    """The distinct storages of a program or value, numbered in order of first use; hashes each of them once.

    Two storages with equal bytes are two entries: whether tensors share one matters to a program.
    """

    storages: list[torch.UntypedStorage] = field(default_factory=list)
    _numbers: dict[int, int] = field(default_factory=dict)
    _digests: dict[int, Digest] = field(default_factory=dict)
    _contents: dict[int, tuple[bytes, Digest]] = field(default_factory=dict)

    def number(self, storage: torch.UntypedStorage) -> int:
        """The storage's number; the table keeps the storage alive."""
        key = storage._cdata  # noqa: SLF001 - the address of the StorageImpl, the only identity storages have
        number = self._numbers.setdefault(key, len(self.storages))
        if number == len(self.storages):
            self.storages.append(storage)
        return number

    def first(self, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        """One object per storage: torch may have several for the same memory."""
        return self.storages[self.number(storage)]

    def digest(self, storage: torch.UntypedStorage) -> Digest:
        number = self.number(storage)
        if number not in self._digests:
            self._digests[number] = digest_bytes(storage_bytes(storage))
        return self._digests[number]

    def note_digest(self, storage: torch.UntypedStorage, digest: Digest) -> None:
        self._digests[self.number(storage)] = digest

    def bytes_digest(self, content: bytes) -> Digest:
        """SHA-256 of a bytes object; the table keeps the object alive."""
        if id(content) not in self._contents:
            self.note_bytes_digest(content, digest_bytes(content))
        return self._contents[id(content)][1]

    def note_bytes_digest(self, content: bytes, digest: Digest) -> None:
        self._contents[id(content)] = (content, digest)


@dataclass
class BlobSink:
    """Publishes a stream's external content; hashes everything once.

    Attributes:
        blobs: every blob and its number, in order of first use.
        entries: for each number in the stream, the kind of content and the number of its blob.
    """

    store: LocalStore
    storages: StorageTable
    blobs: dict[BlobRef, int] = field(default_factory=dict)
    entries: list[tuple[str, int]] = field(default_factory=list)
    _numbers: dict[int, int] = field(default_factory=dict)

    def put_storage(self, storage: torch.UntypedStorage) -> int:
        """Publishes each storage once; storages with equal bytes share a blob."""
        key = self.storages.number(storage)
        if key not in self._numbers:
            blob = self.store.put_bytes(storage_bytes(storage))
            self.storages.note_digest(storage, blob.digest)
            self._numbers[key] = self._entry(_STORAGE, blob)
        return self._numbers[key]

    def put_bytes(self, content: bytes) -> int:
        return self._put(_BYTES, content)

    def put_buffer(self, content: bytes | FileBackedData) -> int:
        if isinstance(content, FileBackedData):
            content = content.to_bytes()
        return self._put(_FILE, content)

    def number(self, blob: BlobRef) -> int:
        return self.blobs.setdefault(blob, len(self.blobs))

    def _put(self, kind: str, content: bytes) -> int:
        blob = self.store.put_bytes(content)
        self.storages.note_bytes_digest(content, blob.digest)
        return self._entry(kind, blob)

    def _entry(self, kind: str, blob: BlobRef) -> int:
        self.entries.append((kind, self.number(blob)))
        return len(self.entries) - 1


def open_externals(manifest: ArtifactManifest, entries: list[tuple[str, int]], store: LocalStore) -> list[Any]:
    """The content that `BlobSink` published, by number; storages and named data are mapped, not read."""
    return [_open(kind, manifest.blobs[number], store) for kind, number in entries]


def _open(kind: str, blob: BlobRef, store: LocalStore) -> Any:
    if kind == _STORAGE:
        return map_storage(store.path(blob), blob.size)
    if kind == _BYTES:
        return store.read(blob)
    return FileBackedData(str(store.path(blob)), sha256=bytes.fromhex(blob.digest))
