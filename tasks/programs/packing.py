"""Weights of fewer than 8 bits, several in a byte; shared by XNNPACK's delegates and the embeddings outside of them."""

from __future__ import annotations

from collections.abc import Callable

import torch

_AT_ONCE = 1 << 22
"""Weights."""


def packed_by_rows(weights: torch.Tensor, pack: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """What `pack` makes of a matrix, some rows at a time: it may need several copies of what it takes."""
    if weights.dim() != 2 or weights.numel() <= _AT_ONCE:
        return pack(weights)
    parts = weights.split(max(_AT_ONCE // weights.shape[1], 1))
    first = pack(parts[0])
    packed = first.new_empty(len(weights), *first.shape[1:])
    for rows, part in zip(packed.split(len(parts[0])), parts, strict=True):
        rows.copy_(pack(part))
    return packed
