"""Transforming a method's module: torchao's `quantize_`, and functions of the user's."""

from __future__ import annotations

import copy
import pkgutil
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torchao.quantization import quantize_
from torchao.utils import TorchAOBaseTensor, unwrap_tensor_subclass

from ...errors import SourceError, TargetError
from ..params import CallableParams
from ..source_params import TorchaoParams
from .torchao_values import group_size, make_config
from .user_code import failed

Transforms = Sequence[TorchaoParams | CallableParams]
"""What is done to a module, one after another."""

_KINDS: dict[str, type[nn.Module]] = {"linear": nn.Linear, "embedding": nn.Embedding}
_ROOT = "module"


def transformed(module: nn.Module, transforms: Transforms) -> tuple[nn.Module, frozenset[int]]:
    """A transformed copy of a module, ready for export.

    A layer that an earlier transform has quantized is left alone by the later ones.

    Args:
        module: the module; it stays as it is.
        transforms: what to do.

    Returns:
        The copy in inference mode, tensor subclasses unwrapped; and the positions of the transforms that did something,
        which callables always do.

    Raises:
        SourceError: a callable cannot be had, raises, or returns something else than a module.
        TargetError: torchao refuses a config, or cannot apply it to a layer.
    """
    # Both quantize_ and unwrap_tensor_subclass replace children only, and the module itself may be a layer.
    holder = nn.Module()
    holder.add_module(_ROOT, _copied(module, transforms))
    matched = set()
    for position, transform in enumerate(transforms):
        what = f"source_transforms[{position}]"
        if isinstance(transform, CallableParams):
            holder.add_module(_ROOT, _called(transform, holder.get_submodule(_ROOT), what))
            matched.add(position)
        elif _quantize(holder, transform, what):
            matched.add(position)
    unwrap_tensor_subclass(holder)
    return holder.get_submodule(_ROOT).eval(), frozenset(matched)


def layer_names(module: nn.Module, kinds: Sequence[str]) -> dict[nn.Module, list[str]]:
    """The layers of these kinds that are not quantized yet, with all their names; the module's own one is empty."""
    classes = tuple(_KINDS[kind] for kind in kinds)
    names: dict[nn.Module, list[str]] = {}
    for name, layer in module.named_modules(remove_duplicate=False):
        # The projection in nn.MultiheadAttention is computed by a function that takes its weight and not by the layer.
        takes_part = isinstance(layer, classes) and not isinstance(layer, NonDynamicallyQuantizableLinear)
        if takes_part and not isinstance(layer.weight, TorchAOBaseTensor):
            names.setdefault(layer, []).append(name)
    return names


def _copied(module: nn.Module, transforms: Transforms) -> nn.Module:
    # torchao puts new weights in the place of the old ones; only functions of the user's may write into them.
    writing = any(isinstance(each, CallableParams) for each in transforms)
    shared: dict[int, Any] = {} if writing else {id(parameter): parameter for parameter in module.parameters()}
    try:
        return copy.deepcopy(module, shared).eval()
    except Exception as error:
        raise SourceError(f"source_transforms need a copy of the model: {type(error).__name__}: {error}") from error


def _called(transform: CallableParams, module: nn.Module, what: str) -> nn.Module:
    name = transform.source["builder"]
    try:
        made = pkgutil.resolve_name(name)(module, **transform.source["kwargs"])
    except Exception as error:
        raise failed(f"{what}: {name}", error) from error
    if made is not None and not isinstance(made, nn.Module):
        raise SourceError(f"{what}: {name} returned {type(made).__name__}; it must return a module, or None")
    return module if made is None else made


def _quantize(holder: nn.Module, transform: TorchaoParams, what: str) -> bool:
    """Quantizes the layers that match; says whether there are any."""
    chosen = _chosen(holder.get_submodule(_ROOT), transform)
    if not chosen:
        return False
    config = make_config(transform.config, transform.fields)
    _check_groups(chosen, group_size(config), what)
    last = ""

    def wanted(layer: nn.Module, _name: str) -> bool:
        nonlocal last
        if layer not in chosen or isinstance(layer.weight, TorchAOBaseTensor):
            return False
        last = chosen[layer]
        return True

    try:
        quantize_(holder, config, wanted)
    except Exception as error:
        raise TargetError(
            f"{what}: torchao cannot apply {transform.config} to layer {last!r}: {type(error).__name__}: {error}"
        ) from error
    return True


def _chosen(module: nn.Module, transform: TorchaoParams) -> dict[nn.Module, str]:
    """The layers to quantize, each with its first name."""
    return {
        layer: names[0]
        for layer, names in layer_names(module, transform.layers).items()
        if _any_match(names, transform.include) and not _any_match(names, transform.exclude)
    }


def _any_match(names: Sequence[str], patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


def _check_groups(layers: dict[nn.Module, str], group: int | None, what: str) -> None:
    for layer, name in layers.items():
        features = layer.weight.shape[-1]
        if group is not None and features % group:
            raise TargetError(
                f"{what}: layer {name!r} has {features} input features, and groups of {group} do not divide them; "
                "give another group size, or leave the layer out with `exclude`"
            )
