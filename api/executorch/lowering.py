"""The lowering recipe of an ExportRecipe: its partitioners as specializations, its Edge options and passes."""

from __future__ import annotations

import pkgutil
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from executorch.backends.xnnpack.partition.config import ALL_PARTITIONER_CONFIGS
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir.backend.partitioner import Partitioner
from executorch.export import LoweringRecipe, StageType

from ...configs.base import TARGET_SEPARATOR
from ...configs.recipe import EdgeManagerPass, EdgeOptions, EdgePass, MethodOptions, Specialization
from ...errors import ConfigError
from ...tasks.targets.find import find_target, target_names

_FIELD = "lowering_recipe.partitioners"
_PASSES = "lowering_recipe.edge_transform_passes"
_MANAGER_PASSES = "lowering_recipe.edge_manager_transform_passes"
_PORTABLE = Specialization(target="portable")
_OPTIONS: dict[str, tuple[dict[str, Any], ...]] = {
    "vulkan": ({}, {"force_fp16": True}),
}
"""By target, the options whose partitioners are compared with the given one."""
_COREML_SPECS = {
    "compute_units",
    "min_deployment_target",
    "model_compute_precision",
    "model_type",
    "multimethod_weight_sharing_strategy",
}


def untranslatable(field: str, problem: str) -> ConfigError:
    """The error for a field of an ExportRecipe, named as ExecuTorch names it."""
    return ConfigError(f"has no equivalent in a pteforge recipe: {problem}", field=f"ExportRecipe.{field}")


def specializations(given: list[Partitioner] | dict[str, list[Partitioner]] | None) -> tuple[Specialization, ...]:
    """The payloads: one, or for several partitioners one each and the portable one.

    Partitioners by method make one payload, whose other methods are portable. Those of one method run one after
    another. Raises ConfigError for a partitioner that no target makes.
    """
    if not given:
        return (_PORTABLE,)
    if isinstance(given, dict):
        return (
            Specialization(target="portable", methods={name: _of_method(name, own) for name, own in given.items()}),
        )
    found = [_target_of(partitioner, f"{_FIELD}[{position}]") for position, partitioner in enumerate(given)]
    if len(found) == 1:
        return (found[0],)
    counts = Counter(spec.target for spec in found)
    numbered = [
        spec.model_copy(update={"name": f"{spec.target}-{position}"}) if counts[spec.target] > 1 else spec
        for position, spec in enumerate(found)
    ]
    return (*numbered, _PORTABLE)


def manager_passes(lowering: LoweringRecipe, stages: Sequence[StageType]) -> tuple[EdgeManagerPass, ...]:
    """What the stage EDGE_PROGRAM_MANAGER_TRANSFORM runs, by whether it comes before or after the partitioners.

    It is part of the usual pipeline if there are functions for it. After TO_EDGE_TRANSFORM_AND_LOWER, which runs
    `edge_transform_passes`, it runs them once more.

    Raises ConfigError for a pass that cannot be imported by its name.
    """
    functions = lowering.edge_manager_transform_passes or ()
    if StageType.EDGE_PROGRAM_MANAGER_TRANSFORM not in stages and (stages or not functions):
        return ()
    before: Any = "partition" if StageType.TO_EDGE in stages else "compile"
    return (
        *(EdgeManagerPass(callable=path, takes_program=True, before=before) for path in _edge_passes(lowering)),
        *(
            EdgeManagerPass(callable=import_path(function, f"{_MANAGER_PASSES}[{index}]"), before=before)
            for index, function in enumerate(functions)
        ),
    )


def edge_options(lowering: LoweringRecipe, stages: Sequence[StageType]) -> EdgeOptions:
    """The options of Edge programs; raises ConfigError for a pass that cannot be imported by its name."""
    whole = StageType.TO_EDGE not in stages
    passes = tuple(EdgePass(callable=path, takes_program=True) for path in _edge_passes(lowering)) if whole else ()
    config = lowering.edge_compile_config
    if config is None:
        return EdgeOptions(passes=passes, preserve_for_target=whole)
    fields: dict[str, Any] = vars(config)
    return EdgeOptions(
        passes=passes,
        preserve_for_target=whole,
        check_ir_validity=fields["_check_ir_validity"],
        skip_dim_order=fields["_skip_dim_order"],
        core_aten_ops_exception_list=tuple(map(str, fields["_core_aten_ops_exception_list"])),
        preserve_operators=tuple(map(str, fields["preserve_ops"])),
    )


def _edge_passes(lowering: LoweringRecipe) -> list[str]:
    return [import_path(made, f"{_PASSES}[{index}]") for index, made in enumerate(lowering.edge_transform_passes or ())]


def _of_method(name: str, given: Sequence[Partitioner]) -> MethodOptions:
    if not given:
        return MethodOptions(delegate=False)
    own = [_target_of(partitioner, f"{_FIELD}[{name!r}][{index}]") for index, partitioner in enumerate(given)]
    if len(own) == 1:
        return MethodOptions(target=own[0].target, options=own[0].options)
    return MethodOptions(
        target=TARGET_SEPARATOR.join(spec.target for spec in own), options={spec.target: spec.options for spec in own}
    )


def _target_of(given: Partitioner, field: str) -> Specialization:
    if type(given) is XnnpackPartitioner:
        return _xnnpack(given, field)
    if type(given).__name__ == "CoreMLPartitioner":
        return _coreml(given, field)
    for name in target_names():
        if type(given) not in _classes(name):
            continue
        for options in _OPTIONS.get(name, ({},)):
            if any(_same(given, own) for own in find_target(name, options).partitioners()):
                return Specialization(target=name, options=options)
    raise untranslatable(field, f"no target makes a {type(given).__name__} like this one")


def _classes(name: str) -> set[type]:
    """The classes of a target's partitioners; empty if the target is not available here."""
    target = find_target(name, {})
    return set() if target.available() else {type(own) for own in target.partitioners()}


def _same(given: Partitioner, own: Partitioner) -> bool:
    """Whether two partitioners have the same class and the same public attributes."""
    return type(given) is type(own) and "delegation_spec" in vars(own) and bool(_public(given) == _public(own))


def _public(partitioner: Partitioner) -> dict[str, Any]:
    return {name: value for name, value in vars(partitioner).items() if not name.startswith("_")}


def _xnnpack(given: XnnpackPartitioner, field: str) -> Specialization:
    configs = given.target_partitioner_configs.values()
    if set(given.target_partitioner_configs) != set(XnnpackPartitioner().target_partitioner_configs):
        raise untranslatable(field, f"it looks for {len(configs)} of {len(ALL_PARTITIONER_CONFIGS)} kinds of operators")
    if any(config.enable_bf16 for config in configs):
        raise untranslatable(field, "target xnnpack has no option `enable_bf16`")
    options: dict[str, Any] = {}
    if given.per_op_mode:
        options["per_operator"] = True
    if any(config.force_non_static_weights_for_f32_linear for config in configs):
        options["force_non_static_weights_for_f32_linear"] = True
    precisions = {precision for config in configs for precision in config.enabled_precision_types}
    if precisions != {precision for config in configs for precision in config.supported_precision_types()}:
        options["precisions"] = sorted(precision.name.lower() for precision in precisions)
    return Specialization(target="xnnpack", options=options)


def _coreml(given: Any, field: str) -> Specialization:
    from executorch.backends.apple.coreml.compiler import CoreMLBackend  # noqa: PLC0415 - needs coremltools

    from ...tasks.targets.coreml import CoreMlOptions  # noqa: PLC0415 - as above

    specs = given.delegation_spec.compile_specs
    if unknown := sorted({spec.key for spec in specs} - _COREML_SPECS):
        raise untranslatable(field, f"target coreml has no option for the compile spec {unknown[0]!r}")
    if not given.take_over_constant_data:
        raise untranslatable(field, "target coreml always takes constants over")
    oldest = CoreMLBackend.min_deployment_target_from_compile_specs(specs)
    sharing = CoreMLBackend.multimethod_weight_sharing_strategy_from_compile_specs(specs)
    options = CoreMlOptions(
        minimum_deployment_target=oldest and oldest.name,
        compute_unit=CoreMLBackend.compute_unit_from_compile_specs(specs).name.lower(),
        compute_precision=CoreMLBackend.model_compute_precision_from_compile_specs(specs).value,
        model_type=CoreMLBackend.model_type_from_compile_specs(specs).value,
        lower_full_graph=given.lower_full_graph,
        take_over_mutable_buffers=bool(given.take_over_mutable_buffer),
        share_weights=sharing.name != "DISABLED",
        skip_operators=tuple(dict.fromkeys(given.skip_ops_for_coreml_delegation or ())),
    )
    return Specialization(target="coreml", options=options.model_dump(mode="json", exclude_defaults=True))


def import_path(given: Callable[..., Any], field: str) -> str:
    """The name by which a function of an ExportRecipe's `field` is imported; ConfigError where it is not importable."""
    module, name = getattr(given, "__module__", None), getattr(given, "__qualname__", None)
    path = f"{module}:{name}"
    try:
        found = pkgutil.resolve_name(path) if module != "__main__" else None
    except (ValueError, ImportError, AttributeError):
        found = None
    if found is not given:
        raise untranslatable(
            field,
            f"{given!r} cannot be imported by its name, as a key needs for its code; put it at the top of a module",
        )
    return path
