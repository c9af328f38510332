"""Trees of tensors and plain values (example inputs, eager outputs) as JSON and blobs, without pickle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from ...artifacts.local_store import LocalStore
from ...artifacts.ref import ArtifactManifest, ArtifactRef, BlobRef, decoding
from ...errors import StoreError
from ..upstream.absent_weights import storage_address
from .storages import is_plain, map_storage, storage_bytes

_INLINE_LIMIT = 64
_ALIGNMENT = 16  # alignment of the stored part of a storage: the size of the largest element type


class TreeEncoder:
    """Encodes trees; `put` publishes longer bytes and storages, of which tensors share the used part as one blob."""

    def __init__(self, put: Callable[[bytes | memoryview], BlobRef]) -> None:
        self._put = put
        self._used: dict[int, tuple[int, int]] = {}
        self._positions: dict[int, int] = {}
        self.blobs: dict[BlobRef, int] = {}  # every blob and its number, in order of first use
        self.storages: list[int] = []  # blob numbers of the storages, which tensors refer to by position

    def encode(self, value: Any) -> Any:
        """JSON of a whole tree; raises StoreError, naming its path, for other values."""
        self._used, self._positions = {}, {}
        self._measure(value)
        return self._encode(value, "")

    def blob(self, content: bytes | memoryview) -> int:
        return self.published(self._put(content))

    def published(self, blob: BlobRef) -> int:
        return self.blobs.setdefault(blob, len(self.blobs))

    def _measure(self, value: Any) -> None:
        if is_dense(value):
            start, end = _used_bytes(value)
            address = storage_address(value.untyped_storage())
            low, high = self._used.get(address, (start, end))
            self._used[address] = (min(low, start), max(high, end))
        elif isinstance(value, (list, tuple)):
            for item in value:
                self._measure(item)
        elif isinstance(value, dict):
            self._measure(list(value.values()))

    def _encode(self, value: Any, path: str) -> Any:
        kind = type(value)
        if value is None or kind in (bool, int, str):
            return value
        if kind in (list, tuple):
            return {kind.__name__: [self._encode(item, f"{path}[{number}]") for number, item in enumerate(value)]}
        if kind is dict:
            pairs = value.items()
            return {"dict": [[self._encode(key, path), self._encode(item, f"{path}[{key!r}]")] for key, item in pairs]}
        if kind is float:
            return {"float": value.hex()}
        if kind is bytes:
            return {"bytes": value.hex()} if len(value) <= _INLINE_LIMIT else {"blob": self.blob(value)}
        if is_dense(value):
            return {"tensor": self._tensor(value)}
        raise StoreError(
            f"value{path} is a {_describe(value)}, which cannot be stored: only dense CPU tensors, dict, list, tuple, "
            "int, float, bool, str, bytes and None can"
        )

    def _tensor(self, tensor: torch.Tensor) -> dict[str, Any]:
        address = storage_address(tensor.untyped_storage())
        low, high = self._used[address]
        low -= low % _ALIGNMENT
        position = self._positions.setdefault(address, len(self.storages))
        if position == len(self.storages):
            self.storages.append(self.blob(storage_bytes(tensor.untyped_storage())[low:high]))
        return {
            "storage": position,
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shape": list(tensor.shape),
            "strides": list(tensor.stride()),
            "offset": tensor.storage_offset() - low // tensor.itemsize if tensor.numel() else 0,
            "requires_grad": tensor.requires_grad,
        }


class TreeDecoder:
    """Inverse of `TreeEncoder`; `storages` are by position, `read` takes the number of a blob."""

    def __init__(self, storages: Sequence[torch.UntypedStorage], read: Callable[[int], bytes]) -> None:
        self._storages = storages
        self._read = read

    def decode(self, tree: Any) -> Any:  # noqa: PLR0911 - one return per kind of value
        match tree:
            case None | bool() | int() | str():
                return tree
            case {"list": list() as items}:
                return [self.decode(item) for item in items]
            case {"tuple": list() as items}:
                return tuple(self.decode(item) for item in items)
            case {"dict": list() as pairs}:
                return {self.decode(key): self.decode(item) for key, item in pairs}
            case {"float": str() as digits}:
                return float.fromhex(digits)
            case {"bytes": str() as digits}:
                return bytes.fromhex(digits)
            case {"blob": int() as number}:
                return self._read(number)
            case {"tensor": dict() as tensor}:
                return self._tensor(**tensor)
        raise ValueError(f"not a stored value: {tree!r:.80}")

    def _tensor(
        self, *, storage: int, dtype: str, shape: list[int], strides: list[int], offset: int, requires_grad: bool
    ) -> torch.Tensor:
        element = getattr(torch, dtype)
        tensor = torch.empty(0, dtype=element).set_(self._storages[storage], offset, tuple(shape), tuple(strides))
        return tensor.requires_grad_(requires_grad)


def is_dense(value: Any) -> bool:
    """Whether it is a tensor of no subclass, in memory of the CPU."""
    return type(value) in (torch.Tensor, torch.nn.Parameter) and value.device.type == "cpu" and is_plain(value)


def _used_bytes(tensor: torch.Tensor) -> tuple[int, int]:
    if tensor.numel() == 0:
        return 0, 0
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    start = tensor.storage_offset() * tensor.itemsize
    return start, start + (last + 1) * tensor.itemsize


def _describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{type(value).__qualname__} of layout {value.layout}, type {value.dtype} on {value.device}"
    return f"{type(value).__module__}.{type(value).__qualname__}"


_FORMAT = 1


def save_value(value: Any, *, kind: str, store: LocalStore) -> ArtifactRef:
    """Stores a tree of dict, list, tuple, int, float, bool, str, bytes, None and dense CPU tensors.

    Keeps types, strides, exact floats and shared storages. Equal values have equal bytes: the identity is the root's
    digest. Raises StoreError if the tree has something else; the message says where.
    """
    encoder = TreeEncoder(store.put_bytes)
    tree = encoder.encode(value)
    body = {"format": _FORMAT, "value": tree, "storages": encoder.storages}
    return store.put_manifest(ArtifactManifest(kind, tuple(encoder.blobs), body))


def load_value(ref: ArtifactRef, store: LocalStore) -> Any:
    """Inverse of `save_value`; tensors are mapped copy-on-write. Raises ObjectMissing, ObjectDamaged or StoreError."""
    manifest = store.manifest(ref)
    match manifest.body:
        case {"format": 1, "value": tree, "storages": list() as numbers}:
            blobs = manifest.blobs
            with decoding(ref):
                storages = [map_storage(store.path(blobs[number]), blobs[number].size) for number in numbers]
                return TreeDecoder(storages, lambda number: store.read(blobs[number])).decode(tree)
    raise StoreError(
        f"the {ref.kind} {ref.root.digest} is not a value of format {_FORMAT}; the stage that makes it has to run again"
    )


def save_values(values: Iterable[Any], *, kind: str, store: LocalStore) -> ArtifactRef:
    """Stores values one by one, as `save_value` does: only one is in memory at a time."""
    refs = [save_value(value, kind=f"{kind}/item", store=store) for value in values]
    blobs = dict.fromkeys(blob for ref in refs for blob in store.objects_of(ref))
    return store.put_manifest(ArtifactManifest(kind, tuple(blobs), {"items": [ref.to_json() for ref in refs]}))


def load_values(ref: ArtifactRef, store: LocalStore) -> Iterator[Any]:
    """Inverse of `save_values`: one value after another, each mapped on demand. Raises as `load_value` does."""
    for item in _items(ref, store):
        with decoding(ref):
            item_ref = ArtifactRef.from_json(item)
        yield load_value(item_ref, store)


def count_values(ref: ArtifactRef, store: LocalStore) -> int:
    return len(_items(ref, store))


def _items(ref: ArtifactRef, store: LocalStore) -> list[Any]:
    match store.manifest(ref).body:
        case {"items": list() as items}:
            return items
    raise StoreError(f"the {ref.kind} {ref.root.digest} is not a sequence of values")
