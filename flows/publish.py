"""Writing produced files where the user wants them: whole, or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..artifacts.digest import digest_file
from ..artifacts.pte.pieces import payload_sha256, write_payload
from ..artifacts.ref import ArtifactRef
from ..artifacts.store import Store
from ..errors import InputError, StoreUnusable


@dataclass(frozen=True, slots=True)
class Files:
    """What a recipe makes.

    Attributes:
        file: payload/pte, verified.
        data: payload/ptd, where weights are beside the file.
        provenance: report/provenance.
    """

    file: ArtifactRef
    data: ArtifactRef | None
    provenance: ArtifactRef


def publish(store: Store, files: Files, folder: Path, recipe: str) -> Path:
    """Writes ``<recipe>.pte``, ``<recipe>.ptd`` and ``<recipe>.json`` into a folder, where they are not there already.

    Args:
        store: where the artifacts are.
        files: the artifacts.
        folder: ``<out>/<model>``; made if need be.
        recipe: name of the recipe.

    Returns:
        Path of the `.pte` file.

    Raises:
        StoreUnusable: the folder cannot be written.
    """
    path = folder / f"{recipe}.pte"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_pair(store, files.file, files.data, path)
        store.fetch(files.provenance)
        text = json.dumps(json.loads(store.local.read_artifact(files.provenance)), indent=2, sort_keys=True) + "\n"
        write_text(folder / f"{recipe}.json", text)
    except OSError as error:
        raise StoreUnusable(f"cannot write {path}: {error.strerror or error}; choose another --out folder") from error
    return path


def write_pair(store: Store, file: ArtifactRef, data: ArtifactRef | None, path: Path) -> None:
    """Writes a `.pte` and, beside it, its `.ptd` where it has one, if they are not there already.

    A `.ptd` of an earlier file goes where this one has none: it would be taken for this one's. Raises OSError where the
    folder does not take them.
    """
    beside = path.with_suffix(".ptd")
    if data:
        _write_payload(store, data, beside)
    else:
        beside.unlink(missing_ok=True)
    _write_payload(store, file, path)


def check_folders(folders: Iterable[Path]) -> None:
    """Checks that folders are there or can be made, before the work begins whose results they are for.

    Raises:
        InputError: one cannot be used.
    """
    for folder in folders:
        place = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
        if not place.is_dir():
            raise InputError(f"results cannot be written to {folder}: {place} is not a folder; choose another --out")
        if not os.access(place, os.W_OK | os.X_OK):
            raise InputError(f"results cannot be written to {folder}: {place} is read-only; choose another --out")


def read_json(store: Store, ref: ArtifactRef) -> Any:
    """The content of an artifact that is JSON."""
    store.fetch(ref)
    return json.loads(store.local.read_artifact(ref))


def _write_payload(store: Store, payload: ArtifactRef, path: Path) -> None:
    store.fetch(payload)
    if not (path.is_file() and digest_file(path) == payload_sha256(payload, store.local)):
        write_payload(payload, store.local, path)


def write_text(path: Path, text: str) -> None:
    """Writes a file that people read, whole or not at all, where it does not say that already."""
    if path.is_file() and path.read_text() == text:
        return
    descriptor, aside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        Path(aside).chmod(0o644)
        Path(aside).replace(path)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise
