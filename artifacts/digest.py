"""SHA-256 digests of bytes, files and JSON values: the names of everything in the store."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, NewType

from pydantic import StringConstraints

from .files import open_input

_PATTERN = "^[0-9a-f]{64}$"

Digest = NewType("Digest", Annotated[str, StringConstraints(pattern=_PATTERN)])
"""64 lower-case hexadecimal characters: a SHA-256."""


def is_digest(text: str) -> bool:
    return re.fullmatch(_PATTERN, text) is not None


def parse_digest(text: str) -> Digest:
    if not isinstance(text, str) or not is_digest(text):
        raise ValueError(f"not a SHA-256 digest: {text!r}")
    return Digest(text)


def digest_bytes(content: bytes | bytearray | memoryview) -> Digest:
    return Digest(hashlib.sha256(content).hexdigest())


def digest_chunks(chunks: Iterable[bytes]) -> Digest:
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return Digest(digest.hexdigest())


def digest_file(path: Path) -> Digest:
    with open_input(path) as file:
        return Digest(hashlib.file_digest(file, "sha256").hexdigest())


def canonical_json(value: Any) -> bytes:
    """UTF-8 text of a JSON value: sorted keys, no blanks, no NaN. Raises ValueError or TypeError."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def digest_json(value: Any) -> Digest:
    return digest_bytes(canonical_json(value))
