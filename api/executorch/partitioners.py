"""Which targets partitioners belong to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from executorch.backends.xnnpack.partition.config import ALL_PARTITIONER_CONFIGS
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir.backend.partitioner import Partitioner

from ...configs.methods import MethodOptions
from ...configs.names import TARGET_SEPARATOR
from ...configs.recipe import Specialization
from ...tasks.targets.find import find_target, target_names
from .refusal import untranslatable

_FIELD = "lowering_recipe.partitioners"
_PORTABLE = Specialization(target="portable")
_OPTIONS: dict[str, tuple[dict[str, Any], ...]] = {
    "coreml": tuple(
        {**precision, **system, **state}
        for system in ({}, *({"minimum_deployment_target": f"iOS{number}"} for number in (15, 16, 17, 18, 26)))
        for precision in ({}, {"compute_precision": "float32"})
        for state in ({}, {"take_over_mutable_buffers": False})
    ),
    "vulkan": ({}, {"force_fp16": True}),
}
"""By target, options under which its partitioners are looked at besides the defaults."""


def specializations(given: list[Partitioner] | dict[str, list[Partitioner]] | None) -> tuple[Specialization, ...]:
    """The payloads: one, or of several partitioners one for each and the portable one.

    Partitioners by method make one payload, whose other methods are portable. Those of one method run one after
    another.

    Raises:
        ConfigError: a partitioner is none that a target makes.
    """
    if not given:
        return (_PORTABLE,)
    if isinstance(given, dict):
        return (
            Specialization(target="portable", methods={name: _of_method(name, own) for name, own in given.items()}),
        )
    found = [_target_of(each, f"{_FIELD}[{position}]") for position, each in enumerate(given)]
    if len(found) == 1:
        return (found[0],)
    names = [each.target for each in found]
    numbered = [
        each.model_copy(update={"name": f"{each.target}-{position}"}) if names.count(each.target) > 1 else each
        for position, each in enumerate(found)
    ]
    return (*numbered, _PORTABLE)


def _of_method(name: str, given: Sequence[Partitioner]) -> MethodOptions:
    if not given:
        return MethodOptions(delegate=False)
    own = [_target_of(each, f"{_FIELD}[{name!r}][{position}]") for position, each in enumerate(given)]
    if len(own) == 1:
        return MethodOptions(target=own[0].target, options=own[0].options)
    return MethodOptions(
        target=TARGET_SEPARATOR.join(each.target for each in own), options={each.target: each.options for each in own}
    )


def _target_of(given: Partitioner, field: str) -> Specialization:
    if type(given) is XnnpackPartitioner:
        return _xnnpack(given, field)
    for name in target_names():
        if type(given) not in _classes(name):
            continue
        for options in _OPTIONS.get(name, ({},)):
            if any(_same(given, own) for own in find_target(name, options).partitioners()):
                return Specialization(target=name, options=options)
    raise untranslatable(field, f"no target makes a {type(given).__name__} like this one")


def _classes(name: str) -> set[type]:
    """The classes of a target's partitioners; empty where it cannot be had here."""
    target = find_target(name, {})
    return set() if target.available() else {type(own) for own in target.partitioners()}


def _same(given: Partitioner, own: Partitioner) -> bool:
    """Whether two partitioners are of one class, claim the same and tell their backend the same."""
    if type(given) is not type(own):
        return False
    theirs, ours = (
        {name: value for name, value in vars(each).items() if not name.startswith("_")} for each in (given, own)
    )
    return "delegation_spec" in ours and bool(theirs == ours)


def _xnnpack(given: XnnpackPartitioner, field: str) -> Specialization:
    configs = given.target_partitioner_configs.values()
    usual = XnnpackPartitioner()
    if set(given.target_partitioner_configs) != set(usual.target_partitioner_configs):
        raise untranslatable(field, f"it looks for {len(configs)} of {len(ALL_PARTITIONER_CONFIGS)} kinds of operators")
    if any(config.enable_bf16 for config in configs):
        raise untranslatable(field, "target xnnpack has no option `enable_bf16`")
    options: dict[str, Any] = {}
    if given.per_op_mode:
        options["per_operator"] = True
    if any(config.force_non_static_weights_for_f32_linear for config in configs):
        options["force_non_static_weights_for_f32_linear"] = True
    precisions = {each for config in configs for each in config.enabled_precision_types}
    all_precisions = {each for config in configs for each in config.supported_precision_types()}
    if precisions != all_precisions:
        options["precisions"] = sorted(each.name.lower() for each in precisions)
    return Specialization(target="xnnpack", options=options)
