"""Weights in files instead of memory: mapped from checkpoints, and moved to files where they were computed."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ...errors import SourceError, first_line

_INDEX = ".index.json"


def load_weights(module: nn.Module, path: str | Path) -> None:
    """Gives a module the tensors of a checkpoint, mapped from its files instead of read into memory.

    The module may be on the meta device, so that its weights never take memory:

        with torch.device("meta"):
            model = Net()
        pteforge.load_weights(model, "model.safetensors")

    Parameters keep the checkpoint's dtype. A parameter that the module has under several names needs one of them there.

    Args:
        module: changed in place.
        path: a ``.safetensors`` file, or a ``.safetensors.index.json`` that names those of a checkpoint in parts.

    Raises:
        SourceError: a file is missing or damaged, or its names or shapes are not those of the module; or tensors are
            left on the meta device, such as buffers that a checkpoint does not have.
    """
    given = Path(path)
    state = _mapped(given)
    names: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    for tied in names.values():
        stored = [name for name in tied if name in state]
        state.update({name: state[stored[0]] for name in tied if stored})
    try:
        module.load_state_dict(state, assign=True)
    except RuntimeError as error:
        raise SourceError(f"{given} does not fit {type(module).__name__}: {error}") from error
    for first, *others in names.values():
        for other in others:
            owner, _, attribute = other.rpartition(".")
            setattr(module.get_submodule(owner), attribute, module.get_parameter(first))
    left = [name for name, value in (*module.named_parameters(), *module.named_buffers()) if value.is_meta]
    if left:
        raise SourceError(
            f"{given} has no values for {', '.join(left)} of {type(module).__name__}: create them on the CPU, outside "
            'of `torch.device("meta")`'
        )


def _mapped(path: Path) -> dict[str, torch.Tensor]:
    try:
        from safetensors import SafetensorError  # noqa: PLC0415 - comes with the extra `hf`
        from safetensors.torch import load_file  # noqa: PLC0415 - the same
    except ImportError as error:
        raise SourceError('load_weights needs safetensors: `pip install "pteforge[hf]"`') from error
    try:
        if not path.name.endswith(_INDEX):
            return dict(load_file(path))
        index = json.loads(path.read_bytes())
        parts: Mapping[str, str] = index["weight_map"]
        return {
            name: tensor for part in sorted({*parts.values()}) for name, tensor in _mapped(path.parent / part).items()
        }
    except (OSError, ValueError, LookupError, TypeError, AttributeError, SafetensorError) as error:
        raise SourceError(f"{path} is no checkpoint of safetensors that can be read: {first_line(error)}") from error


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
