"""Kernels that a payload needs and ExecuTorch does not have."""

from __future__ import annotations

from executorch.runtime import Runtime

from ..artifacts.pte.reader import read_pte


def missing_kernels(content: bytes) -> tuple[str, ...]:
    """Operators of a `.pte` file for which the runtime of this process has no kernels, sorted.

    The wheel's runtime has the portable kernels, and with `executorch.kernels.quantized` those of quantized operators.
    Not every core ATen operator has one: `aten::sort.values`, for instance.
    """
    operators = {operator for method in read_pte(content).methods for operator in method.operators}
    return tuple(sorted(operators - set(Runtime.get().operator_registry.operator_names)))
