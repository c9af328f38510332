"""Tensor storages as blobs: their bytes, who shares them, and mapping them back."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from pathlib import Path

import torch

from ..digest import Digest, digest_bytes


def storage_bytes(storage: torch.UntypedStorage) -> memoryview:
    """The bytes of a CPU storage, not copied: valid as long as the storage is."""
    size = storage.nbytes()
    if size == 0:
        return memoryview(b"")
    return memoryview((ctypes.c_char * size).from_address(storage.data_ptr())).cast("B")


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is nothing but a type, a shape and strides over a storage."""
    return tensor.layout is torch.strided and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg())


def map_storage(path: Path, size: int) -> torch.UntypedStorage:
    """Maps a file copy-on-write: nothing is read before it is used, and what is written never reaches the file."""
    if size == 0:
        return torch.UntypedStorage(0)
    return torch.UntypedStorage.from_file(str(path), shared=False, nbytes=size)


@dataclass
class StorageTable:
    """The distinct storages of a program or value, numbered in order of first use; hashes each of them once.

    Two storages with equal bytes are two entries: whether tensors share one is part of what a program means.
    """

    storages: list[torch.UntypedStorage] = field(default_factory=list)
    _numbers: dict[int, int] = field(default_factory=dict)
    _digests: dict[int, Digest] = field(default_factory=dict)
    _contents: dict[int, tuple[bytes, Digest]] = field(default_factory=dict)

    def number(self, storage: torch.UntypedStorage) -> int:
        """The storage's number, a new one at first sight; the storage is kept alive."""
        key = storage._cdata  # noqa: SLF001 - the address of the StorageImpl, the only identity storages have
        number = self._numbers.setdefault(key, len(self.storages))
        if number == len(self.storages):
            self.storages.append(storage)
        return number

    def first(self, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        """One object per storage: torch may make several for the same memory."""
        return self.storages[self.number(storage)]

    def digest(self, storage: torch.UntypedStorage) -> Digest:
        """SHA-256 of the storage's bytes."""
        number = self.number(storage)
        if number not in self._digests:
            self._digests[number] = digest_bytes(storage_bytes(storage))
        return self._digests[number]

    def note_digest(self, storage: torch.UntypedStorage, digest: Digest) -> None:
        """Notes a digest that was computed elsewhere."""
        self._digests[self.number(storage)] = digest

    def bytes_digest(self, content: bytes) -> Digest:
        """SHA-256 of a bytes object; the object is kept alive."""
        if id(content) not in self._contents:
            self.note_bytes_digest(content, digest_bytes(content))
        return self._contents[id(content)][1]

    def note_bytes_digest(self, content: bytes, digest: Digest) -> None:
        """Notes a digest that was computed elsewhere."""
        self._contents[id(content)] = (content, digest)
