"""What debugging a file takes, written beside it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..artifacts.digest import digest_file
from ..artifacts.ref import ArtifactRef
from ..artifacts.store import Store
from ..errors import StoreUnusable
from ..tasks.debug_plan import split_debug_role
from .publish import read_json, write_text

_RECORD = "etrecord"


def publish_debug_files(
    store: Store, refs: Mapping[str, ArtifactRef], folder: Path, recipe: str, payloads: Iterable[str]
) -> None:
    """Writes ``<recipe>.etrecord`` and ``<recipe>.debug.json``, for fat files ``<recipe>.<payload>.etrecord`` each.

    Those of an earlier run that are not written again are removed: an ETRecord does not tell which file it is of.

    Args:
        store: where the artifacts are.
        refs: by role, what `report` has read; roles that have nothing to do with debugging do not count.
        folder: where the `.pte` file is.
        recipe: name of the recipe.
        payloads: names that payloads of the recipe may have.

    Raises:
        StoreUnusable: the folder cannot be written.
    """
    maps: dict[str, dict[str, Any]] = {}
    written = set()
    try:
        for role, ref in refs.items():
            if (split := split_debug_role(role)) is None:
                continue
            name, payload = split
            if name != _RECORD:
                maps.setdefault(payload, {})[name] = read_json(store, ref)
                continue
            path = _record(folder, recipe, payload)
            if not (path.is_file() and digest_file(path) == ref.root.digest):
                store.fetch(ref)
                path.write_bytes(store.local.read_artifact(ref))
            written.add(path)
        beside = folder / f"{recipe}.debug.json"
        if maps:
            write_text(beside, json.dumps(maps.get("", maps), indent=2, sort_keys=True) + "\n")
            written.add(beside)
        for path in (beside, *(_record(folder, recipe, payload) for payload in ("", *payloads))):
            if path not in written:
                path.unlink(missing_ok=True)
    except OSError as error:
        raise StoreUnusable(f"cannot write beside {folder / recipe}.pte: {error.strerror or error}") from error


def _record(folder: Path, recipe: str, payload: str) -> Path:
    return folder / (f"{recipe}.{payload}.{_RECORD}" if payload else f"{recipe}.{_RECORD}")
