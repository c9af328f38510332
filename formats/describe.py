"""The contents of `.pte` files as JSON for ``pteforge inspect --json``, and the bytes of weights by data type."""

from __future__ import annotations

import struct
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import IntEnum
from itertools import pairwise
from pathlib import Path
from typing import Any

from flatbuffers import number_types  # type: ignore[import-untyped]  # ships neither stubs nor py.typed

from ..errors import FileFormatError
from .contract import kernel_libraries
from .nfat.container import FatFile, is_fat, open_fat, payload_program
from .nfat.contents import Manifest, Payload, Source
from .nfat.golden import read_cases
from .pte.contents import ConstantTensor, Method, PteFile, TensorSpec, ValueSpec
from .pte.metadata import json_value
from .pte.ptd import check_external_weights, external_weights, ptd_extents
from .pte.reader import map_file, open_pte
from .pte.tables import U8, U32, U64, Flatbuffer, TableView


def describe(pte: PteFile) -> dict[str, Any]:
    """A JSON object of everything in `pte`; sizes are bytes, offsets count from the file's start.

    Infinities and not-a-number are strings. Names are unchanged: escape control characters before printing them.
    """
    return {
        "size": pte.size,
        "version": pte.version,
        "program_size": pte.program_size,
        "segment_base": pte.segment_base,
        "backends": list(pte.backends),
        "kernels": kernel_libraries(pte.operators),
        "methods": [_method(method) for method in pte.methods],
        "segments": [
            {**asdict(segment), "holds": sorted(uses)}
            for segment, uses in zip(pte.segments, _segment_uses(pte), strict=True)
        ],
        "constants": _totals([constant for constant in pte.constants if not constant.mutable]),
        "initial_states": _totals([constant for constant in pte.constants if constant.mutable]),
        "external": [tensor.name for tensor in pte.external],
        "named_data": [
            {"key": named.key, "segment": named.segment, "size": pte.segments[named.segment].size}
            for named in pte.named_data
        ],
    }


def planned_memory(file: Path, data_files: Sequence[Path]) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Payload (empty for a plain file), method and bytes by memory id, of readable programs that compute something."""
    pte = open_pte(file)
    programs = {"": pte}
    if is_fat(pte):
        programs, container = {}, open_fat(file, data_files).container
        for payload in container.payloads:
            with suppress(FileFormatError):
                programs[payload.name] = payload_program(container, payload)
    for name, program in programs.items():
        yield from ((name, method.name, method.planned_memory) for method in program.methods if not method.constant)


def _totals(constants: Sequence[ConstantTensor]) -> dict[str, int]:
    return {"tensors": len(constants), "bytes": sum(constant.extent.size for constant in constants)}


def _method(method: Method) -> dict[str, Any]:
    return {
        "name": method.name,
        "constant": method.constant,
        "inputs": [_value(value) for value in method.inputs],
        "outputs": [_value(value) for value in method.outputs],
        "operators": [
            {"name": name, "calls": calls} for name, calls in zip(method.operators, method.operator_calls, strict=True)
        ],
        "delegates": [
            {"id": delegate.id, "location": delegate.location, "segment": delegate.segment, **asdict(delegate.extent)}
            for delegate in method.delegates
        ],
        "planned_memory": list(method.planned_memory),
        "instructions": asdict(method.instructions),
    }


def _value(value: ValueSpec) -> dict[str, Any]:
    if isinstance(value, TensorSpec):
        return {
            "kind": "tensor",
            "dtype": value.dtype,
            "shape": list(value.shape),
            "dim_order": list(value.dim_order),
            "dynamism": value.dynamism,
            "sizes": [asdict(sizes) for sizes in value.sizes],
            "bytes": value.nbytes,
        }
    return {"kind": value.kind, "value": json_value(value.value)}


def _segment_uses(pte: PteFile) -> list[set[str]]:
    uses: list[set[str]] = [set() for _ in pte.segments]
    for constant in pte.constants:
        if constant.segment is not None:
            uses[constant.segment].add("initial_states" if constant.mutable else "constants")
    for method in pte.methods:
        for delegate in method.delegates:
            if delegate.segment is not None:
                uses[delegate.segment].add("delegate")
    for named in pte.named_data:
        uses[named.segment].add("named_data")
    for named in pte.metadata:
        uses[named.segment].add("metadata")
    return uses


def describe_container(fat: FatFile) -> dict[str, Any]:
    """A JSON object of everything in the container; sizes are bytes.

    ``sum`` is the size of the payloads as plain files. ``adds`` are bytes stored only for a payload, ``shared`` those
    stored for it and others; ``transposed`` are stored in another layout, ``half`` as 32-bit numbers. ``outside`` are
    blobs in `.ptd` files, ``missing_blobs`` were not found.
    """
    container, manifest = fat.container, fat.container.manifest
    inside = {named.key for named in fat.program.named_data}
    external = [blob for blob in manifest.blobs if blob.digest not in inside]
    sizes = payload_sizes(manifest)
    return {
        "version": container.version,
        "alignment": manifest.alignment,
        "metadata": dict(manifest.metadata),
        "sum": sum(payload.size for payload in manifest.payloads),
        "inline": len(container.inline),
        "blobs": {"count": len(manifest.blobs), "bytes": sum(blob.size for blob in manifest.blobs)},
        "outside": {"count": len(external), "bytes": sum(blob.size for blob in external)},
        "payloads": [_payload(fat, payload, *stored) for payload, stored in zip(manifest.payloads, sizes, strict=True)],
    }


def _payload(fat: FatFile, payload: Payload, adds: int, shared: int) -> dict[str, Any]:
    indices = {*payload.blobs, *([payload.self_check.blob] if payload.self_check else ())}
    digests = [fat.container.manifest.blobs[index].digest for index in sorted(indices)]
    return {
        "name": payload.name,
        "backends": list(payload.description.backends),
        "methods": list(payload.description.methods),
        "kernels": _kernels(fat, payload),
        "size": payload.size,
        "adds": adds,
        "shared": shared,
        "sha256": payload.sha256,
        "parts_sha256": payload.parts_sha256,
        "executorch_version": payload.description.executorch_version,
        "features": payload.features,
        "unknown_features": payload.unknown_features,
        "transposed": payload.transposed_bytes,
        "half": payload.half_bytes,
        "metadata": dict(payload.description.metadata),
        "missing_blobs": [digest for digest in digests if digest not in fat.container.named_data],
        "self_check": _self_check(fat, payload),
    }


def _self_check(fat: FatFile, payload: Payload) -> dict[str, Any] | None:
    """How a payload checks itself; None if it does not. Payloads may share the bytes."""
    if payload.self_check is None:
        return None
    blob = fat.container.manifest.blobs[payload.self_check.blob]
    golden = fat.container.golden_check(payload) if blob.digest in fat.container.named_data else None
    cases = len(read_cases(golden.blob)) if golden else None
    return {"cases": cases, "bytes": blob.size, **asdict(payload.self_check)}


def _kernels(fat: FatFile, payload: Payload) -> list[str] | None:
    """Libraries of kernels that a payload needs; None if it cannot be read."""
    try:
        return kernel_libraries(payload_program(fat.container, payload).operators)
    except FileFormatError:
        return None


def payload_sizes(manifest: Manifest) -> list[tuple[int, int]]:
    """Bytes stored only for each payload (what removing it saves), and those stored for it and others, each once."""
    adds, shared = Counter[int](), Counter[int]()
    for size, users in _stored_bytes(manifest):
        for user in users:
            (adds if len(users) == 1 else shared)[user] += size
    return [(adds[index], shared[index]) for index in range(len(manifest.payloads))]


def _stored_bytes(manifest: Manifest) -> Iterator[tuple[int, set[int]]]:
    """Splits what is stored into ranges whose bytes all have the same users: (size, payloads)."""
    borders: defaultdict[tuple[Source, int], list[tuple[int, int, int]]] = defaultdict(list)
    for index, payload in enumerate(manifest.payloads):
        for extent in payload.extents:
            if extent.source is not Source.ZEROS:
                start, end = (extent.offset, 1, index), (extent.stored.end, -1, index)
                borders[extent.source, extent.blob] += [start, end]
    for of_source in borders.values():
        users = Counter[int]()  # how many extents of each payload are open
        for (position, change, index), (following, _, _) in pairwise(sorted(of_source)):
            users[index] += change
            if +users and following > position:
                yield following - position, set(+users)


def describe_external(file: Path, pte: PteFile, files: Sequence[Path]) -> dict[str, int | None]:
    """Weights in `.ptd` files; without the files, those that the `.pte` names, those of delegates without sizes."""
    for path in files:
        check_external_weights(file, pte, path)
    sizes: list[int | None] = [extent.size for path in files for _, extent in ptd_extents(map_file(path))]
    sizes = sizes if files else list(external_weights(file, pte).values())
    return {"count": len(sizes), "bytes": None if None in sizes else sum(size or 0 for size in sizes)}


_XNNPACK_HEADER = struct.Struct("<4sHII")  # magic, size of the header, offset and size of the flatbuffer
_XNNPACK_MAGIC, _XNNPACK_AT = b"XH00", 4
_I16 = number_types.Int16Flags
_DTYPES = {1: "float32", 2: "float16", 3: "int8", 4: "uint8", 6: "int8", 8: "int4", 10: "int4", 14: "bfloat16"}
"""Names of those of XNNPACK's data types (`XNNDatatype`) that weights have."""

# slots of the tables of that format
_Graph = IntEnum("_Graph", {"VALUES": 2, "CONSTANTS": 8})
_Value = IntEnum("_Value", {"KIND": 0, "VALUE": 1})
_Tensor = IntEnum("_Tensor", {"DTYPE": 0, "SIZES": 2, "CONSTANT": 3})
_Quantized = IntEnum("_Quantized", {"TENSOR": 0})
_Constant = IntEnum("_Constant", {"SIZE": 1, "KEY": 2})


@dataclass(frozen=True, slots=True)
class WeightBytes:
    """Bytes by data type, largest first, and the backends in whose delegates weights may be that are not counted."""

    sizes: dict[str, int]
    unread: tuple[str, ...]


def weight_bytes(pte: PteFile, content: memoryview) -> WeightBytes:
    """The weights of a plain file: matrices and kernels, not biases, scales and state. Shared ones count once.

    Program constants say their data type. So do the constants of XNNPACK's delegates, whose format is that of
    backends/xnnpack/serialization/schema.fbs in ExecuTorch. The formats of other backends are unknown.
    """
    weights: dict[object, tuple[str, int]] = {
        constant.extent: (constant.tensor.dtype, constant.extent.size)
        for constant in pte.constants
        if not constant.mutable and _is_matrix(constant.tensor.shape)
    }
    unread = dict[str, None]()
    for delegate in (delegate for method in pte.methods for delegate in method.delegates):
        if delegate.id != "XnnpackBackend":
            unread[delegate.id] = None
            continue
        try:
            rows = list(_in_xnnpack(delegate.extent.of(content)))
        except (FileFormatError, struct.error):
            unread[delegate.id] = None
            continue
        for position, (key, dtype, size) in enumerate(rows):
            weights[key or (delegate.extent.offset, position)] = (dtype, size)
    sizes = Counter[str]()
    for dtype, size in weights.values():
        sizes[dtype] += size
    return WeightBytes(dict(sizes.most_common()), tuple(unread))


def _in_xnnpack(data: memoryview) -> Iterator[tuple[str, str, int]]:
    """The weights of a delegate: key of their named data, data type and bytes."""
    magic, _, start, size = _XNNPACK_HEADER.unpack_from(data, _XNNPACK_AT)
    if magic != _XNNPACK_MAGIC:
        raise FileFormatError("damaged program: a delegate of XNNPACK has no header")
    graph = Flatbuffer(data[start : start + size]).root()
    constants = list(graph.children(_Graph.CONSTANTS))
    for value in graph.children(_Graph.VALUES):
        tensor = _tensor(value)
        if tensor is None:
            continue
        index, dtype = tensor.number(_Tensor.CONSTANT, U32), _DTYPES.get(tensor.number(_Tensor.DTYPE, _I16))
        if dtype and 0 < index < len(constants) and _is_matrix(tensor.numbers(_Tensor.SIZES, U32)):
            yield constants[index].text(_Constant.KEY), dtype, constants[index].number(_Constant.SIZE, U64)


def _tensor(value: TableView) -> TableView | None:
    tensor = value.child(_Value.VALUE)
    quantized = value.number(_Value.KIND, U8) == 2  # the second of the schema's union
    return tensor.child(_Quantized.TENSOR) if tensor and quantized else tensor


def _is_matrix(sizes: Sequence[int]) -> bool:
    return sum(size > 1 for size in sizes) > 1
