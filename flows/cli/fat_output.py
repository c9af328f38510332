"""Fat files as commands write them: whole or not at all."""

from __future__ import annotations

from pathlib import Path

from ...artifacts.nfat.container import Buffer
from ...artifacts.nfat.pack import PackedContainer
from ...errors import InputError
from .quiet import quiet


def check_output(path: Path) -> None:
    """Says before anything is done that a file cannot be written; raises InputError."""
    if path.is_dir() or not path.parent.is_dir():
        raise InputError(f"output cannot be written to {path}: name a file in a folder that is there")


def write_fat_file(packed: PackedContainer, signature: Buffer, path: Path, data_path: Path | None) -> None:
    """Writes a fat file.

    Args:
        packed: the container.
        signature: the payload whose methods it takes over.
        path: the file; one that is there is replaced when the new one is whole.
        data_path: a `.ptd` file for the weights; None to have them in the file.

    Raises:
        InputError: a file cannot be written.
    """
    with quiet():
        from ...tasks.stages.outer import write_fat  # noqa: PLC0415 - imports ExecuTorch

        try:
            write_fat(packed, memoryview(signature), path, data_path=data_path)
        except OSError as error:
            raise InputError(f"output cannot be written to {path}: {error.strerror or error}") from error


def written_size(path: Path, data_path: Path | None) -> int:
    """Bytes of what was written."""
    return path.stat().st_size + (data_path.stat().st_size if data_path else 0)
