"""Files that missed their accuracy gate: kept beside the results, under a name that says so."""

from __future__ import annotations

from pathlib import Path

from ..artifacts.pte.pieces import write_payload
from ..artifacts.ref import ArtifactRef
from ..artifacts.store import Store
from ..errors import StoreUnusable


def rejected_path(folder: Path, recipe: str) -> Path:
    """Where a recipe's rejected `.pte` file goes: ``<recipe>.rejected.pte``."""
    return folder / f"{recipe}.rejected.pte"


def keep_rejected(store: Store, file: ArtifactRef, data: ArtifactRef | None, path: Path) -> None:
    """Writes a rejected file, and its `.ptd` where weights are beside it.

    Raises:
        StoreUnusable: the folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for payload, place in ((data, path.with_suffix(".ptd")), (file, path)):
            if payload:
                store.fetch(payload)
                write_payload(payload, store.local, place)
    except OSError as error:
        raise StoreUnusable(f"cannot write {path}: {error.strerror or error}; choose another --out folder") from error


def remove_rejected(path: Path) -> None:
    """Removes what an earlier run had kept, now that the recipe gives a file that is good enough."""
    for each in (path, path.with_suffix(".ptd")):
        each.unlink(missing_ok=True)
