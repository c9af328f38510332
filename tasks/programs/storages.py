"""Tensor storages as blobs outside of a program's stream: their bytes, who shares them, mapping them back."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch

from ...artifacts.digest import Digest, digest_bytes
from ...artifacts.local_store import LocalStore
from ...artifacts.ref import ArtifactManifest, BlobRef
from ...errors import ObjectDamaged, ObjectMissing
from ..upstream.absent_weights import AbsentWeights, storage_address
from ..upstream.compat import FileBackedData, is_missing
from .binding import WEIGHT, Weight, weights_of
from .weights import content_of, map_reference, reference_of


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


INLINE_STORAGE_LIMIT = 512
"""Bytes up to which tensor storages stay in the stream, and weights are together in one blob."""

_STORAGE, _BYTES, _FILE = "storage", "bytes", "file"


@dataclass
class StorageTable:
    """The distinct storages of a program or value, even if bytes are equal, in order of first use; hashes each once."""

    absent: AbsentWeights = field(default_factory=AbsentWeights)  # storages of weights without their bytes
    storages: list[torch.UntypedStorage] = field(default_factory=list)
    _numbers: dict[int, int] = field(default_factory=dict)
    _digests: dict[int, Digest] = field(default_factory=dict)
    _contents: dict[int, tuple[bytes, Digest]] = field(default_factory=dict)

    def number(self, storage: torch.UntypedStorage) -> int:
        """The storage's number; the table keeps the storage alive."""
        number = self._numbers.setdefault(storage_address(storage), len(self.storages))
        if number == len(self.storages):
            self.storages.append(storage)
        return number

    def first(self, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        """One object per storage: torch may have several for the same memory."""
        return self.storages[self.number(storage)]

    def digest(self, storage: torch.UntypedStorage) -> Digest:
        number = self.number(storage)
        if number not in self._digests:
            with content_of(storage):
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
    """Publishes a stream's external content, by its number in the stream; hashes everything once."""

    store: LocalStore
    storages: StorageTable
    weights: frozenset[int] = frozenset()  # numbers of the storages that are weights. They are not published here.
    state: frozenset[int] = frozenset()  # ids of the tensors in the program's state
    blobs: dict[BlobRef, int] = field(default_factory=dict)  # every blob and its number, in order of first use
    # for each number in the stream, the kind of content and the number of its blob, or of the weight's storage
    entries: list[tuple[str, int]] = field(default_factory=list)
    # numbers of the storages of tensors that are no entries of the program's state
    elsewhere: set[int] = field(default_factory=set)
    _numbers: dict[int, int] = field(default_factory=dict)

    def note_tensor(self, tensor: torch.Tensor) -> None:
        """Raises TypeError for an absent weight: as an entry of the state it would be a fake tensor."""
        if self.storages.absent.slot(tensor.untyped_storage()) is not None:
            raise TypeError("the graph holds an absent weight outside of the program's state")
        if id(tensor) not in self.state:
            self.elsewhere.add(self.storages.number(tensor.untyped_storage()))

    def is_weight(self, storage: torch.UntypedStorage) -> bool:
        """Whether it leaves the stream whatever its size."""
        return self.storages.number(storage) in self.weights or self.storages.absent.slot(storage) is not None

    def put_storage(self, storage: torch.UntypedStorage) -> int:
        """Publishes each storage once; storages with equal bytes share a blob."""
        key = self.storages.number(storage)
        if key not in self._numbers:
            if self.is_weight(storage):
                self.entries.append((WEIGHT, key))
            else:
                blob = put_storage(storage, self.store)
                self.storages.note_digest(storage, blob.digest)
                self.entries.append((_STORAGE, self.number(blob)))
            self._numbers[key] = len(self.entries) - 1
        return self._numbers[key]

    def put_bytes(self, content: bytes) -> int:
        return self._put(_BYTES, content)

    def put_buffer(self, content: bytes | FileBackedData) -> int:
        return self._put(_FILE, content.to_bytes() if isinstance(content, FileBackedData) else content)

    def number(self, blob: BlobRef) -> int:
        return self.blobs.setdefault(blob, len(self.blobs))

    def _put(self, kind: str, content: bytes) -> int:
        blob = self.store.put_bytes(content)
        self.storages.note_bytes_digest(content, blob.digest)
        self.entries.append((kind, self.number(blob)))
        return len(self.entries) - 1


_LEAST_REFERENCE = 1 << 20  # bytes of a storage from which on its bytes may stay in a mapped file


def put_storage(storage: torch.UntypedStorage, store: LocalStore) -> BlobRef:
    """Publishes the bytes of a storage, those of a mapped checkpoint by reference.

    A file of the store's own `scratch` that the storage is mapped from becomes the object; an object is one already.
    """
    reference = reference_of(storage) if storage.nbytes() >= _LEAST_REFERENCE else None
    if reference:
        path, root = Path(reference.path), store.root.resolve()  # the system names files without links
        if path.is_relative_to(root / "tmp"):
            return store.put_scratch(path)
        if not path.is_relative_to(root):
            return store.put_reference(reference)
        blob = BlobRef(Digest(path.name), reference.size)
        with suppress(ObjectMissing, ObjectDamaged):
            if path.parent.parent == root / "objects" and store.path(blob) and store.refresh(blob):
                return blob
    with content_of(storage):
        return store.put_bytes(storage_bytes(storage))


def put_weights(slots: Mapping[int, torch.UntypedStorage], storages: StorageTable, store: LocalStore) -> list[Weight]:
    """Publishes weights by slot: the large ones as blobs of exactly their bytes, the small ones in one blob."""
    small = {slot: storage for slot, storage in slots.items() if storage.nbytes() <= INLINE_STORAGE_LIMIT}
    together = store.put_bytes(b"".join(map(storage_bytes, small.values()))) if small else None
    weights, offset = [], 0
    for slot, storage in slots.items():
        if together and slot in small:
            weights.append(Weight(slot, storages.digest(storage), together, offset))
            offset += storage.nbytes()
        else:
            blob = put_storage(storage, store)
            storages.note_digest(storage, blob.digest)
            weights.append(Weight(slot, blob.digest, blob, 0))
    return weights


def open_externals(
    manifest: ArtifactManifest, store: LocalStore, open_weight: Callable[[int, int], torch.UntypedStorage]
) -> list[Any]:
    """The content that `BlobSink` published, by number; storages and named data are mapped, not read."""
    return [
        open_weight(*entry) if kind == WEIGHT else _open(kind, manifest.blobs[entry[0]], store)
        for kind, *entry in manifest.body["externals"]
    ]


def weight_opener(
    manifest: ArtifactManifest, store: LocalStore, *, on_use: bool = False
) -> Callable[[int, int], torch.UntypedStorage]:
    """Opens a program's weights: large ones are mapped, small ones are read at once; see `program.load_program`."""
    weights = {weight.slot: weight for weight in weights_of(manifest)}
    read = cache(store.read)

    def open_weight(slot: int, size: int) -> torch.UntypedStorage:
        weight = weights[slot]
        if size <= INLINE_STORAGE_LIMIT:
            return copied_storage(read(weight.blob)[weight.offset :][:size])
        reference = store.reference(weight.blob)
        if reference and (on_use or (not reference.widened and store.check(weight.blob))):
            return map_reference(reference)
        return map_storage(store.path(weight.blob), size)

    return open_weight


def copied_storage(content: bytes) -> torch.UntypedStorage:
    """A new storage with these bytes."""
    storage = torch.UntypedStorage(len(content))
    if content:
        ctypes.memmove(storage.data_ptr(), content, len(content))
    return storage


def _open(kind: str, blob: BlobRef, store: LocalStore) -> Any:
    if kind == _STORAGE:
        return map_storage(store.path(blob), blob.size)
    if kind == _BYTES:
        return store.read(blob)
    return stored_file(blob, store)


def stored_file(blob: BlobRef, store: LocalStore) -> FileBackedData | bytes:
    """An object as data of a file that is written; its bytes where ExecuTorch, before 1.5, takes no files."""
    if is_missing(FileBackedData):
        return store.read(blob)
    return FileBackedData(str(store.path(blob)), sha256=bytes.fromhex(blob.digest))
