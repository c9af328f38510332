"""Files outside of the store: their digests, remembered between runs, and objects whose bytes stay in them.

As git's index does it, a file that has the same size, times and inode as before counts as not written since.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from .digest import Digest, canonical_json, digest_file
from .files import LocalFiles
from .records import RecordFiles, Seal

_CHUNK = 1 << 24  # bytes that are read at once
_SETTLING = 2 * 10**9  # ns: a second write within the clock's resolution may leave the same times
_Known = tuple[int, int, int, int, Digest]  # what `_seen` says, and the digest
_KNOWN: Any = dict[str, _Known]


class KnownFiles:
    """SHA-256 of files by path, kept in the local store for one run at a time; none of files just written."""

    def __init__(self, root: Path, name: str) -> None:
        """Reads what earlier runs knew from ``ledger/<name>`` of the local store at `root`; nothing if it cannot."""
        self._records = RecordFiles(LocalFiles(root), Seal(None))
        self._name = f"ledger/{name}"
        self._known: dict[str, _Known] = self._records.read(self._name, self._name, _KNOWN) or {}
        self._before = dict(self._known)

    def digest(self, path: Path) -> Digest:
        """Digest of a file; raises OSError if it cannot be read, or is none."""
        status = os.stat(path)  # noqa: PTH116 - a rerun looks at thousands: no `Path`
        known = self._known.get(str(path))
        if known and known[:-1] == _seen(status):
            return known[-1]
        digest = digest_file(path)
        self._note(path, status, digest)
        return digest

    def sha256(self, path: Path) -> Digest | None:
        """Digest of a file; None if there is no such file."""
        status = _look_at(path)
        if status is None:
            self._known.pop(str(path), None)
            return None
        return self.digest(path) if stat.S_ISREG(status.st_mode) else None

    def note(self, path: Path, digest: Digest) -> None:
        """Remembers a file by another digest than its own, which `knows` finds: one that leaves out a part of it."""
        if status := _look_at(path):
            self._note(path, status, digest)

    def knows(self, path: str, digest: Digest) -> bool:
        """Whether a file is known by this digest and was not written since; reads nothing."""
        known = self._known.get(path)
        return (
            known is not None
            and known[-1] == digest
            and (status := _look_at(path)) is not None
            and (known[:-1] == _seen(status))
        )

    def _note(self, path: Path, status: os.stat_result, digest: Digest) -> None:
        if time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) > _SETTLING:
            self._known[str(path)] = (*_seen(status), digest)

    def save(self) -> None:
        """Remembers what was found out; raises StoreUnusable if the store cannot be written."""
        known = dict(self._known)  # another thread may be adding to it
        if known != self._before:
            self._records.write(self._name, self._name, canonical_json(known))


def _look_at(path: str | Path) -> os.stat_result | None:
    try:
        return os.stat(path)  # noqa: PTH116 - as above
    except OSError:  # there is none, or a link that leads nowhere: whoever writes it says what is wrong
        return None


def _seen(status: os.stat_result) -> tuple[int, int, int, int]:
    """Size, modification and change time (ns), and inode."""
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


@dataclass(frozen=True, slots=True)
class Reference:
    """Bytes of an object that stay in a file outside of the store, such as a checkpoint."""

    path: str  # of the file, absolute
    offset: int  # where the bytes begin in it
    size: int  # bytes of the object
    widened: bool  # whether the file has bfloat16 and the object float32, both little-endian
    seen: tuple[int, int, int, int]  # see `_seen`

    @classmethod
    def of(cls, path: str, offset: int, size: int, *, widened: bool = False) -> Reference:
        """A reference to a file as it is now; raises OSError."""
        return cls(path, offset, size, widened, _seen(os.stat(path)))  # noqa: PTH116 - a path of the system's

    @property
    def is_current(self) -> bool:
        """Whether the file is still there and was not written since."""
        try:
            return _seen(os.stat(self.path)) == self.seen  # noqa: PTH116 - as above
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


def _widened(chunk: bytes) -> bytes:
    """Numbers in bfloat16 as float32, which begins with the same bits."""
    import numpy as np  # noqa: PLC0415 - runs that have no such objects do without

    return (np.frombuffer(chunk, "<u2").astype("<u4") << 16).tobytes()
