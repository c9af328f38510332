"""Containers with the blobs that they point into, and the fat `.pte` files that hold them.

Both versions are read, payloads rebuilt, and version 2 is written. A fat file is a program that delegates its methods
to a container, with the container's blobs as named data.
"""

from __future__ import annotations

import hashlib
import mmap
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...artifacts.digest import Digest, digest_bytes
from ...artifacts.files import new_file
from ...errors import FileFormatError, InputError
from ..pte.contents import Method, PteFile
from ..pte.ptd import ptd_named_data
from ..pte.reader import map_file, naming, read_pte
from . import contents
from .golden import GoldenCheck
from .limits import check_manifest
from .manifest import read_manifest, write_manifest

Buffer = bytes | bytearray | memoryview | mmap.mmap

MAGIC = b"NFAT"
V1 = 1  # the layout that upstream proposes: a table and whole payloads
VERSION = 2
MAX_INLINE = (1 << 32) - 1

_START = struct.Struct("<4sIII")
_MAGIC_AND_VERSION = struct.Struct("<4sI")
_CHUNK = 1 << 20
_ZEROS = memoryview(bytes(_CHUNK))


def read_container(content: Buffer, blobs: Mapping[Digest, Buffer] | None = None) -> Container:
    """Reads a container of version 1 or 2; looks blobs up by key, and only when a payload needs them.

    Keeps the content, which has to be exactly one container. Raises FileFormatError for other or damaged content.
    """
    view = memoryview(content).cast("B")
    if len(view) < _MAGIC_AND_VERSION.size or view[: len(MAGIC)] != MAGIC:
        raise FileFormatError(f"not an NFAT container: it starts with {bytes(view[: len(MAGIC)])!r}")
    _, version = _MAGIC_AND_VERSION.unpack_from(view)
    if version == V1:
        manifest, inline = _read_v1(view)
    elif version == VERSION:
        manifest, inline = read_v2(view)
    else:
        raise FileFormatError(f"an NFAT container of version {version}; this pteforge reads {V1} and {VERSION}")
    return Container(version, manifest, inline, blobs or {})


@dataclass(frozen=True)
class Container:
    """A container that was read. In version 1, `inline` is the data section."""

    version: int
    manifest: contents.Manifest
    inline: memoryview
    named_data: Mapping[Digest, Buffer]

    @property
    def payloads(self) -> tuple[contents.Payload, ...]:
        """The payloads by preference, best first."""
        return self.manifest.payloads

    def payload(self, name: str) -> contents.Payload:
        for payload in self.payloads:
            if payload.name == name:
                return payload
        names = ", ".join(payload.name for payload in self.payloads)
        raise FileFormatError(f"there is no payload {name}; there are: {names}")

    def golden_check(self, payload: contents.Payload) -> GoldenCheck | None:
        """How a payload checks itself, if it does; raises FileFormatError as `chunks`."""
        if payload.self_check is None:
            return None
        blob = self.manifest.blobs[payload.self_check.blob]
        content = self._blob(blob, payload)
        if digest_bytes(content) != blob.digest:
            raise FileFormatError(f"payload {payload.name} is damaged: the blob {blob.digest} has other bytes")
        return GoldenCheck(content, payload.self_check.tolerance, payload.self_check.repeats)

    def write(self, payload: contents.Payload, destination: Path) -> None:
        """Writes a payload to a file atomically; FileFormatError leaves `destination` unchanged."""
        with new_file(destination) as file:
            file.writelines(self.verified(payload))

    def verify(self, payload: contents.Payload) -> None:
        for _ in self.verified(payload):
            pass

    def chunks(self, payload: contents.Payload) -> Iterator[memoryview]:
        """A payload's bytes in order, not verified as a whole. All blobs are looked up first.

        Raises FileFormatError for missing blobs, blobs of another size, unknown extensions and damaged descriptions.
        """
        if payload.unknown_features:
            raise FileFormatError(
                f"payload {payload.name} needs extensions that this pteforge does not know "
                f"({payload.unknown_features:#x})"
            )
        expected, sha256 = payload.parts_sha256, payload.sha256
        if expected and sha256:
            blobs = self.manifest.blobs
            actual = contents.parts_digest(
                payload.size, sha256, payload.extents, self.inline, blobs, payload.transposes
            )
            if actual != expected:
                raise FileFormatError(f"payload {payload.name} is damaged: its parts do not have SHA-256 {expected}")
        mapped = {index: self._blob(self.manifest.blobs[index], payload) for index in payload.blobs}
        return self._chunks(payload, mapped)

    def _chunks(self, payload: contents.Payload, blobs: Mapping[int, memoryview]) -> Iterator[memoryview]:
        from .conversions import halved, transposed  # noqa: PLC0415 - numpy

        transposes = {transpose.extent: transpose for transpose in payload.transposes}
        for index, extent in enumerate(payload.extents):
            if extent.source is contents.Source.ZEROS:
                for start in range(0, extent.size, _CHUNK):
                    yield _ZEROS[: extent.size - start]
            else:
                source = self.inline if extent.source is contents.Source.INLINE else blobs[extent.blob]
                stored, transpose = extent.stored.of(source), transposes.get(index)
                if extent.half:
                    pieces: Iterable[bytes | memoryview] = halved(stored)
                else:
                    pieces = transposed(stored, transpose.shape) if transpose else [stored]
                yield from (memoryview(piece) for piece in pieces)

    def verified(self, payload: contents.Payload) -> Iterator[memoryview]:
        """Yields the same as `chunks`; raises FileFormatError after the last one if the SHA-256 is wrong."""
        sha256 = hashlib.sha256()
        for chunk in self.chunks(payload):
            sha256.update(chunk)
            yield chunk
        if payload.sha256 not in (None, sha256.hexdigest()):
            raise self._damaged(payload)

    def _blob(self, blob: contents.Blob, payload: contents.Payload) -> memoryview:
        content = self.named_data.get(blob.digest)
        if content is None:
            raise FileFormatError(
                f"payload {payload.name} needs the blob {blob.digest}, which is not in the file's named data; "
                "is it in a .ptd file that was not given?"
            )
        view = memoryview(content).cast("B")
        if len(view) != blob.size:
            raise FileFormatError(
                f"payload {payload.name} needs the blob {blob.digest} of {blob.size} bytes; it has {len(view)}"
            )
        return view

    def _damaged(self, payload: contents.Payload) -> FileFormatError:
        for index in payload.blobs:
            blob = self.manifest.blobs[index]
            if digest_bytes(self._blob(blob, payload)) != blob.digest:
                return FileFormatError(f"payload {payload.name} is damaged: the blob {blob.digest} has other bytes")
        return FileFormatError(f"payload {payload.name} is damaged: its bytes do not have SHA-256 {payload.sha256}")


def write_v2(manifest: contents.Manifest, inline: bytes | bytearray) -> bytes:
    check_manifest(manifest, len(inline))
    container = assemble(write_manifest(manifest), inline)
    read_v2(memoryview(container))  # the written sizes have limits, too
    return container


def assemble(table: bytes, inline: bytes | bytearray) -> bytes:
    """A container of a manifest's bytes, which are not checked, and an inline section."""
    if len(inline) > MAX_INLINE:
        raise FileFormatError(f"an inline section of {len(inline)} bytes; {MAX_INLINE} are possible")
    padding = bytes(-(_START.size + len(table)) % contents.BYTE_ALIGNMENT)
    return b"".join([_START.pack(MAGIC, VERSION, len(table), len(inline)), table, padding, inline])


def read_v2(content: memoryview) -> tuple[contents.Manifest, memoryview]:
    """The manifest of a version 2 container, and its inline section; raises FileFormatError if it is damaged."""
    if len(content) < _START.size:
        raise FileFormatError(f"the container is cut short: {len(content)} bytes, its start has {_START.size}")
    _, _, manifest_size, inline_size = _START.unpack_from(content)
    manifest_end = _START.size + manifest_size
    inline_start = manifest_end + -manifest_end % contents.BYTE_ALIGNMENT
    if inline_start + inline_size != len(content):
        raise FileFormatError(f"the container has {len(content)} bytes and says {inline_start + inline_size}")
    if any(content[manifest_end:inline_start]):
        raise FileFormatError("the bytes between the manifest and the inline section are not zero")
    manifest = read_manifest(content[_START.size : manifest_end])
    check_manifest(manifest, inline_size)
    return manifest, content[inline_start:]


NO_BACKEND = "portable"  # id of entries of version 1 that need no backend

_V1_START = struct.Struct("<4sII")
_ENTRY = struct.Struct("<32sQQ")
_ID_SIZE = 32
_MAX_ENTRIES = 64
_MAX_GAP = 4095


def pack_v1(entries: Sequence[tuple[str, Buffer]]) -> bytes:
    """A container of version 1 from backend ids and payloads, by preference; raises InputError for an invalid id."""
    if len(entries) > _MAX_ENTRIES:
        raise InputError(f"{len(entries)} payloads; an NFAT container takes {_MAX_ENTRIES}")
    chunks: list[Buffer] = [_V1_START.pack(MAGIC, V1, len(entries))]
    offset = 0
    for backend_id, content in entries:
        size = memoryview(content).nbytes
        chunks.append(_ENTRY.pack(_encode_id(backend_id), offset, size))
        offset += size
    return b"".join([*chunks, *(content for _, content in entries)])


def _read_v1(content: memoryview) -> tuple[contents.Manifest, memoryview]:
    """The manifest of a version 1 container, and its data section, where offsets of extents begin."""
    if len(content) < _V1_START.size:
        raise FileFormatError(f"the container is cut short: {len(content)} bytes, its start has {_V1_START.size}")
    _, _, count = _V1_START.unpack_from(content)
    if count > _MAX_ENTRIES:
        raise FileFormatError(f"{count} payloads; {_MAX_ENTRIES} are possible")
    table_end = _V1_START.size + count * _ENTRY.size
    if table_end > len(content):
        raise FileFormatError(f"the container is cut short: {len(content)} bytes, its table ends at {table_end}")
    section = content[table_end:]
    payloads = tuple(_payloads(content[_V1_START.size : table_end], section))
    return contents.Manifest(payloads, alignment=contents.BYTE_ALIGNMENT), section


def _payloads(table: memoryview, section: memoryview) -> Iterator[contents.Payload]:
    end = 0
    for raw_id, offset, size in _ENTRY.iter_unpack(table):
        used = raw_id.rstrip(b"\0")
        if not used or not all(ord(" ") < byte <= ord("~") for byte in used):
            raise FileFormatError(f"{raw_id!r} is not a backend id padded with NULs")
        backend_id = used.decode("ascii")
        if offset < end:
            raise FileFormatError(f"payload {backend_id} at {offset} overlaps what ends at {end}")
        if offset + size > len(section):
            raise FileFormatError(
                f"the container is cut short: payload {backend_id} has {size} bytes at {offset}, "
                f"the data section {len(section)}"
            )
        _check_gap(section, end, offset)
        end = offset + size
        backends = () if backend_id == NO_BACKEND else (backend_id,)
        extents = (contents.MappedExtent(0, size, contents.Source.INLINE, offset),) if size else ()
        yield contents.Payload(contents.Description(backend_id, backends), size, None, extents)
    _check_gap(section, end, len(section))


def _check_gap(section: memoryview, start: int, end: int) -> None:
    if end - start > _MAX_GAP or any(section[start:end]):
        raise FileFormatError(f"the {end - start} bytes at {start} of the data section belong to no payload")


def _encode_id(backend_id: str) -> bytes:
    if not 1 <= len(backend_id) <= _ID_SIZE or not all(" " < letter <= "~" for letter in backend_id):
        raise InputError(
            f"{backend_id!r} cannot be a backend id in NFAT version 1: "
            f"1 to {_ID_SIZE} printable ASCII characters without blanks can"
        )
    return backend_id.encode("ascii")


_PROGRAM_LIMIT = 16 << 20  # bytes of a payload that are read for its program


@dataclass(frozen=True, slots=True)
class FatFile:
    """A fat `.pte`, and the container of its payloads with their blobs."""

    program: PteFile
    container: Container


def open_fat(path: Path, data_files: Sequence[Path] = ()) -> FatFile:
    """Opens a fat file, mapped, with the named data of `.ptd` files; raises InputError if that is not possible."""
    view = map_file(path)
    with naming(path):
        program = read_pte(view)
        named = pte_named_data(view, program)
    for data_file in data_files:
        with naming(data_file):
            named |= ptd_named_data(map_file(data_file))
    with naming(path):
        blobs = {Digest(key): content for key, content in named.items()}
        return FatFile(program, read_container(_container_of(view, program), blobs))


def payload_program(container: Container, payload: contents.Payload) -> PteFile:
    """What a payload contains, read without its weights: see `payload_start`."""
    return read_pte(payload_start(container, payload))


def payload_start(container: Container, payload: contents.Payload) -> mmap.mmap:
    """A payload without its weights: only its start is copied. Raises FileFormatError if it is visibly damaged."""
    # Zero pages take no memory. Private ones count as the process's own.
    content = mmap.mmap(-1, max(payload.size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    position = 0
    for chunk in container.chunks(payload):
        if position > _PROGRAM_LIMIT:
            break
        end = min(position + len(chunk), max(position, _PROGRAM_LIMIT))
        content[position:end] = chunk[: end - position]
        position += len(chunk)
    return content


def pte_named_data(content: memoryview, pte: PteFile) -> dict[str, memoryview]:
    return {named.key: pte.segments[named.segment].of(content) for named in pte.named_data}


def is_fat(pte: PteFile) -> bool:
    """Whether a `.pte` delegates whole methods to `NfatBackend`, all of them to one container.

    A file whose containers are for parts of methods is a plain file that needs a backend.
    """
    methods = _delegating(pte)
    extents = {delegate.extent for method in methods for delegate in method.delegates}
    return len(extents) == 1 and all(method.delegated for method in methods)


def _container_of(view: memoryview, program: PteFile) -> memoryview:
    methods = _delegating(program)
    if not methods:
        raise FileFormatError(
            f"not a fat .pte: no method is delegated to {contents.BACKEND_ID}; it needs {program.backends}"
        )
    if partial := [method.name for method in methods if not method.delegated]:
        raise FileFormatError(
            f"not a fat .pte: only parts of the methods {partial} are delegated to {contents.BACKEND_ID}; "
            "the C++ library runs it"
        )
    extents = {delegate.extent for method in methods for delegate in method.delegates}
    containers = [extent.of(view) for extent in sorted(extents)]
    if any(bytes(container) != bytes(containers[0]) for container in containers[1:]):
        raise FileFormatError("methods of the fat .pte have different containers")
    return containers[0]


def _delegating(pte: PteFile) -> list[Method]:
    return [
        method for method in pte.methods if any(delegate.id == contents.BACKEND_ID for delegate in method.delegates)
    ]
