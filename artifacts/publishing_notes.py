"""Notes in a remote store of what is being published: what gc must not take for old, although it was there before."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence

from .digest import Digest, canonical_json
from .ref import BlobRef
from .remote_files import RemoteFiles

NOTES = "publishing"
"""Folder of the notes; gc sweeps old ones."""


class PublishingNotes:
    """Small files, each a list of digests. Objects of a bucket cannot be touched, so this is how one is made young."""

    def __init__(self, files: RemoteFiles) -> None:
        """Keeps notes in `files`."""
        self._files = files
        self._read: dict[str, list[Digest]] = {}

    def add(self, blobs: Sequence[BlobRef]) -> None:
        """Notes that these objects count as published now."""
        self._files.write(f"{NOTES}/{secrets.token_hex(16)}", canonical_json([blob.digest for blob in blobs]))

    def times(self) -> dict[Digest, float]:
        """When each noted object was last published, seconds since the epoch on the server's clock."""
        times: dict[Digest, float] = {}
        for file in self._files.list(NOTES):
            if file.name not in self._read:
                self._read[file.name] = _decode(self._files.read(file.name))
            for digest in self._read[file.name]:
                times[digest] = max(file.modified, times.get(digest, 0.0))
        return times


def _decode(content: bytes | None) -> list[Digest]:
    try:
        match json.loads(content or b"[]"):
            case list() as digests:
                return [Digest(str(digest)) for digest in digests]
    except ValueError:
        pass
    return []
