"""Refs: the small, JSON-able names of artifacts. Tasks pass these, never models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .digest import Digest, parse_digest


@dataclass(frozen=True, slots=True, order=True)
class BlobRef:
    """One object of the store: `size` bytes whose SHA-256 is `digest`."""

    digest: Digest
    size: int

    def to_json(self) -> list[Any]:
        """`[digest, size]`."""
        return [self.digest, self.size]

    @classmethod
    def from_json(cls, value: Any) -> BlobRef:
        """Inverse of `to_json`; raises ValueError for anything else."""
        match value:
            case [str() as digest, int() as size] if size >= 0 and not isinstance(size, bool):
                return cls(parse_digest(digest), size)
        raise ValueError(f"not a blob ref: {value!r}")


@dataclass(frozen=True, slots=True)
class ArtifactRef:
    """An artifact: immutable content in the store, and what it is.

    Attributes:
        kind: what the bytes are, for example ``program/aten`` or ``payload/pte``.
        root: the object that holds it. Where `composite`, that object is a manifest (see `artifacts.manifest`)
            naming further objects; otherwise it is the artifact's content.
        identity: what stage keys hold. It is the root's digest, except for kinds with a canonical digest (programs),
            where equal meaning has equal identity even if bytes differ.
        composite: whether `root` is a manifest.
    """

    kind: str
    root: BlobRef
    identity: Digest
    composite: bool = False

    def to_json(self) -> dict[str, Any]:
        """A JSON object with the four attributes."""
        return {"kind": self.kind, "root": self.root.to_json(), "identity": self.identity, "composite": self.composite}

    @classmethod
    def from_json(cls, value: Any) -> ArtifactRef:
        """Inverse of `to_json`; raises ValueError for anything else."""
        match value:
            case {"kind": str() as kind, "root": root, "identity": str() as identity, "composite": bool() as composite}:
                return cls(kind, BlobRef.from_json(root), parse_digest(identity), composite)
        raise ValueError(f"not an artifact ref: {value!r}")
