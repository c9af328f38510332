"""`.ptd` files: weights that a `.pte` keeps outside, and which of them it looks for."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path

from ...errors import FileFormatError, InputError
from .contents import Extent, PteFile
from .ptd_generated import IDENTIFIER, DataSegment, FlatTensor, NamedData
from .reader import map_file, naming
from .tables import U32, U64, Flatbuffer, pick

_HEADER = struct.Struct("<4sIQQQQ")
_HEADER_AT = 8
_MAGIC = b"FH01"


def ptd_named_data(content: memoryview) -> dict[str, memoryview]:
    """Views of a `.ptd`'s named data; raises FileFormatError if it is damaged or no `.ptd`."""
    return {key: extent.of(content) for key, extent in ptd_extents(content)}


def ptd_extents(content: memoryview) -> Iterator[tuple[str, Extent]]:
    """Keys of a `.ptd`'s named data and their extents in the file; raises FileFormatError as `ptd_named_data` does."""
    if len(content) < _HEADER_AT + _HEADER.size or bytes(content[4:8]) != IDENTIFIER:
        raise FileFormatError(f"not a .ptd file of a known version: bytes 4 to 8 should be {IDENTIFIER!r}")
    magic, _, header_size, table_size, base, size = _HEADER.unpack_from(content, _HEADER_AT)
    if magic != _MAGIC or header_size + table_size > len(content) or base + size > len(content):
        raise FileFormatError("the .ptd file is damaged or cut short")
    # The header is inside the flatbuffer, whose offsets count from the start of the file.
    root = Flatbuffer(content[: header_size + table_size]).root()
    segments = []
    for node in root.children(FlatTensor.SEGMENTS):
        start, length = node.number(DataSegment.OFFSET, U64), node.number(DataSegment.SIZE, U64)
        if start + length > size:
            raise FileFormatError(f"damaged .ptd file: a segment has {length} bytes at {start}, all have {size}")
        segments.append(Extent(base + start, length))
    for node in root.children(FlatTensor.NAMED_DATA):
        yield node.text(NamedData.KEY), pick(segments, node.number(NamedData.SEGMENT_INDEX, U32), "segment")


_MAX_LISTED = 3
_DIGEST_KEYS = {"XnnpackBackend", "VulkanBackend"}
"""Backends that name weights by their SHA-256, in clear text in the delegate (executorch 1.5.1): XNNPACK in
backends/xnnpack/operators/node_visitor.py, Vulkan in backends/vulkan/serialization/vulkan_graph_builder.py."""
_KEY = re.compile(rb"(?:scale_)?[0-9a-f]{64}")


def check_external_weights(file: Path, pte: PteFile, data: Path | None) -> None:
    """Raises InputError unless `data` has the weights that a file keeps outside, as far as the file names them.

    XNNPACK in executorch 1.5.1 crashes if a program has no named data at all and a delegate looks for some.
    """
    wanted = external_weights(file, pte)
    if data is None:
        if wanted:
            names = ", ".join(map(repr, sorted(wanted)[:_MAX_LISTED])) + (", ..." if len(wanted) > _MAX_LISTED else "")
            raise InputError(
                f"{file} keeps {len(wanted)} weights in a .ptd file ({names}), and there is none: put it next to the "
                f"file, as {file.with_suffix('.ptd').name}, or name it"
            )
        return
    with naming(data):
        sizes = {key: extent.size for key, extent in ptd_extents(map_file(data))}
    for name, size in wanted.items():
        if name not in sizes:
            raise InputError(f"{data} does not belong to {file}: it has no {name!r}")
        if size not in (None, sizes[name]):
            raise InputError(f"{data} does not belong to {file}: its {name!r} has {sizes[name]} bytes, and not {size}")


def external_weights(file: Path, pte: PteFile) -> dict[str, int | None]:
    """The keys that a plain file looks up in a `.ptd`, with sizes if the file states them.

    Kernels look tensors up by name, XNNPACK and Vulkan by digest; the keys of other backends are unknown.
    """
    internal = {named.key for named in pte.named_data}
    tensors: dict[str, int | None] = {tensor.name: tensor.nbytes for tensor in pte.external}
    return tensors | {key: None for key in _delegates_keys(file, pte) if key not in internal}


def may_have_external_weights(file: Path, pte: PteFile) -> bool:
    """Whether a plain file's weights can be in a `.ptd`: it names some, or its backend may look some up."""
    return bool(external_weights(file, pte) or (set(pte.backends) - _DIGEST_KEYS and not pte.named_data))


def _delegates_keys(file: Path, pte: PteFile) -> Iterator[str]:
    delegates = (delegate for method in pte.methods for delegate in method.delegates)
    extents = {delegate.extent for delegate in delegates if delegate.id in _DIGEST_KEYS}
    content = map_file(file) if extents else memoryview(b"")
    for extent in sorted(extents):
        yield from (key.decode() for key in _KEY.findall(extent.of(content)))
