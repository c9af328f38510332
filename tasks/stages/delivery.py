"""The files that are delivered: written for stages that read them, and what each must hold."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from ...artifacts.pte.contents import PteFile
from ...artifacts.pte.pieces import write_payload
from ...artifacts.ref import ArtifactRef
from ...errors import PteforgeError
from ..stage import Workspace


def write_delivered(inputs: Mapping[str, ArtifactRef], work: Workspace) -> tuple[Path, tuple[Path, ...]]:
    """Writes `file` and, where there is one, `data` to the scratch folder; gives the `.pte` and its `.ptd` files."""
    path, data = work.scratch / "model.pte", work.scratch / "model.ptd"
    write_payload(inputs["file"], work.store, path)
    if "data" not in inputs:
        return path, ()
    write_payload(inputs["data"], work.store, data)
    return path, (data,)


def check_file(pte: PteFile, *, methods: Collection[str], backends: Collection[str], what: str) -> None:
    """Checks a file that ExecuTorch emitted.

    Args:
        pte: what the file holds.
        methods: what it must have.
        backends: the runtime backends that it may need.
        what: what the file is, for messages.

    Raises:
        PteforgeError: it lacks a method, or needs a backend that its target does not name.
    """
    found = {method.name for method in pte.methods}
    if missing := set(methods) - found:
        raise PteforgeError(f"{what} lacks the methods {sorted(missing)}; it has {sorted(found)}")
    if strangers := set(pte.backends) - set(backends):
        raise PteforgeError(
            f"{what} needs the backends {sorted(strangers)}, which its target does not name; "
            "the target's `backends` must list them"
        )
