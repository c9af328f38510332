"""Fat `.pte` files: an outer program whose delegate is a container, and whose named data are its blobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...errors import FileFormatError
from ..digest import Digest
from ..pte.contents import Method, PteFile
from ..pte.reader import read_pte
from .container import Container, read_container
from .contents import BACKEND_ID
from .named_data import map_file, ptd_named_data, pte_named_data

__all__ = ["BACKEND_ID", "FatFile", "is_fat", "open_fat"]


@dataclass(frozen=True, slots=True)
class FatFile:
    """A fat `.pte`.

    Attributes:
        outer: what its program says.
        container: the payloads, with their blobs.
    """

    outer: PteFile
    container: Container


def open_fat(path: Path, data_files: Sequence[Path] = ()) -> FatFile:
    """Opens a fat file; its bytes are mapped, and read where needed.

    Args:
        path: the `.pte`.
        data_files: `.ptd` files with further named data.

    Raises:
        InputError: a file cannot be read; as FileFormatError where one is damaged or `path` is not a fat file.
    """
    view = map_file(path)
    try:
        outer = read_pte(view)
        named = pte_named_data(view, outer)
    except FileFormatError as error:
        raise FileFormatError(f"{path}: {error}") from error
    for data_file in data_files:
        try:
            named |= ptd_named_data(map_file(data_file))
        except FileFormatError as error:
            raise FileFormatError(f"{data_file}: {error}") from error
    try:
        blobs = {Digest(key): content for key, content in named.items()}
        return FatFile(outer, read_container(_delegate(view, outer), blobs))
    except FileFormatError as error:
        raise FileFormatError(f"{path}: {error}") from error


def is_fat(pte: PteFile) -> bool:
    """Whether a `.pte` has one container for all that it delegates to `NfatBackend`: methods as wholes.

    Other files have containers for parts of methods; they are like other plain files, which need a backend.
    """
    methods = _delegating(pte)
    places = {(each.offset, each.size) for method in methods for each in method.delegates}
    return len(places) == 1 and all(method.delegated for method in methods)


def _delegate(view: memoryview, outer: PteFile) -> memoryview:
    """The container; all methods have the same."""
    methods = _delegating(outer)
    if not methods:
        raise FileFormatError(f"not a fat .pte: no method is delegated to {BACKEND_ID}; it needs {outer.backends}")
    if parts := [method.name for method in methods if not method.delegated]:
        raise FileFormatError(
            f"not a fat .pte: only parts of the methods {parts} are delegated to {BACKEND_ID}; the C++ library runs it"
        )
    places = {(delegate.offset, delegate.size) for method in methods for delegate in method.delegates}
    containers = [view[offset : offset + size] for offset, size in sorted(places)]
    if any(bytes(each) != bytes(containers[0]) for each in containers[1:]):
        raise FileFormatError("methods of the fat .pte have different containers")
    return containers[0]


def _delegating(pte: PteFile) -> list[Method]:
    """The methods that have a container."""
    return [method for method in pte.methods if any(delegate.id == BACKEND_ID for delegate in method.delegates)]
