"""Small named files, each read and replaced as a whole: what the ledger and the run history are kept in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

from ..errors import StoreUnusable
from .aside import replace_file
from .local_root import writing


class Files(ABC):
    """Files under names like ``ledger/ab/abcd``, on a disk or behind a URL.

    Readers see a file as one writer left it, never a part. Every method raises StoreUnusable where the place cannot be
    reached.
    """

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """A file's content, None where there is none."""

    @abstractmethod
    def write(self, name: str, content: bytes) -> None:
        """Makes or replaces a file."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Removes a file; nothing happens where there is none."""

    @abstractmethod
    def names(self, folder: str) -> list[str]:
        """Sorted names of all files below a folder."""


class LocalFiles(Files):
    """Files in a local store's folder."""

    def __init__(self, root: Path) -> None:
        """Keeps files below `root` and unfinished ones in ``<root>/tmp``."""
        self._root = root

    def read(self, name: str) -> bytes | None:
        """A file's content, None where there is none."""
        try:
            return (self._root / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        except OSError as error:
            raise StoreUnusable(f"the store {self._root} cannot be read: {error}") from error

    def write(self, name: str, content: bytes) -> None:
        """Makes or replaces a file."""
        with writing(self._root):
            replace_file(self._root / name, content, self._root / "tmp")

    def delete(self, name: str) -> None:
        """Removes a file; nothing happens where there is none."""
        with writing(self._root):
            (self._root / name).unlink(missing_ok=True)

    def names(self, folder: str) -> list[str]:
        """Sorted names of all files below a folder."""
        top = self._root / folder
        return sorted(str(path.relative_to(self._root)) for path in top.rglob("*") if path.is_file())
