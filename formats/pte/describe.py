"""The contents of a `.pte` as JSON data, as ``pteforge inspect --json`` prints them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from .contents import ConstantTensor, Method, PteFile, TensorSpec, ValueSpec


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
