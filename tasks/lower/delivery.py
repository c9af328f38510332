"""Delivered files: writing them out for stages that read them, and checking what they hold."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from ...artifacts.ref import ArtifactRef
from ...errors import PteforgeError
from ...formats.pte.contents import PteFile
from ..codecs.payload import write_payload
from ..engine.stage import Workspace


def write_delivered(file: ArtifactRef, data: ArtifactRef | None, work: Workspace) -> tuple[Path, tuple[Path, ...]]:
    """Writes a file and its weights, if it has any of its own, to the scratch folder; returns `.pte` and `.ptd`s."""
    path, data_path = work.scratch / "model.pte", work.scratch / "model.ptd"
    write_payload(file, work.store, path)
    if data is None:
        return path, ()
    write_payload(data, work.store, data_path)
    return path, (data_path,)


def check_file(pte: PteFile, *, methods: Collection[str], backends: Collection[str], what: str) -> None:
    """Checks a file that ExecuTorch emitted.

    Raises:
        PteforgeError: it lacks a method, or needs a backend that its target does not name.
    """
    found = {method.name for method in pte.methods}
    if missing := set(methods) - found:
        raise PteforgeError(f"{what} lacks the methods {sorted(missing)}; it has {sorted(found)}")
    if unexpected := set(pte.backends) - set(backends):
        raise PteforgeError(
            f"{what} needs the backends {sorted(unexpected)}, which its target does not name; "
            "the target's `backends` must list them"
        )
