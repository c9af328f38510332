"""Trees of tensors and plain values as JSON and blobs, without pickle.

None, booleans, integers and strings stand for themselves. Everything else is an object with one key: what it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...errors import StoreError
from ..ref import BlobRef
from .storages import is_plain, storage_bytes

_INLINE_LIMIT = 64
_ALIGNMENT = 16
"""Of the part of a storage that is kept: no element type is larger."""


class TreeEncoder:
    """Encodes trees; tensor storages and longer bytes become blobs.

    Tensors that share a storage share a blob, which holds the part of the storage that the tree's tensors use.

    Attributes:
        blobs: every blob and its number, in order of first use.
        storages: blob numbers of the storages, which tensors name by position.
    """

    def __init__(self, put: Callable[[bytes | memoryview], BlobRef]) -> None:
        """Publishes blobs with `put`."""
        self._put = put
        self._used: dict[int, tuple[int, int]] = {}
        self._positions: dict[int, int] = {}
        self.blobs: dict[BlobRef, int] = {}
        self.storages: list[int] = []

    def encode(self, value: Any) -> Any:
        """JSON of a tree, all its tensors at once; raises StoreError, naming the place, for other values."""
        self._used, self._positions = {}, {}
        self._measure(value)
        return self._encode(value, "")

    def blob(self, content: bytes | memoryview) -> int:
        """Publishes bytes; returns the blob's number."""
        return self.published(self._put(content))

    def published(self, blob: BlobRef) -> int:
        """The number of a blob that is in the store already."""
        return self.blobs.setdefault(blob, len(self.blobs))

    def _measure(self, value: Any) -> None:
        """Notes which bytes of its storage each tensor uses."""
        if _is_dense(value):
            start, end = _used_bytes(value)
            low, high = self._used.get(_identity(value), (start, end))
            self._used[_identity(value)] = (min(low, start), max(high, end))
        elif isinstance(value, (list, tuple)):
            for item in value:
                self._measure(item)
        elif isinstance(value, dict):
            self._measure(list(value.values()))

    def _encode(self, value: Any, place: str) -> Any:
        kind = type(value)
        if value is None or kind in (bool, int, str):
            return value
        if kind in (list, tuple):
            return {kind.__name__: [self._encode(item, f"{place}[{number}]") for number, item in enumerate(value)]}
        if kind is dict:
            pairs = value.items()
            return {
                "dict": [[self._encode(key, place), self._encode(item, f"{place}[{key!r}]")] for key, item in pairs]
            }
        if kind is float:
            return {"float": value.hex()}
        if kind is bytes:
            return {"bytes": value.hex()} if len(value) <= _INLINE_LIMIT else {"blob": self.blob(value)}
        if _is_dense(value):
            return {"tensor": self._tensor(value)}
        raise StoreError(
            f"value{place} is a {_describe(value)}, which cannot be stored: only dense CPU tensors, dict, list, tuple, "
            "int, float, bool, str, bytes and None can"
        )

    def _tensor(self, tensor: torch.Tensor) -> dict[str, Any]:
        low, high = self._used[_identity(tensor)]
        low -= low % _ALIGNMENT
        position = self._positions.setdefault(_identity(tensor), len(self.storages))
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
    """Inverse of `TreeEncoder`."""

    def __init__(self, storages: Sequence[torch.UntypedStorage], read: Callable[[int], bytes]) -> None:
        """Takes storages by position, and what reads a blob by number."""
        self._storages = storages
        self._read = read

    def decode(self, tree: Any) -> Any:  # noqa: PLR0911 - one return per kind of value
        """The value; raises ValueError for JSON that `TreeEncoder` does not write."""
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


def _is_dense(value: Any) -> bool:
    """Whether `value` is a tensor made of nothing but a storage on the CPU."""
    return type(value) in (torch.Tensor, torch.nn.Parameter) and value.device.type == "cpu" and is_plain(value)


def _identity(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 - the address of the storage, its only identity


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
