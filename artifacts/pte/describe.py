"""What a `.pte` holds as plain JSON data: what ``pteforge inspect --json`` prints."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from .contents import Delegate, Method, PteFile, TensorSpec, ValueSpec


def describe(pte: PteFile) -> dict[str, Any]:
    """A JSON object of everything in `pte`; sizes are bytes, offsets count from the file's start.

    Numbers that JSON has no text for (infinities, not-a-number) are strings. Names come from the file as they are:
    who prints them has to escape control characters.
    """
    mutable = [constant for constant in pte.constants if constant.mutable]
    return {
        "size": pte.size,
        "version": pte.version,
        "program_size": pte.program_size,
        "segment_base": pte.segment_base,
        "backends": list(pte.backends),
        "methods": [_method(method) for method in pte.methods],
        "segments": [
            {"offset": segment.offset, "size": segment.size, "holds": sorted(holds)}
            for segment, holds in zip(pte.segments, _uses(pte), strict=True)
        ],
        "constants": {
            "tensors": len(pte.constants) - len(mutable),
            "bytes": sum(constant.size for constant in pte.constants) - sum(constant.size for constant in mutable),
        },
        "initial_states": {"tensors": len(mutable), "bytes": sum(constant.size for constant in mutable)},
        "external": [tensor.name for tensor in pte.external],
        "named_data": [
            {"key": named.key, "segment": named.segment, "size": pte.segments[named.segment].size}
            for named in pte.named_data
        ],
    }


def _method(method: Method) -> dict[str, Any]:
    return {
        "name": method.name,
        "constant": method.constant,
        "inputs": [_value(value) for value in method.inputs],
        "outputs": [_value(value) for value in method.outputs],
        "operators": [
            {"name": name, "calls": calls} for name, calls in zip(method.operators, method.operator_calls, strict=True)
        ],
        "delegates": [_delegate(delegate) for delegate in method.delegates],
        "planned_memory": list(method.planned_memory),
        "instructions": {
            "kernel_calls": method.instructions.kernel_calls,
            "delegate_calls": method.instructions.delegate_calls,
            "moves": method.instructions.moves,
            "jumps": method.instructions.jumps,
            "frees": method.instructions.frees,
        },
    }


def _value(value: ValueSpec) -> dict[str, Any]:
    if isinstance(value, TensorSpec):
        return {
            "kind": "tensor",
            "dtype": value.dtype,
            "shape": list(value.shape),
            "dim_order": list(value.dim_order),
            "dynamism": value.dynamism,
            "bytes": value.nbytes,
        }
    content = value.value
    return {
        "kind": value.kind,
        "value": [_number(item) for item in content] if isinstance(content, tuple) else _number(content),
    }


def _number(value: float | str | None) -> float | str | None:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _delegate(delegate: Delegate) -> dict[str, Any]:
    return {
        "id": delegate.id,
        "location": delegate.location,
        "segment": delegate.segment,
        "offset": delegate.offset,
        "size": delegate.size,
    }


def _uses(pte: PteFile) -> list[set[str]]:
    """What each segment is for."""
    uses: list[set[str]] = [set() for _ in pte.segments]
    for index, use in _segment_uses(pte):
        uses[index].add(use)
    return uses


def _segment_uses(pte: PteFile) -> Iterator[tuple[int, str]]:
    for constant in pte.constants:
        if constant.segment is not None:
            yield constant.segment, "initial_states" if constant.mutable else "constants"
    for method in pte.methods:
        for delegate in method.delegates:
            if delegate.segment is not None:
                yield delegate.segment, "delegate"
    for named in pte.named_data:
        yield named.segment, "named_data"
