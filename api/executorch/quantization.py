"""The quantization recipe of an ExportRecipe."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from enum import Enum
from typing import Any

import torch
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import XNNPACKQuantizer
from executorch.export import QuantizationRecipe
from torchao.quantization.granularity import Granularity
from torchao.quantization.pt2e.quantizer import Quantizer

from ...configs.quantize import PASS_FIELDS, GraphPass, Quantize, QuantizerChoice, TorchaoTransform
from ...tasks.targets.find import find_quantizer_options, find_target_class
from ...tasks.torchao_configs import snake_case
from .lowering import import_path, untranslatable

_QAT = "training comes first; give the module that prepare_qat_pt2e made once you have trained it: it is converted"
_NOT_OURS = {"is_qat": _QAT, "train_fn": _QAT}
_COREML_RECIPES = "executorch.backends.apple.coreml.recipes.coreml_recipe_provider"
_COREML: tuple[dict[str, Any], ...] = tuple(
    {**weights, **channel, **scheme}
    for weights in ({}, {"weight_only": True})
    for channel in ({}, {"per_channel": False})
    for scheme in ({}, {"scheme": "affine"})
)
_XNNPACK = tuple({"per_channel": channel, "dynamic": dynamic} for channel in (True, False) for dynamic in (True, False))


def quantize(given: QuantizationRecipe | None) -> Quantize | None:
    """PT2E quantization, if any.

    Raises ConfigError for training, a function that cannot be imported, or a quantizer that no target makes.
    """
    if given is None:
        return None
    for name, hint in _NOT_OURS.items():
        if getattr(given, name):
            raise untranslatable(f"quantization_recipe.{name}", hint)
    found = [_choice(quantizer, position) for position, quantizer in enumerate(given.quantizers or ())]
    if not found:
        return None
    several = len(found) > 1
    chosen: dict[str, Any] = {"quantizers": tuple(found)} if several else found[0].model_dump()
    passes = {
        field: tuple(
            GraphPass(callable=import_path(function, f"quantization_recipe.{field}[{position}]"))
            for position, function in enumerate(getattr(given, field) or ())
        )
        for field in PASS_FIELDS
    }
    return Quantize(**chosen, **passes, dynamic_batch_size=given.dynamic_batch_size)


def source_transforms(given: QuantizationRecipe | None) -> tuple[TorchaoTransform, ...]:
    """Calls of torchao's `quantize_`; raises ConfigError for a function that cannot be imported."""
    transforms = []
    for position, entry in enumerate((given and given.ao_quantization_configs) or ()):
        field = f"quantization_recipe.ao_quantization_configs[{position}]"
        config = entry.ao_base_config
        params = {
            item.name: _plain(getattr(config, item.name), f"{field}.{item.name}")
            for item in dataclasses.fields(config)
            if not _is_default(item, getattr(config, item.name))
        }
        choice = _layers(entry.filter_fn, f"{field}.filter_fn")
        transforms.append(TorchaoTransform(torchao=type(config).__name__, params=params, **choice))
    return tuple(transforms)


def _layers(function: Callable[..., bool] | None, field: str) -> dict[str, Any]:
    """How layers are chosen: all linear ones, those of Core ML's recipe for codebooks, or those of a function."""
    if function is None:
        return {}
    if getattr(function, "__module__", None) == _COREML_RECIPES:
        return {"layers": ("linear", "embedding")}
    return {"filter_fn": import_path(function, field)}


def _choice(given: Quantizer, position: int) -> QuantizerChoice:
    field = f"quantization_recipe.quantizers[{position}]"
    if type(given).__name__ == "CoreMLQuantizer":
        return _coreml_choice(given, field)
    if type(given) is not XNNPACKQuantizer:
        problem = f"only XNNPACKQuantizer and CoreMLQuantizer are known here, not {type(given).__name__}"
        raise untranslatable(field, problem)
    for name in ("operator_type_config", "module_type_config", "module_name_config", "filter_fn"):
        if getattr(given, name):
            raise untranslatable(f"{field}.{name}", "the quantizer of target xnnpack has one config for all operators")
    target = find_target_class("xnnpack")
    for options in _XNNPACK:
        own = target.quantizer(find_quantizer_options("xnnpack", dict(options)))
        if _comparable(own.global_config) == _comparable(given.global_config):
            return QuantizerChoice(quantizer="xnnpack", options=dict(options))
    raise untranslatable(f"{field}.global_config", "it is not int8 and symmetric, as get_symmetric_quantization_config")


def _coreml_choice(given: Any, field: str) -> QuantizerChoice:
    target = find_target_class("coreml")
    for options in _COREML:
        own: Any = target.quantizer(find_quantizer_options("coreml", dict(options)))
        if type(own) is type(given) and own._config == given._config:  # noqa: SLF001 - it is nowhere else
            return QuantizerChoice(quantizer="coreml", options=dict(options))
    raise untranslatable(f"{field}.config", "it is not one for all operators, of int8 weights and uint8 activations")


def _comparable(config: Any) -> Any:
    """A quantization config without its observers' constructors, which only equal themselves."""
    if not dataclasses.is_dataclass(config):
        return config
    names = [item.name for item in dataclasses.fields(config) if item.name != "observer_or_fake_quant_ctr"]
    return {name: _comparable(getattr(config, name)) for name in names}


def _is_default(item: dataclasses.Field[Any], value: Any) -> bool:
    if item.default is not dataclasses.MISSING:
        return bool(item.default == value)
    return item.default_factory is not dataclasses.MISSING and bool(item.default_factory() == value)


def _plain(value: Any, field: str) -> Any:
    """A field's value as a recipe writes it: see `tasks.stages.torchao_values`."""
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, Enum):
        return value.name.lower()
    if isinstance(value, list | tuple):
        return [_plain(item, field) for item in value]
    if isinstance(value, Granularity):
        name = snake_case(type(value).__name__)
        sizes = list(vars(value).values())
        return {name: list(sizes[0]) if isinstance(sizes[0], tuple) else sizes[0]} if sizes else name
    raise untranslatable(field, f"{value!r} is not a plain value")
