"""What every file must hold before anyone relies on it."""

from __future__ import annotations

from collections.abc import Collection

from ...artifacts.pte.contents import PteFile
from ...errors import PteforgeError


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
