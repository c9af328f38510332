"""The `.ptd` beside a plain file: whether it is the one that was made with it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ...artifacts.digest import digest_file
from ...errors import InputError


def check_digest(file: Path, data: Path, sha256: str) -> None:
    """Checks a `.ptd` against the digest of the one that a file was made with.

    Raises:
        InputError: it is another one, or not there.
    """
    try:
        found = digest_file(data)
    except OSError as error:
        raise InputError(f"{data}, which has the weights of {file}, cannot be read: {error.strerror}") from error
    if found != sha256:
        raise InputError(
            f"{data} is not the one that was made with {file}: its SHA-256 is {found}, and should be {sha256}"
        )


def check_found(file: Path, found: Sequence[Path]) -> None:
    """Checks data that was found beside a file, and not named, where a provenance there speaks of that file.

    Kernels look weights up by name: another model's of the same sizes would fit.

    Raises:
        InputError: see `check_digest`.
    """
    try:
        written = json.loads(file.with_suffix(".json").read_text(encoding="utf-8"))
        known, wanted = written["file"]["sha256"], written["data"]["sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        return  # there is none, or it is of something else
    if found and digest_file(file) == known:
        check_digest(file, found[0], wanted)
