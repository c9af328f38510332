"""Writes produced files to the user's folder: atomically, and only what has changed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..artifacts.digest import digest_file
from ..artifacts.files import replace_file
from ..artifacts.ref import ArtifactRef
from ..artifacts.store import Store
from ..errors import InputError, StoreUnusable, convert_os_errors
from ..tasks.codecs.payload import payload_sha256, write_payload
from ..tasks.stages.compile import Compile

_MAPS = ("debug_handles", "delegate_map", "debug_sources")


def check_folders(folders: Iterable[Path]) -> None:
    """Raises InputError, before any work, if a folder for results does not exist and cannot be created."""
    for folder in folders:
        place = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
        if not place.is_dir():
            raise InputError(f"results cannot be written to {folder}: {place} is not a folder; choose another --out")
        if not os.access(place, os.W_OK | os.X_OK):
            raise InputError(f"results cannot be written to {folder}: {place} is read-only; choose another --out")


def publish(
    store: Store, file: ArtifactRef, data: ArtifactRef | None, provenance: Mapping[str, Any], folder: Path, recipe: str
) -> Path:
    """Writes `<recipe>.pte`, `.ptd` and `.json` to `<out>/<model>`; removes an earlier rejected file.

    `file` is a verified payload/pte. `provenance` has the run under ``run``; if an earlier run wrote the same of the
    same file, its provenance stays. Creates the folder if needed; raises StoreUnusable if it cannot be written.
    """
    path, rejected = folder / f"{recipe}.pte", folder / f"{recipe}.rejected.pte"
    with _write_errors(path):
        _write_files(store, file, data, path)
        _write_provenance(folder / f"{recipe}.json", provenance)
    for outdated in (rejected, rejected.with_suffix(".ptd")):
        with convert_os_errors(StoreUnusable, f"cannot remove {outdated}, which is out of date"):
            outdated.unlink(missing_ok=True)
    return path


def keep_rejected(store: Store, file: ArtifactRef, data: ArtifactRef | None, folder: Path, recipe: str) -> Path:
    """Writes a rejected file as ``<recipe>.rejected.pte``, with its `.ptd`; returns the path. Raises as `publish`."""
    path = folder / f"{recipe}.rejected.pte"
    with _write_errors(path):
        _write_files(store, file, data, path)
    return path


def publish_debug_files(
    store: Store, debugging: Mapping[str, Compile.Outputs], folder: Path, recipe: str, payloads: Iterable[str]
) -> None:
    """Writes ``<recipe>.etrecord`` and ``<recipe>.debug.json``; for fat files ``<recipe>.<payload>.etrecord`` each.

    Earlier files that are not written again are removed: an ETRecord does not name the file that it describes.

    `debugging` has the outputs of `compile` by payload (an empty name for a plain file), if there are debug outputs;
    `payloads` are all names that payloads of the recipe may have. Raises StoreUnusable if the folder cannot be written.
    """
    records = {payload: folder / f"{recipe}{payload and '.'}{payload}.etrecord" for payload in ("", *payloads)}
    maps_path = folder / f"{recipe}.debug.json"
    maps: dict[str, dict[str, Any]] = {}
    with convert_os_errors(StoreUnusable, f"cannot write next to {folder / recipe}.pte"):
        for payload, compiled in debugging.items():
            record = compiled.etrecord
            assert record  # noqa: S101 - debug mode makes one
            path = records.pop(payload)
            if not (path.is_file() and digest_file(path) == record.root.digest):
                store.fetch(record)
                path.write_bytes(store.local.read_artifact(record))
            maps[payload] = {role: _read_json(store, getattr(compiled, role)) for role in _MAPS}
        if maps:
            _write_json(maps_path, maps.get("", maps))
        for outdated in (*records.values(), *(() if maps else (maps_path,))):
            outdated.unlink(missing_ok=True)


@contextmanager
def _write_errors(path: Path) -> Iterator[None]:
    with convert_os_errors(StoreUnusable, f"cannot write {path}", "choose another --out folder"):
        yield


def _write_files(store: Store, file: ArtifactRef, data: ArtifactRef | None, path: Path) -> None:
    """Writes a `.pte` and its `.ptd`. Without one, an earlier `.ptd` is removed: it would be taken for this file's."""
    sibling = path.with_suffix(".ptd")
    if data:
        _write_payload(store, data, sibling)
    else:
        sibling.unlink(missing_ok=True)
    _write_payload(store, file, path)


def _write_payload(store: Store, payload: ArtifactRef, path: Path) -> None:
    store.fetch(payload)
    if not (path.is_file() and digest_file(path) == payload_sha256(payload, store.local)):
        write_payload(payload, store.local, path)


def _write_provenance(path: Path, provenance: Mapping[str, Any]) -> None:
    try:
        written = json.loads(path.read_bytes())
    except (OSError, ValueError):
        written = None
    if not (isinstance(written, dict) and "run" in written and written | {"run": provenance["run"]} == provenance):
        _write_json(path, provenance)


def _write_json(path: Path, value: Any) -> None:
    content = (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()
    if not (path.is_file() and path.read_bytes() == content):
        replace_file(path, content, path.parent)


def _read_json(store: Store, ref: ArtifactRef) -> Any:
    store.fetch(ref)
    return json.loads(store.local.read_artifact(ref))
