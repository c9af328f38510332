"""Copies of modules that share their weights, also of modules that `copy.deepcopy` refuses."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any
from unittest import mock

import torch

_OF_MODULES = ("_parameters", "_buffers", "_modules")


def copy_module(module: torch.nn.Module, *, share_parameters: bool = True) -> torch.nn.Module:
    """A copy as `copy_modules` makes them."""
    return copy_modules({"module": module}, share_parameters=share_parameters)["module"]


def copy_modules(
    modules: Mapping[str, torch.nn.Module], *, share_parameters: bool = True
) -> dict[str, torch.nn.Module]:
    """Copies that share with each other what the originals share, and the parameters with the originals.

    What a module keeps of an earlier call, as static caches and ``torch.nn.utils.weight_norm`` do, is copied without
    gradients; torch would refuse. Attributes that cannot be copied, such as locks and open files, are shared, and
    parameters that were made under ``torch.inference_mode`` are copied, since those cannot be traced.
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
