"""Files that missed their accuracy gate: kept beside the results, under a name that says so."""

from __future__ import annotations

from pathlib import Path

from ..artifacts.ref import ArtifactRef
from ..artifacts.store import Store
from ..errors import StoreUnusable
from .publish import write_pair


def keep_rejected(store: Store, file: ArtifactRef, data: ArtifactRef | None, folder: Path, recipe: str) -> Path:
    """Writes a rejected file, and its `.ptd` where weights are beside it; gives the path of the `.pte` file.

    Raises:
        StoreUnusable: the folder cannot be written.
    """
    path, _ = _paths(folder, recipe)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_pair(store, file, data, path)
    except OSError as error:
        raise StoreUnusable(f"cannot write {path}: {error.strerror or error}; choose another --out folder") from error
    return path


def remove_rejected(folder: Path, recipe: str) -> None:
    """Removes what an earlier run had kept, now that the recipe gives a file that is good enough.

    Raises:
        StoreUnusable: it cannot be removed.
    """
    for path in _paths(folder, recipe):
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise StoreUnusable(f"cannot remove {path}, which is out of date: {error.strerror or error}") from error


def _paths(folder: Path, recipe: str) -> tuple[Path, Path]:
    path = folder / f"{recipe}.rejected.pte"
    return path, path.with_suffix(".ptd")
