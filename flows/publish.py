"""Writes produced files to the user's folder: atomically, and only what has changed."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..artifacts.digest import Digest, canonical_json, digest_bytes, digest_file, digest_json
from ..artifacts.files import LocalFiles, replace_file
from ..artifacts.records import RecordFiles
from ..artifacts.ref import ArtifactRef
from ..artifacts.store import Store
from ..errors import InputError, StoreUnusable, convert_os_errors
from ..tasks.codecs.payload import payload_sha256, write_payload
from ..tasks.stages.compile import Compile

_MAPS = ("debug_handles", "delegate_map", "debug_sources")
_SETTLING = 2 * 10**9  # ns: a file may be written again without another time within those of a file system's clock


_Known = tuple[int, int, int, int, Digest]  # what `_seen` says, and the digest
_KNOWN: Any = dict[str, _Known]


class KnownFiles:
    """SHA-256 of the files in a folder for results, remembered between runs by what `stat` says of them.

    As git's index does it: a file of the same size, times and inode was not written since, unless it had just been
    written when it was looked at. Remembered in the local store, for one run at a time; losing it costs reading the
    files.
    """

    def __init__(self, store: Store, folder: Path) -> None:
        """Reads what earlier runs knew; nothing if that cannot be read."""
        self._files = LocalFiles(store.local.root)
        self._name = f"ledger/published/{digest_bytes(str(folder).encode())}"
        self._known = self._read()
        self._before = dict(self._known)

    def sha256(self, path: Path) -> Digest | None:
        """Digest of a file; None if there is no such file."""
        status = _look_at(path)
        if status is None:
            self._known.pop(str(path), None)
            return None
        if not stat.S_ISREG(status.st_mode):
            return None
        known = self._known.get(str(path))
        if known and known[:-1] == _seen(status):
            return known[-1]
        digest = digest_file(path)
        self._note(path, status, digest)
        return digest

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
        if self._known != self._before:
            self._files.write(self._name, canonical_json(self._known))

    def _read(self) -> dict[str, _Known]:
        return RecordFiles(self._files, None).read(self._name, self._name, _KNOWN) or {}


def _look_at(path: str | Path) -> os.stat_result | None:
    try:
        return os.stat(path)  # noqa: PTH116 - a rerun looks at thousands: no `Path`
    except FileNotFoundError:
        return None


def _seen(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def check_folders(folders: Iterable[Path]) -> None:
    """Raises InputError, before any work, if a folder for results does not exist and cannot be created."""
    for folder in folders:
        place = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
        if not place.is_dir():
            raise InputError(f"results cannot be written to {folder}: {place} is not a folder; choose another --out")
        if not os.access(place, os.W_OK | os.X_OK):
            raise InputError(f"results cannot be written to {folder}: {place} is read-only; choose another --out")


def publish(
    store: Store,
    file: ArtifactRef,
    data: ArtifactRef | None,
    provenance: Mapping[str, Any],
    folder: Path,
    recipe: str,
    known: KnownFiles,
) -> Path:
    """Writes `<recipe>.pte`, `.ptd` and `.json` to `<out>/<model>`; removes an earlier rejected file.

    `file` is a verified payload/pte. `provenance` has the run under ``run``; if an earlier run wrote the same of the
    same file, its provenance stays. Creates the folder if needed; raises StoreUnusable if it cannot be written.
    """
    path, rejected = folder / f"{recipe}.pte", folder / f"{recipe}.rejected.pte"
    with _write_errors(path):
        _write_files(store, file, data, path, known)
        _write_provenance(folder / f"{recipe}.json", provenance)
        known.note(folder / f"{recipe}.json", _without_run(provenance))
    for outdated in (rejected, rejected.with_suffix(".ptd")):
        with convert_os_errors(StoreUnusable, f"cannot remove {outdated}, which is out of date"):
            outdated.unlink(missing_ok=True)
    return path


def published_digests(
    store: Store, file: ArtifactRef, data: ArtifactRef | None, provenance: Mapping[str, Any]
) -> dict[str, Digest]:
    """The digests by which `publish` makes files known, by the ending of their names."""
    payloads = {"pte": file, **({"ptd": data} if data else {})}
    digests = {ending: payload_sha256(payload, store.local) for ending, payload in payloads.items()}
    return {**digests, "json": _without_run(provenance)}


def is_published(folder: Path, recipes: Mapping[str, Mapping[str, Digest]], known: KnownFiles) -> bool:
    """Whether a folder has the files of recipes, as `published_digests` has them, and no others of these recipes."""
    try:
        names = os.listdir(folder)  # noqa: PTH208 - as above
    except OSError:
        return False
    for recipe, files in recipes.items():
        there = {name for name in names if name.startswith(f"{recipe}.")}
        if there != {f"{recipe}.{ending}" for ending in files}:
            return False
        if not all(known.knows(f"{folder}/{recipe}.{ending}", digest) for ending, digest in files.items()):
            return False
    return True


def keep_rejected(
    store: Store, file: ArtifactRef, data: ArtifactRef | None, folder: Path, recipe: str, known: KnownFiles
) -> Path:
    """Writes a rejected file as ``<recipe>.rejected.pte``, with its `.ptd`; returns the path. Raises as `publish`."""
    path = folder / f"{recipe}.rejected.pte"
    with _write_errors(path):
        _write_files(store, file, data, path, known)
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


def _write_files(store: Store, file: ArtifactRef, data: ArtifactRef | None, path: Path, known: KnownFiles) -> None:
    """Writes a `.pte` and its `.ptd`. Without one, an earlier `.ptd` is removed: it would be taken for this file's."""
    sibling = path.with_suffix(".ptd")
    if data:
        _write_payload(store, data, sibling, known)
    else:
        sibling.unlink(missing_ok=True)
    _write_payload(store, file, path, known)


def _write_payload(store: Store, payload: ArtifactRef, path: Path, known: KnownFiles) -> None:
    store.fetch(payload)
    if known.sha256(path) != payload_sha256(payload, store.local):
        write_payload(payload, store.local, path)


def _write_provenance(path: Path, provenance: Mapping[str, Any]) -> None:
    try:
        written = json.loads(path.read_bytes())
    except (OSError, ValueError):
        written = None
    if not (isinstance(written, dict) and "run" in written and written | {"run": provenance["run"]} == provenance):
        _write_json(path, provenance)


def _without_run(provenance: Mapping[str, Any]) -> Digest:
    """Digest of provenance without the run that wrote it, which does not decide whether it is written again."""
    return digest_json({name: value for name, value in provenance.items() if name != "run"})


def _write_json(path: Path, value: Any) -> None:
    content = (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()
    if not (path.is_file() and path.read_bytes() == content):
        replace_file(path, content, path.parent)


def _read_json(store: Store, ref: ArtifactRef) -> Any:
    store.fetch(ref)
    return json.loads(store.local.read_artifact(ref))
