"""Trees of tensors and plain values (example inputs, eager outputs) as artifacts, without pickle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..ref import ArtifactRef

if TYPE_CHECKING:
    from ..local_store import LocalStore


def save_value(value: Any, *, kind: str, store: LocalStore) -> ArtifactRef:
    """Stores a tree of dict, list, tuple, int, float, bool, str, bytes, None and tensors."""
    raise NotImplementedError


def load_value(ref: ArtifactRef, store: LocalStore) -> Any:
    """Inverse of `save_value`."""
    raise NotImplementedError
