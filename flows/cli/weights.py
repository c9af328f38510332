"""The `.pte` files that a command names, and their external weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...artifacts.digest import digest_file
from ...errors import InputError

if TYPE_CHECKING:
    from ...formats.nfat.container import FatFile


def pte_files(paths: Iterable[Path]) -> list[Path]:
    """The files named, and the `.pte` files of folders, sorted; raises InputError for a folder without one."""
    files: list[Path] = []
    for path in paths:
        found = sorted(path.rglob("*.pte")) if path.is_dir() else [path]
        inside = [file for file in found if file is path or not file.name.endswith(".rejected.pte")]
        if not inside:
            raise InputError(f"there is no .pte file in {path}")
        files += inside
    return list(dict.fromkeys(files))


def check_digest(file: Path, data: Path, sha256: str) -> None:
    """Checks that `data` is the `.ptd` that a file was made with; raises InputError if it is not, or is missing."""
    try:
        present = digest_file(data)
    except OSError as error:
        raise InputError(f"{data}, which has the weights of {file}, cannot be read: {error.strerror}") from error
    if present != sha256:
        raise InputError(f"{data} is not the one that was made with {file}: its SHA-256 is {present}, not {sha256}")


def check_found(file: Path, weights: Sequence[Path]) -> None:
    """Checks the `.ptd` next to a file against the file's provenance, if there is one; raises as `check_digest`.

    Kernels look weights up by name, and would accept those of another model with equal sizes.
    """
    from ...tasks.results.delivered import Delivered

    delivered = Delivered.next_to(file) if weights else None
    if delivered and "ptd" in delivered.digests:
        check_digest(file, weights[0], delivered.digests["ptd"])


def data_files(file: Path, named: Sequence[Path] | None) -> tuple[Path, ...]:
    """The `.ptd` files to read with a file: those named, or else the sibling file."""
    from ...formats.nfat.container import is_fat
    from ...formats.pte.ptd import may_have_external_weights
    from ...formats.pte.reader import open_pte

    if named:
        return tuple(named)
    sibling = file.with_suffix(".ptd")
    if not sibling.is_file():
        return ()
    pte = open_pte(file)
    return (sibling,) if is_fat(pte) or may_have_external_weights(file, pte) else ()


def open_fat_file(file: Path, named: Sequence[Path] | None) -> FatFile:
    """A fat file with its external weights; raises as `open_fat`."""
    from ...formats.nfat.container import open_fat

    return open_fat(file, data_files(file, named))
