"""Computed weights in files instead of memory."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

_IN_MEMORY = 1 << 16
"""Bytes up to which a tensor stays in memory."""


@dataclass(frozen=True)
class TensorFiles:
    """Moves tensors to files in a folder and maps them from there, so that the kernel can drop their pages.

    A file has no name once it is mapped, and its bytes are freed with its tensor.
    """

    folder: Path
    _numbers: Iterator[int] = field(default_factory=count)

    def empty(self, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        """A mapped tensor of zeros, contiguous."""
        size = shape.numel() * dtype.itemsize
        if size <= _IN_MEMORY:
            return torch.zeros(shape, dtype=dtype)
        path = self.folder / f"tensor-{next(self._numbers)}"
        storage = torch.UntypedStorage.from_file(str(path), shared=True, nbytes=size)
        path.unlink()
        return torch.empty(0, dtype=dtype).set_(storage, 0, shape)

    def moved(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same tensor in a file; a traceable subclass with its inner tensors there."""
        if is_traceable_wrapper_subclass(tensor):
            names, context = tensor.__tensor_flatten__()
            inner = {name: self.moved(getattr(tensor, name)) for name in names}
            return rebuilt(tensor, inner, context, tensor.shape)
        if tensor.untyped_storage().nbytes() <= _IN_MEMORY or not tensor.is_contiguous():
            return tensor
        return self.empty(tensor.shape, tensor.dtype).copy_(tensor)

    def move_parameters(self, module: nn.Module) -> None:
        """Moves a module's own parameters, and returns the memory that was free to the system."""
        for name, weight in module.named_parameters(recurse=False):
            moved = nn.Parameter(self.moved(weight.detach()), requires_grad=weight.requires_grad)
            setattr(module, name, moved)
        if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):  # glibc keeps what large temporary tensors used
            trim(0)


def rebuilt(like: torch.Tensor, inner: dict[str, Any], context: Any, shape: torch.Size) -> torch.Tensor:
    """A tensor of a traceable subclass with other inner tensors."""
    stride = torch.empty(shape, device="meta").stride()
    made: torch.Tensor = type(like).__tensor_unflatten__(inner, context, shape, stride)
    return made
