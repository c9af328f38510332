"""Manifests: the root objects of artifacts that are made of several blobs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from .digest import canonical_json
from .ref import BlobRef

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Manifest:
    """A composite artifact's root object, stored as canonical JSON.

    Attributes:
        kind: the artifact's kind.
        blobs: every object the artifact needs besides this one, without repeats, in order of first use.
        body: what the kind's codec needs to put the blobs together; JSON.
    """

    kind: str
    blobs: tuple[BlobRef, ...]
    body: Any

    def encode(self) -> bytes:
        """Canonical bytes: equal manifests have equal bytes."""
        blobs = [blob.to_json() for blob in self.blobs]
        return canonical_json({"format": _FORMAT, "kind": self.kind, "blobs": blobs, "body": self.body})

    @classmethod
    def decode(cls, content: bytes) -> Manifest:
        """Inverse of `encode`; raises ValueError for bytes that are not a manifest of this format."""
        match json.loads(content):
            case {"format": 1, "kind": str() as kind, "blobs": list() as blobs, "body": body}:
                return cls(kind, tuple(BlobRef.from_json(blob) for blob in blobs), body)
        raise ValueError("not an artifact manifest")
