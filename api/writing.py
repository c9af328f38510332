"""Writing files where a caller wants them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import StoreUnusable


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Says what cannot be written; raises StoreUnusable for what the system refuses."""
    try:
        yield
    except OSError as error:
        raise StoreUnusable(f"cannot write {path}: {error.strerror or error}") from error
