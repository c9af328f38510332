"""Where payloads are rebuilt for as long as something maps them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from ..errors import PteforgeError


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A temporary folder, removed at the end; what is mapped from it stays.

    Raises:
        PteforgeError: it cannot be made, or what is written to it inside the context does not fit.
    """
    try:
        with TemporaryDirectory(prefix="pteforge-") as folder:
            yield Path(folder)
    except OSError as error:
        raise PteforgeError(
            f"a payload cannot be rebuilt in a temporary folder: {error}; $TMPDIR names another place"
        ) from error
