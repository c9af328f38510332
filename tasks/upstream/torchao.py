"""torchao 0.18, which packs and dequantizes some rows at a time here; in the keys of stages that load weights."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from unittest.mock import patch

import torch

from .patches import mends

RANGES = "pteforge_ranges"
"""Key in `Node.meta` of a concatenation: the largest magnitude of each part in a sample, before it is quantized."""

_AT_ONCE = 1 << 22  # weights that are packed together


def packed_by_rows(weights: torch.Tensor, pack: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Packs weights of fewer than 8 bits, several in a byte, some rows at a time: `pack` may copy its input."""
    if weights.dim() != 2 or weights.numel() <= _AT_ONCE:
        return pack(weights)
    parts = weights.split(max(_AT_ONCE // weights.shape[1], 1))
    first = pack(parts[0])
    packed = first.new_empty(len(weights), *first.shape[1:])
    for rows, part in zip(packed.split(len(parts[0])), parts, strict=True):
        rows.copy_(pack(part))
    return packed


_LEAST_BY_ROWS = 1 << 26  # numbers of a tensor from which on it is dequantized by rows


@mends(
    "dequantizing makes three copies of a matrix",
    "torchao.quantization.quant_primitives._dequantize_affine_no_dtype_check",
)
def dequantization_by_rows() -> AbstractContextManager[object]:
    """Has torchao dequantize large matrices some rows at a time while the context is open, to the same numbers.

    For torchao 0.18. `_dequantize_affine_no_dtype_check` in quantization/quant_primitives.py makes three floating point
    tensors of the matrix, two of which exist at once. Delete once it writes to one.
    """
    from torchao.quantization import quant_primitives  # noqa: PLC0415 - not for all that need this module

    whole = quant_primitives._dequantize_affine_no_dtype_check  # noqa: SLF001 - the function that computes

    def by_rows(
        values: torch.Tensor,
        block: list[int],
        scale: torch.Tensor,
        zero_point: torch.Tensor | None,
        lowest: float,
        highest: float,
        dtype: torch.dtype = torch.float32,
    ) -> torch.Tensor:
        rows = len(scale) == len(values) and values.dim() == scale.dim() == 2 and block[0] == 1
        if not rows or type(values) not in (torch.Tensor, torch.nn.Parameter) or values.numel() < _LEAST_BY_ROWS:
            return whole(values, block, scale, zero_point, lowest, highest, dtype)
        dequantized = torch.empty(values.shape, dtype=dtype)
        step = max(1, _LEAST_BY_ROWS // 4 // values.shape[1])
        for first in range(0, len(values), step):
            part = slice(first, first + step)
            zeros = None if zero_point is None else zero_point[part]
            dequantized[part] = whole(values[part], block, scale[part], zeros, lowest, highest, dtype)
        return dequantized

    return patch.object(quant_primitives, "_dequantize_affine_no_dtype_check", by_rows)
