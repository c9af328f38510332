"""Fat `.pte` files: a program that delegates its methods to a container, with the container's blobs as named data."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...artifacts.digest import Digest
from ...errors import FileFormatError
from ..pte.contents import Method, PteFile
from ..pte.ptd import ptd_named_data
from ..pte.reader import map_file, naming, read_pte
from .container import Container, read_container
from .contents import BACKEND_ID, Payload

_PROGRAM_LIMIT = 16 << 20  # bytes of a payload that are read for its program


@dataclass(frozen=True, slots=True)
class FatFile:
    """A fat `.pte`, and the container of its payloads with their blobs."""

    program: PteFile
    container: Container


def open_fat(path: Path, data_files: Sequence[Path] = ()) -> FatFile:
    """Opens a fat file, with more named data from `.ptd` files; bytes are mapped, and read when needed.

    Raises InputError if a file cannot be read, as FileFormatError if one is damaged or `path` is not a fat file.
    """
    view = map_file(path)
    with naming(path):
        program = read_pte(view)
        named = pte_named_data(view, program)
    for data_file in data_files:
        with naming(data_file):
            named |= ptd_named_data(map_file(data_file))
    with naming(path):
        blobs = {Digest(key): content for key, content in named.items()}
        return FatFile(program, read_container(_container(view, program), blobs))


def payload_program(container: Container, payload: Payload) -> PteFile:
    """What a payload contains, read without its weights: only its start is copied, the rest is zero.

    Raises FileFormatError if it is damaged, as far as that shows.
    """
    content, position = mmap.mmap(-1, payload.size), 0  # zero pages take no memory
    for chunk in container.chunks(payload):
        if position > _PROGRAM_LIMIT:
            break
        end = min(position + len(chunk), max(position, _PROGRAM_LIMIT))
        content[position:end] = chunk[: end - position]
        position += len(chunk)
    return read_pte(content)


def pte_named_data(content: memoryview, pte: PteFile) -> dict[str, memoryview]:
    return {named.key: pte.segments[named.segment].of(content) for named in pte.named_data}


def is_fat(pte: PteFile) -> bool:
    """Whether a `.pte` delegates whole methods to `NfatBackend`, all of them to one container.

    A file whose containers are for parts of methods is a plain file that needs a backend.
    """
    methods = _delegating(pte)
    extents = {delegate.extent for method in methods for delegate in method.delegates}
    return len(extents) == 1 and all(method.delegated for method in methods)


def _container(view: memoryview, program: PteFile) -> memoryview:
    methods = _delegating(program)
    if not methods:
        raise FileFormatError(f"not a fat .pte: no method is delegated to {BACKEND_ID}; it needs {program.backends}")
    if partial := [method.name for method in methods if not method.delegated]:
        raise FileFormatError(
            f"not a fat .pte: only parts of the methods {partial} are delegated to {BACKEND_ID}; "
            "the C++ library runs it"
        )
    extents = {delegate.extent for method in methods for delegate in method.delegates}
    containers = [extent.of(view) for extent in sorted(extents)]
    if any(bytes(container) != bytes(containers[0]) for container in containers[1:]):
        raise FileFormatError("methods of the fat .pte have different containers")
    return containers[0]


def _delegating(pte: PteFile) -> list[Method]:
    return [method for method in pte.methods if any(delegate.id == BACKEND_ID for delegate in method.delegates)]
