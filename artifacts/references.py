"""Objects whose bytes are in a file outside of the store, such as a checkpoint: only where they are is stored."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from typing import Any

from .digest import canonical_json

_CHUNK = 1 << 24  # bytes that are read at once


@dataclass(frozen=True, slots=True)
class Reference:
    """Bytes of a file, which may be numbers in another format than the object's.

    As git's index does it: a file of the same size, times and inode was not written since.

    Attributes:
        path: of the file, absolute.
        offset: where the bytes begin in it.
        size: bytes of the object.
        widened: whether the file has bfloat16 and the object float32, both little-endian.
        seen: size, modification and change time (ns), and inode of the file.
    """

    path: str
    offset: int
    size: int
    widened: bool
    seen: tuple[int, int, int, int]

    @classmethod
    def of(cls, path: str, offset: int, size: int, *, widened: bool = False) -> Reference:
        """A reference to a file as it is now; raises OSError."""
        return cls(path, offset, size, widened, _seen(path))

    @property
    def is_current(self) -> bool:
        """Whether the file is still there and was not written since."""
        try:
            return _seen(self.path) == self.seen
        except OSError:
            return False

    def chunks(self) -> Iterator[bytes]:
        """The object's bytes; fewer if the file is too short. Raises OSError."""
        left = self.size // 2 if self.widened else self.size
        with open(self.path, "rb", buffering=0) as file:  # noqa: PTH123 - a path of the system's, not the user's
            file.seek(self.offset)
            while left and (chunk := file.read(min(left, _CHUNK))):
                left -= len(chunk)
                yield _widened(chunk) if self.widened else chunk

    def encode(self) -> bytes:
        return canonical_json(astuple(self))

    @classmethod
    def decode(cls, written: Any) -> Reference | None:
        """Inverse of `encode`, from JSON; None for anything else."""
        match written:
            case [str() as path, int() as offset, int() as size, bool() as widened, list() as seen] if len(seen) == 4:
                return cls(path, offset, size, widened, tuple(seen))
        return None


def _seen(path: str) -> tuple[int, int, int, int]:
    status = os.stat(path)  # noqa: PTH116 - as above
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def _widened(chunk: bytes) -> bytes:
    """Numbers in bfloat16 as float32, which begins with the same bits."""
    import numpy as np  # noqa: PLC0415 - runs that have no such objects do without

    return (np.frombuffer(chunk, "<u2").astype("<u4") << 16).tobytes()
