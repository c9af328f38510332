"""Fat files as commands take them: with the data that they keep outside, and their payloads by name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from ...artifacts.nfat.container import Container
from ...artifacts.nfat.contents import Payload
from ...artifacts.nfat.data_file import may_keep_outside
from ...artifacts.nfat.fat_file import FatFile, is_fat, open_fat
from ...artifacts.nfat.named_data import map_file
from ...artifacts.pte.reader import open_pte
from ...errors import FileFormatError
from ...runtime.selection import check_names


def data_files(file: Path, named: Sequence[Path] | None) -> tuple[Path, ...]:
    """The `.ptd` files to read with a file: those that were named, or else the one that lies beside it."""
    if named:
        return tuple(named)
    beside = file.with_suffix(".ptd")
    if not beside.is_file():
        return ()
    pte = open_pte(file)
    return (beside,) if is_fat(pte) or may_keep_outside(file, pte) else ()


def open_fat_file(file: Path, named: Sequence[Path] | None) -> FatFile:
    """A fat file with its data.

    Raises:
        InputError: a file cannot be read; as FileFormatError where one is damaged or `file` is not fat.
    """
    return open_fat(file, data_files(file, named))


def split_names(options: Iterable[str] | None) -> tuple[str, ...]:
    """The names in options such as ``--keep xnnpack,portable``, each once."""
    names = (name.strip() for option in options or () for name in option.split(","))
    return tuple(dict.fromkeys(name for name in names if name))


def named_payloads(file: Path, container: Container, names: Sequence[str]) -> tuple[Payload, ...]:
    """The payloads of these names, by priority; raises InputError, naming those there are, where one is missing."""
    check_names(file, container, names)
    return tuple(payload for payload in container.payloads if payload.name in names)


def write_payload(file: Path, container: Container, payload: Payload, path: Path) -> None:
    """Writes a payload of a fat file; what was at `path` is replaced when the new file is whole.

    Raises:
        FileFormatError: its bytes are damaged, or not all of them are there.
        OSError: it cannot be written.
    """
    try:
        container.write(payload, path)
    except FileFormatError as error:
        raise FileFormatError(f"{file}: {error}") from error


def map_payload(file: Path, container: Container, payload: Payload, path: Path) -> memoryview:
    """A payload's bytes, mapped from a file that is made for it; raises FileFormatError as `write_payload` does."""
    if payload.size == 0:  # what cannot be mapped
        return memoryview(b"")
    write_payload(file, container, payload, path)
    return map_file(path)
