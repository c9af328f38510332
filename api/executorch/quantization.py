"""The quantization recipe of an ExportRecipe."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Any

import torch
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import XNNPACKQuantizer
from executorch.export import QuantizationRecipe
from torchao.quantization.granularity import Granularity
from torchao.quantization.pt2e.quantizer import ComposableQuantizer, Quantizer

from ...configs.quantize import PASS_FIELDS, GraphPass, Quantize, QuantizerChoice, TorchaoTransform
from ...tasks.quantize.torchao_configs import snake_case
from ...tasks.targets.find import find_quantizer_options, find_target_class
from .lowering import check_overrides, import_path, import_paths, operator_name, untranslatable

_QAT = "training comes first; give the module that prepare_qat_pt2e made once you have trained it: it is converted"
_NOT_OURS = {"is_qat": _QAT, "train_fn": _QAT}
_COREML_RECIPES = "executorch.backends.apple.coreml.recipes.coreml_recipe_provider"
_COREML: tuple[dict[str, Any], ...] = tuple(
    {**weights, **channel, **scheme}
    for weights in ({}, {"weight_only": True})
    for channel in ({}, {"per_channel": False})
    for scheme in ({}, {"scheme": "affine"})
)
_VULKAN = tuple({"dynamic": dynamic, "weight_bits": bits} for dynamic in (False, True) for bits in (8, 4))
_XNNPACK = tuple({"per_channel": channel, "dynamic": dynamic} for channel in (True, False) for dynamic in (True, False))


def quantize(given: QuantizationRecipe | None) -> Quantize | None:
    """PT2E quantization, if any; ConfigError for training, unimportable functions, and quantizers of no target."""
    if given is None:
        return None
    for name, hint in _NOT_OURS.items():
        if getattr(given, name):
            raise untranslatable(f"quantization_recipe.{name}", hint)
    choices = list(_choices_of_all(given.quantizers or (), "quantization_recipe.quantizers"))
    if not choices:
        return None
    listed = len(choices) > 1 or choices[0].filter_fn
    chosen: dict[str, Any] = {"quantizers": tuple(choices)} if listed else choices[0].model_dump(exclude={"filter_fn"})
    passes = {}
    for field in PASS_FIELDS:
        paths = import_paths(getattr(given, field), f"quantization_recipe.{field}")
        passes[field] = tuple(GraphPass(callable=path) for path in paths)
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


def _choices_of_all(given: Sequence[Quantizer], field: str) -> Iterator[QuantizerChoice]:
    for index, quantizer in enumerate(given):
        yield from _choices(quantizer, f"{field}[{index}]")


def _choices(given: Quantizer, field: str) -> list[QuantizerChoice]:
    """The quantizers that one is, or is composed of, in their order."""
    if type(given) is ComposableQuantizer:
        return list(_choices_of_all(given.quantizers, f"{field}.quantizers"))
    if type(given).__name__ == "CoreMLQuantizer":
        return [_coreml_choice(given, field)]
    if type(given).__name__ == "VulkanQuantizer":
        options = _options_of(given.global_config, "vulkan", _VULKAN, f"{field}.global_config")
        return [QuantizerChoice(quantizer="vulkan", options=options, filter_fn=_filter(given, field))]
    if isinstance(given, XNNPACKQuantizer):
        check_overrides(given, XNNPACKQuantizer, field)
        return [QuantizerChoice(quantizer="xnnpack", options=_xnnpack(given, field), filter_fn=_filter(given, field))]
    raise untranslatable(field, f"only quantizers of XNNPACK, Core ML and Vulkan are known, not {type(given).__name__}")


def _filter(given: Any, field: str) -> str | None:
    return import_path(given.filter_fn, f"{field}.filter_fn") if given.filter_fn else None


def _xnnpack(given: XNNPACKQuantizer, field: str) -> dict[str, Any]:
    """The options, with a rule for each module and operator that has a config of its own."""
    rules = [
        {kind: name_of(key, f"{field}.{attribute}"), **_scales(config, f"{field}.{attribute}[{key!r}]")}
        for kind, attribute, name_of in _RULES
        for key, config in getattr(given, attribute).items()
    ]
    if given.global_config is None:
        return {"rules": rules, "only_rules": True}
    scales = _options_of(given.global_config, "xnnpack", _XNNPACK, f"{field}.global_config")
    return {**scales, "rules": rules} if rules else scales


def _scales(config: Any, field: str) -> dict[str, Any]:
    return {"quantize": False} if config is None else _options_of(config, "xnnpack", _XNNPACK, field)


_RULES: tuple[tuple[str, str, Callable[[Any, str], str]], ...] = (
    ("module", "module_name_config", lambda name, _field: str(name)),
    ("module_type", "module_type_config", lambda kind, _field: f"{kind.__module__}.{kind.__qualname__}"),
    ("operator", "operator_type_config", operator_name),
)
"""Fields of rules, the attributes of the quantizer that they are, and how keys of those are written."""


def _options_of(config: Any, name: str, candidates: Sequence[dict[str, Any]], field: str) -> dict[str, Any]:
    """The options of a target whose quantizer has this config; raises ConfigError with what differs."""
    target = find_target_class(name)
    wanted, differing = _comparable(config), []
    for options in candidates:
        own: Any = target.quantizer(find_quantizer_options(name, dict(options)))
        ours = _comparable(own.global_config)
        if ours == wanted:
            return dict(options)
        differing.append(list(_differences(wanted, ours)))
    nearest, *_ = min(differing, key=len)
    raise untranslatable(f"{field}{nearest}", f"the quantizer of target {name!r} has no such config")


def _differences(given: Any, own: Any) -> Iterator[str]:
    """The paths of the attributes in which two configs differ, such as ``.weight.quant_min``."""
    if not (isinstance(given, dict) and isinstance(own, dict)):
        yield ""
        return
    for name, value in given.items():
        if value != own.get(name):
            yield from (f".{name}{path}" for path in _differences(value, own.get(name)))


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
    """A field's value as a recipe writes it: see `tasks.quantize.torchao_configs`."""
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
