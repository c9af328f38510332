"""Checkpoints that stay files: builders map them into their modules."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from ..errors import SourceError, first_line
from ..formats.checkpoint import files_of
from ..tasks.programs.weights import cast_for_builder


def load_weights(module: nn.Module, path: str | Path, *, dtype: torch.dtype | None = None) -> None:
    """Gives a module the tensors of a checkpoint, mapped from its files instead of read into memory.

    The module may be on the meta device, so that its weights never take memory:

        with torch.device("meta"):
            model = Net()
        pteforge.load_weights(model, "model.safetensors")

    A parameter that the module has under several names needs one of them there.

    Args:
        module: changed in place.
        path: a ``.safetensors`` file, or a ``.safetensors.index.json`` that names those of a checkpoint in parts.
        dtype: of tensors in floating point, None for the checkpoint's. In a builder, matrices are cast when an operator
            reads them, so that they take no memory either; code that reads one in another way, as ``numpy()`` does,
            sees zeros. Elsewhere all are cast at once, in memory.

    Raises:
        SourceError: a file is missing or damaged, or its names or shapes are not those of the module; or tensors are
            left on the meta device, such as buffers that a checkpoint does not have.
    """
    path = Path(path)
    state = _mapped(path)
    if dtype is not None:
        state = {name: cast_for_builder(tensor, dtype) for name, tensor in state.items()}
    names: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    for tied in names.values():
        stored = [name for name in tied if name in state]
        state.update({name: state[stored[0]] for name in tied if stored})
    try:
        module.load_state_dict(state, assign=True)
    except RuntimeError as error:
        raise SourceError(f"{path} does not fit {type(module).__name__}: {error}") from error
    for first, *others in names.values():
        for other in others:
            owner, _, attribute = other.rpartition(".")
            setattr(module.get_submodule(owner), attribute, module.get_parameter(first))
    left = [name for name, value in (*module.named_parameters(), *module.named_buffers()) if value.is_meta]
    if left:
        raise SourceError(
            f"{path} has no values for {', '.join(left)} of {type(module).__name__}: create them on the CPU, outside "
            'of `torch.device("meta")`'
        )


def _mapped(path: Path) -> dict[str, torch.Tensor]:
    try:
        from safetensors import SafetensorError  # noqa: PLC0415 - comes with the extra `hf`
        from safetensors.torch import load_file  # noqa: PLC0415 - the same
    except ImportError as error:
        raise SourceError('load_weights needs safetensors: `pip install "pteforge[hf]"`') from error
    try:
        return {name: tensor for file in files_of(path) for name, tensor in load_file(file).items()}
    except (OSError, SafetensorError) as error:
        raise SourceError(f"{path} is no checkpoint of safetensors that can be read: {first_line(error)}") from error
