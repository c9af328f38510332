"""What the ledger holds: finished stages, and the last key of every slot."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .digest import Digest, canonical_json, parse_digest
from .ref import ArtifactRef, BlobRef


@dataclass(frozen=True, slots=True)
class StageRecord:
    """One finished stage: what it was asked and what it made.

    Attributes:
        key: the stage key.
        fields: what the key was made of, by name; JSON values.
        outputs: the artifacts it made, by role.
        seconds: wall time it took.
        peak_memory: bytes its process had resident at most; 0 where unknown.
        finished: when, ISO 8601 in UTC.
        log: what its process wrote, None where it wrote nothing.
    """

    key: Digest
    fields: Mapping[str, Any]
    outputs: Mapping[str, ArtifactRef]
    seconds: float
    peak_memory: int
    finished: str
    log: BlobRef | None = None

    def encode(self) -> bytes:
        """Canonical JSON; raises ValueError or TypeError where the fields are no JSON."""
        return canonical_json(
            {
                "key": self.key,
                "fields": dict(self.fields),
                "outputs": {role: ref.to_json() for role, ref in self.outputs.items()},
                "seconds": float(self.seconds),
                "peak_memory": self.peak_memory,
                "finished": self.finished,
                "log": self.log and self.log.to_json(),
            }
        )

    @classmethod
    def decode(cls, content: bytes) -> StageRecord:
        """Inverse of `encode`; raises ValueError for bytes that are not a stage record."""
        match json.loads(content):
            case {
                "key": str() as key,
                "fields": dict() as fields,
                "outputs": dict() as outputs,
                "seconds": float() as seconds,
                "peak_memory": int() as peak_memory,
                "finished": str() as finished,
                "log": list() | None as log,
            }:
                return cls(
                    parse_digest(key),
                    fields,
                    {role: ArtifactRef.from_json(ref) for role, ref in outputs.items()},
                    seconds,
                    peak_memory,
                    finished,
                    None if log is None else BlobRef.from_json(log),
                )
        raise ValueError("not a stage record")


@dataclass(frozen=True, slots=True)
class SlotRecord:
    """The key that a slot had when it was last used, so that a new key can be compared with it.

    Attributes:
        slot: a name such as ``resnet8/export/forward``.
        key: the stage key.
        fields: what the key was made of.
    """

    slot: str
    key: Digest
    fields: Mapping[str, Any]

    def encode(self) -> bytes:
        """Canonical JSON; raises ValueError or TypeError where the fields are no JSON."""
        return canonical_json({"slot": self.slot, "key": self.key, "fields": dict(self.fields)})

    @classmethod
    def decode(cls, content: bytes) -> SlotRecord:
        """Inverse of `encode`; raises ValueError for bytes that are not a slot record."""
        match json.loads(content):
            case {"slot": str() as slot, "key": str() as key, "fields": dict() as fields}:
                return cls(slot, parse_digest(key), fields)
        raise ValueError("not a slot record")
