"""SHA-256 digests of bytes, files and JSON values: the names that everything in the store has."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any, NewType

Digest = NewType("Digest", str)
"""64 lower-case hexadecimal characters: a SHA-256."""

_HEX = re.compile(r"[0-9a-f]{64}\Z")


def parse_digest(text: str) -> Digest:
    """Checks that `text` is a digest; raises ValueError where it is not."""
    if not isinstance(text, str) or not _HEX.match(text):
        raise ValueError(f"not a SHA-256 digest: {text!r}")
    return Digest(text)


def digest_bytes(content: bytes | bytearray | memoryview) -> Digest:
    """SHA-256 of bytes."""
    return Digest(hashlib.sha256(content).hexdigest())


def digest_file(path: Path) -> Digest:
    """SHA-256 of a file's content, read in pieces."""
    with path.open("rb") as file:
        return Digest(hashlib.file_digest(file, "sha256").hexdigest())


def canonical_json(value: Any) -> bytes:
    """The one UTF-8 text of a JSON value: keys sorted, no blanks, no NaN. Raises ValueError or TypeError for others."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def digest_json(value: Any) -> Digest:
    """SHA-256 of a value's canonical JSON."""
    return digest_bytes(canonical_json(value))
