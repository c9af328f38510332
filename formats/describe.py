"""The contents of `.pte` files, plain and fat, as JSON data, as ``pteforge inspect --json`` prints them."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from .nfat.contents import Manifest, Payload, Source
from .nfat.fat_file import FatFile
from .pte.contents import ConstantTensor, Method, PteFile, TensorSpec, ValueSpec
from .pte.ptd import check_external_weights, external_weights, ptd_extents
from .pte.reader import map_file


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
        "kernels": kernel_libraries(pte),
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


_KERNELS = {
    "aten": "portable_ops_lib",
    "dim_order_ops": "portable_ops_lib",
    "quantized_decomposed": "quantized_ops_lib",
    "llama": "custom_ops",
}
"""The library of ExecuTorch's build that has a namespace's operators (CMakeLists.txt in kernels, executorch 1.5.1)."""

_BUILT_IN = "executorch_prim"


def kernel_libraries(pte: PteFile) -> list[str]:
    """Sorted names of the libraries of kernels that an app links to run the file's operators, besides its backends.

    An operator of an unknown namespace stands for itself.
    """
    found = set()
    for operator in {operator for method in pte.methods for operator in method.operators}:
        namespace = operator.partition("::")[0]
        if namespace != _BUILT_IN:
            found.add(_KERNELS.get(namespace, operator))
    return sorted(found)


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
            {
                "id": delegate.id,
                "location": delegate.location,
                "segment": delegate.segment,
                **asdict(delegate.extent),
            }
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
    content = value.value
    plain = [_number(item) for item in content] if isinstance(content, tuple) else _number(content)
    return {"kind": value.kind, "value": plain}


def _number(value: float | str | None) -> float | str | None:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


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
    stored for it and others; ``transposed`` are bytes of it that are stored in another layout, ``half`` those that are
    stored as 32-bit numbers. ``outside`` are blobs in `.ptd` files, ``missing_blobs`` were not found.
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
    digests = [fat.container.manifest.blobs[index].digest for index in payload.blobs]
    return {
        "name": payload.name,
        "backends": list(payload.description.backends),
        "methods": list(payload.description.methods),
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
    }


def payload_sizes(manifest: Manifest) -> list[tuple[int, int]]:
    """Bytes stored only for each payload (what removing it saves), and those stored for it and others.

    Zeros are not stored, and bytes that a payload uses twice count once.
    """
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
