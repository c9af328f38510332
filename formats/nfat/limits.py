"""The rules for manifests and their limits, as README.md specifies them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ...errors import FileFormatError
from . import contents

MAX_MANIFEST = 1 << 24
MAX_PAYLOADS = 64
MAX_BACKENDS = 64
MAX_METHODS = 1024
MAX_NOTES = 1024
MAX_SIZE = 1 << 48
MAX_ALIGNMENT = 1 << 16
MAX_NAME = 64
MAX_WORD = 255
MAX_METHOD = 1024
MAX_TEXT = 65535

MAX_ZEROS = 1 << 24  # total bytes of a payload's zero extents

MAX_REPEATS = 100
MAX_GOLDEN = 1 << 24  # bytes of a blob of golden cases
MIN_GOLDEN = 4

ITEM_SIZES = (1, 2, 4, 8, 16)  # possible sizes in bytes of items of transposed extents
MAX_EXPANSION = 4  # bytes of a payload, other than zeros, for each byte that is stored for it


def check_manifest(manifest: contents.Manifest, inline_size: int) -> None:
    """Raises FileFormatError, which names the payload and the rule, if a manifest breaks a rule of version 2."""
    _count("payloads", manifest.payloads, MAX_PAYLOADS, least=1)
    alignment = manifest.alignment
    if not contents.BYTE_ALIGNMENT <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise FileFormatError(f"an alignment of {alignment} is not a power of two from 16 to {MAX_ALIGNMENT}")
    for index, blob in enumerate(manifest.blobs):
        if not 1 <= blob.size <= MAX_SIZE:
            raise FileFormatError(f"blob {index} has {blob.size} bytes; 1 to {MAX_SIZE} are possible")
    _check_metadata("the container", manifest.metadata)
    names: set[str] = set()
    for payload in manifest.payloads:
        check_description(payload.description)
        if payload.name in names:
            raise FileFormatError(f"two payloads are called {payload.name!r}")
        names.add(payload.name)
        if not 1 <= payload.size <= MAX_SIZE:
            raise FileFormatError(f"payload {payload.name} has {payload.size} bytes; 1 to {MAX_SIZE} are possible")
        if payload.unknown_features == 0:
            _check_extents(payload, manifest.blobs, inline_size)
            _check_expansion(payload, manifest.blobs, inline_size)
            _check_transposes(payload)
            _check_halves(payload)
            if payload.self_check:
                _check_self_check(payload.name, payload.self_check, manifest.blobs)


def check_description(description: contents.Description) -> None:
    """Checks a payload's texts; raises FileFormatError naming the payload and the field."""
    name = description.name
    _check_word("a payload's name", name, MAX_NAME, least=1)
    _count(f"backends of payload {name}", description.backends, MAX_BACKENDS)
    for backend in description.backends:
        _check_word(f"a backend of payload {name}", backend, MAX_WORD, least=1)
    if list(description.backends) != sorted(set(description.backends)):
        raise FileFormatError(f"the backends of payload {name} are not sorted, or one is repeated")
    _count(f"methods of payload {name}", description.methods, MAX_METHODS)
    for method in description.methods:
        _check_text(f"a method of payload {name}", method, MAX_METHOD, least=1)
    _check_word(f"ExecuTorch version of payload {name}", description.executorch_version, MAX_WORD)
    _check_metadata(f"payload {name}", description.metadata)


def _check_metadata(owner: str, metadata: Mapping[str, str]) -> None:
    _count(f"metadata of {owner}", metadata, MAX_NOTES)
    for key, value in metadata.items():
        _check_text(f"a metadata key of {owner}", key, MAX_WORD, least=1)
        _check_text(f"metadata {key!r} of {owner}", value, MAX_TEXT)


def _check_extents(payload: contents.Payload, blobs: Sequence[contents.Blob], inline_size: int) -> None:
    extents = payload.extents
    if not extents:
        raise FileFormatError(f"payload {payload.name} has no extents")
    end = 0
    for extent in extents:
        if extent.position != end:
            raise FileFormatError(f"payload {payload.name} has an extent at {extent.position} where {end} comes next")
        if extent.size < 1:
            raise FileFormatError(
                f"payload {payload.name}: the extent at {extent.position} does not come before what follows it"
            )
        end += extent.size
    if end != payload.size:
        raise FileFormatError(f"payload {payload.name} has {payload.size} bytes, its extents {end}")
    for extent in extents:
        problem = _extent_problem(extent, blobs, inline_size)
        if problem:
            raise FileFormatError(f"payload {payload.name}: the extent at {extent.position} {problem}")


def _check_expansion(payload: contents.Payload, blobs: Sequence[contents.Blob], inline_size: int) -> None:
    """Keeps a small container from describing a payload that would fill the reader's memory or disk."""
    zeros = sum(extent.size for extent in payload.extents if extent.source is contents.Source.ZEROS)
    if zeros > MAX_ZEROS:
        raise FileFormatError(f"payload {payload.name} has {zeros} bytes of zeros; {MAX_ZEROS} are possible")
    most = MAX_EXPANSION * (inline_size + sum(blobs[index].size for index in payload.blobs))
    if payload.size - zeros > most:
        raise FileFormatError(
            f"payload {payload.name} has {payload.size - zeros} bytes; with what is stored for it, {most} are possible"
        )


def _check_transposes(payload: contents.Payload) -> None:
    if bool(payload.transposes) != bool(payload.features & contents.TRANSPOSED_EXTENTS):
        raise FileFormatError(
            f"payload {payload.name} has {len(payload.transposes)} transposes, and features {payload.features:#x}"
        )
    last = -1
    for transpose in payload.transposes:
        if not last < transpose.extent < len(payload.extents):
            raise FileFormatError(
                f"payload {payload.name} has a transpose of extent {transpose.extent} after that of extent {last}; "
                f"there are {len(payload.extents)}"
            )
        last = transpose.extent
        if problem := _transpose_problem(transpose.shape, payload.extents[last]):
            raise FileFormatError(f"payload {payload.name}: the transpose of extent {last} {problem}")


def _check_halves(payload: contents.Payload) -> None:
    halves = payload.halves
    if bool(halves) != bool(payload.features & contents.HALF_EXTENTS):
        raise FileFormatError(
            f"payload {payload.name} has {len(halves)} half extents, and features {payload.features:#x}"
        )
    transposed = {transpose.extent for transpose in payload.transposes}
    for index in halves:
        extent = payload.extents[index]
        zeros = extent.source is contents.Source.ZEROS
        if zeros or extent.size % 2 or index in transposed:
            what = "zeros" if zeros else "transposed" if index in transposed else "of an odd size"
            raise FileFormatError(f"payload {payload.name}: the half extent {index} is {what}")


def _check_self_check(name: str, check: contents.SelfCheck, blobs: Sequence[contents.Blob]) -> None:
    if not 0 < check.tolerance <= 1 or not 1 <= check.repeats <= MAX_REPEATS:
        raise FileFormatError(
            f"payload {name} checks itself {check.repeats} times with a tolerance of {check.tolerance}; "
            f"1 to {MAX_REPEATS} times and a tolerance above 0 and up to 1 are possible"
        )
    if check.blob >= len(blobs):
        raise FileFormatError(f"payload {name} has golden cases in blob {check.blob}; there are {len(blobs)}")
    check_golden_size(blobs[check.blob].size, f"payload {name}")


def check_golden_size(size: int, owner: str) -> None:
    """Raises FileFormatError, naming the `owner` of golden cases, if these have too few or too many bytes."""
    if not MIN_GOLDEN <= size <= MAX_GOLDEN:
        raise FileFormatError(f"{owner} has {size} bytes of golden cases; {MIN_GOLDEN} to {MAX_GOLDEN} are possible")


def _transpose_problem(shape: contents.MatrixShape, extent: contents.MappedExtent) -> str:
    if extent.source is contents.Source.ZEROS:
        return "is of zeros"
    if shape.item not in ITEM_SIZES:
        return f"has items of {shape.item} bytes; {ITEM_SIZES} are possible"
    if shape.rows < 2 or shape.columns < 2:
        return f"has {shape.rows} rows and {shape.columns} columns; 2 or more are possible"
    if extent.size % (shape.item * shape.rows * shape.columns):
        return (
            f"has {shape.rows} x {shape.columns} items of {shape.item} bytes, of which the extent's "
            f"{extent.size} bytes are no multiple"
        )
    return ""


def _extent_problem(extent: contents.MappedExtent, blobs: Sequence[contents.Blob], inline_size: int) -> str:
    if extent.source is not contents.Source.BLOB and extent.blob:
        return f"names blob {extent.blob} and is not of a blob"
    if extent.source is contents.Source.ZEROS:
        return f"is of zeros and names the offset {extent.offset}" if extent.offset else ""
    if extent.source is contents.Source.BLOB and extent.blob >= len(blobs):
        return f"is of blob {extent.blob}; there are {len(blobs)}"
    available = blobs[extent.blob].size if extent.source is contents.Source.BLOB else inline_size
    if extent.stored.end > available:
        return f"needs {extent.stored.size} bytes at {extent.offset}; its source has {available}"
    misaligned = (extent.offset - extent.position) % contents.BYTE_ALIGNMENT
    return f"is at {extent.offset} of its source: not aligned as in the payload" if misaligned else ""


def _count(what: str, items: Collection[object], most: int, *, least: int = 0) -> None:
    if not least <= len(items) <= most:
        raise FileFormatError(f"{len(items)} {what}; {least} to {most} are possible")


def _check_word(what: str, text: str, most: int, *, least: int = 0) -> None:
    if not least <= len(text) <= most or not all(" " < letter <= "~" for letter in text):
        raise FileFormatError(
            f"{what} is {text[: most + 1]!r}; {least} to {most} printable ASCII characters without blanks are possible"
        )


def _check_text(what: str, text: str, most: int, *, least: int = 0) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise FileFormatError(f"{what} is not text: {error}") from error
    if not least <= size <= most:
        raise FileFormatError(f"{what} has {size} bytes; {least} to {most} are possible")
    if "\0" in text:
        raise FileFormatError(f"{what} has a NUL")
