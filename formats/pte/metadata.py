"""Metadata in `.pte` files: named data whose keys begin with ``metadata.``, as ExecuTorch's exporter writes it.

The format is that of extension/llm/export/metadata.py in ExecuTorch, which reads and writes it in Python, and of its
counterpart in C++: a byte that says the type, then the value. Lists of text and of floats have no type of their own
there; they are stored as text, in JSON.

| byte | type |
|---|---|
| 1 | integer: 8 bytes, signed, little-endian |
| 2 | float: 8 bytes, little-endian |
| 3 | text: UTF-8, to the end |
| 4 | list of integers: their number in 4 bytes, then 8 bytes each, little-endian |
| 5 | bytes, to the end |
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...errors import FileFormatError
from .contents import METADATA_PREFIX, PteFile
from .reader import map_file, naming, read_pte

MetadataValue = str | int | float | bytes | tuple[int, ...] | tuple[float, ...] | tuple[str, ...]

_INT, _FLOAT, _TEXT, _INTS, _BYTES = range(1, 6)
_JSON = frozenset({"output.labels", "image.mean", "image.std"})
"""Keys of lists that are stored as JSON."""


def encode_value(value: MetadataValue) -> bytes:
    """The bytes of a value. Raises ValueError if an integer has more than 64 bits, or a type is none of the format."""
    match value:
        case bool():
            raise ValueError("booleans are not part of the format; use 0 or 1")
        case str():
            return bytes([_TEXT]) + value.encode()
        case float():
            return bytes([_FLOAT]) + struct.pack("<d", value)
        case bytes():
            return bytes([_BYTES]) + value
        case int():
            return bytes([_INT]) + _integers(value)
        case tuple() if all(type(item) is int for item in value):
            return bytes([_INTS]) + struct.pack("<I", len(value)) + _integers(*value)
        case tuple():
            return encode_value(json.dumps(value, ensure_ascii=False))
    raise ValueError(f"{type(value).__name__} is not part of the format")


def _integers(*values: int) -> bytes:
    try:
        return struct.pack(f"<{len(values)}q", *values)
    except struct.error:
        raise ValueError("an integer has more than 64 bits") from None


def decode_value(key: str, content: bytes) -> MetadataValue:
    """The value under a key, without its prefix. Raises FileFormatError if it is damaged or of an unknown type."""
    kind, rest = content[:1], content[1:]
    if (decode := _DECODERS.get(int.from_bytes(kind, "little"))) is None:
        raise FileFormatError(f"damaged metadata {key!r}: its type {kind.hex() or 'is missing'} is unknown")
    try:
        value = decode(rest)
        return _listed(json.loads(str(value))) if key in _JSON else value
    except (ValueError, struct.error, RecursionError) as error:
        raise FileFormatError(f"damaged metadata {key!r}: {error}") from error


def _decode_ints(content: bytes) -> tuple[int, ...]:
    (count,) = struct.unpack_from("<I", content)
    if len(content) != 4 + 8 * count:
        raise ValueError(f"{count} integers are announced, in {len(content)} bytes")
    return struct.unpack_from(f"<{count}q", content, 4)


_DECODERS: Mapping[int, Callable[[bytes], MetadataValue]] = {
    _INT: lambda content: int(struct.unpack("<q", content)[0]),
    _FLOAT: lambda content: float(struct.unpack("<d", content)[0]),
    _TEXT: lambda content: content.decode(),
    _INTS: _decode_ints,
    _BYTES: lambda content: content,
}


def _listed(value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str | int | float) for item in value):
        raise ValueError("not a list of text or numbers")
    return tuple(value)


def metadata_of(pte: PteFile, content: memoryview) -> dict[str, MetadataValue]:
    """The metadata of a `.pte` file by key without prefix, in the file's order. Raises FileFormatError."""
    metadata = {}
    for named in pte.metadata:
        key = named.key.removeprefix(METADATA_PREFIX)
        metadata[key] = decode_value(key, bytes(pte.segments[named.segment].of(content)))
    return metadata


def read_metadata(path: Path, pte: PteFile | None = None) -> dict[str, MetadataValue]:
    """The metadata of the file at `path`, plain or fat, as `metadata_of` returns it; empty if it has none.

    `pte` is what `open_pte` has read from it, if it has. Raises InputError if the file cannot be read or is damaged.
    """
    view = map_file(path)
    with naming(path):
        return metadata_of(pte or read_pte(view), view)


_OMITTED = ("general", "output")  # namespaces that the names of constant methods leave out


def constant_method(key: str) -> str:
    """The name of the constant method that returns an entry: ``get_labels`` for ``output.labels``."""
    namespace, _, name = key.partition(".")
    return "get_" + (name if namespace in _OMITTED else key).replace(".", "_")


def returning_methods(pte: PteFile, metadata: Mapping[str, MetadataValue]) -> frozenset[str]:
    """Names of the constant methods of a file that return its metadata."""
    values = {constant_method(key): value if isinstance(value, tuple) else (value,) for key, value in metadata.items()}
    constant = [method for method in pte.methods if method.constant]
    returned = {method.name: tuple(getattr(output, "value", None) for output in method.outputs) for method in constant}
    return frozenset(name for name, outputs in returned.items() if name in values and outputs == values[name])


def metadata_json(metadata: Mapping[str, MetadataValue]) -> dict[str, Any]:
    """The same as JSON values: bytes are in hexadecimal, infinities and not-a-number are text."""
    return {key: json_value(value) for key, value in metadata.items()}


def json_value(value: MetadataValue | None) -> Any:
    match value:
        case bytes():
            return value.hex()
        case tuple():
            return [json_value(item) for item in value]
        case float() if not math.isfinite(value):
            return str(value)
    return value
