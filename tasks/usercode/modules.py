"""Users' modules: copies that share their weights, and modules that PT2E has prepared, and that were trained since."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any
from unittest import mock

import torch
from torch.fx import GraphModule
from torchao.quantization.pt2e import ObserverOrFakeQuantize, disable_observer, move_exported_model_to_eval
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e

from ...errors import SourceError
from ..upstream.torch_export import whole_dynamic_quantization

_OF_MODULES = ("_parameters", "_buffers", "_modules")


def copy_module(module: torch.nn.Module, *, share_parameters: bool = True) -> torch.nn.Module:
    """A copy as `copy_modules` makes them."""
    return copy_modules({"module": module}, share_parameters=share_parameters)["module"]


def copy_modules(
    modules: Mapping[str, torch.nn.Module], *, share_parameters: bool = True
) -> dict[str, torch.nn.Module]:
    """Copies that share with each other what the originals share, and the parameters with the originals.

    Tensors that a module keeps of an earlier call, as static caches and ``torch.nn.utils.weight_norm`` do, are copied
    without gradients; torch would refuse. Attributes that cannot be copied, such as locks and open files, are shared.
    Parameters that were made under ``torch.inference_mode`` are copied, since they cannot be traced.
    """
    parameters = [weight for module in modules.values() for weight in module.parameters() if share_parameters]
    shared: dict[int, Any] = {id(weight): weight for weight in parameters if not weight.is_inference()}
    with mock.patch.object(torch.Tensor, "__deepcopy__", _without_history):
        try:
            return copy.deepcopy(dict(modules), dict(shared))
        except Exception:  # noqa: BLE001 - whatever an attribute's own `__deepcopy__` raises
            return copy.deepcopy(dict(modules), {**shared, **dict(_not_copyable(modules))})


_copy_of_leaf = torch.Tensor.__deepcopy__


def _without_history(tensor: torch.Tensor, memo: dict[int, Any]) -> Any:
    if tensor.is_leaf or id(tensor) in memo:
        return _copy_of_leaf(tensor, memo)
    memo[id(tensor)] = copied = _copy_of_leaf(tensor.detach(), memo)
    return copied


def _not_copyable(modules: Mapping[str, torch.nn.Module]) -> Iterator[tuple[int, Any]]:
    """Attributes of modules that cannot be copied, by id."""
    children = {id(child): child for module in modules.values() for child in module.modules()}
    for child in children.values():
        for name, value in vars(child).items():
            if name not in _OF_MODULES:
                try:
                    copy.deepcopy(value, dict(children))
                except Exception:  # noqa: BLE001 - as above
                    yield id(value), value


def is_prepared(module: torch.nn.Module) -> bool:
    """Whether a module comes from torchao's ``prepare_qat_pt2e`` or ``prepare_pt2e``."""
    children = module.modules() if isinstance(module, GraphModule) else ()
    return any(isinstance(child, ObserverOrFakeQuantize) for child in children)


def for_inference(module: torch.nn.Module) -> torch.nn.Module:
    """Puts a module into inference mode.

    A prepared one keeps its fake quantization and stops observing: otherwise every call would change the scales that it
    was trained to. Its `eval` raises, since its graph has to change instead.
    """
    if not is_prepared(module):
        return module.eval()
    move_exported_model_to_eval(module)
    return module.apply(disable_observer)


def convert_prepared(module: GraphModule, what: str) -> GraphModule:
    """A copy of a prepared module with quantized operators; raises SourceError if it has no scales yet."""
    for name, child in module.named_modules():
        if isinstance(child, ObserverOrFakeQuantize) and _has_observed_nothing(child):
            raise SourceError(
                f"{what} has a module that was prepared for quantization, but {name} in it has observed nothing; train "
                "it, or run it on samples, before the builder returns it"
            )
    with torch.no_grad(), whole_dynamic_quantization():
        return convert_pt2e(copy.deepcopy(module))


def _has_observed_nothing(module: torch.nn.Module) -> bool:
    lowest = getattr(getattr(module, "activation_post_process", module), "min_val", None)
    return isinstance(lowest, torch.Tensor) and (lowest.numel() == 0 or bool(lowest.isinf().all()))
