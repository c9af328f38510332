"""Inputs that a method writes to: ExecuTorch leaves the caller's tensors alone and gives new ones before outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


def with_changed_inputs(flat: Sequence[Any], run: Callable[[], list[Any]]) -> list[Any]:
    """What a call gives as a file gives it: first the inputs that it wrote to, in their order, then its outputs.

    Args:
        flat: flat inputs of the call, which may be written to.
        run: the call; gives flat outputs.
    """
    tensors = [value for value in flat if isinstance(value, torch.Tensor) and not value.is_inference()]
    before = [tensor._version for tensor in tensors]  # noqa: SLF001 - the only way to see a write
    outputs = run()
    written = [tensor for tensor, version in zip(tensors, before, strict=True) if tensor._version != version]  # noqa: SLF001 - as above
    return [*(tensor.clone() for tensor in written), *outputs]
