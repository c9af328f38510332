"""The lowering recipe of an ExportRecipe: its partitioners as specializations, its Edge options and passes."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Sequence
from typing import Any

from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir.backend.partitioner import Partitioner
from executorch.export import LoweringRecipe, StageType

from ...configs.base import TARGET_SEPARATOR
from ...configs.recipe import EdgeManagerPass, EdgeOptions, EdgePass, MethodOptions, Specialization
from ...errors import ConfigError
from ...tasks.targets.find import find_target, find_target_class, target_names
from ...tasks.targets.vulkan import VulkanOptions
from ...tasks.upstream.compat import ALL_PARTITIONER_CONFIGS, OpOverload

_FIELD = "lowering_recipe.partitioners"
_PASSES = "lowering_recipe.edge_transform_passes"
_VULKAN = {"VulkanPartitioner": "vulkan", "WebGPUPartitioner": "webgpu"}
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


def specialization(given: list[Partitioner] | dict[str, list[Partitioner]] | None) -> Specialization:
    """The payload. Partitioners of a list run one after another; methods that a mapping leaves out are portable.

    Raises ConfigError for a partitioner that no target makes.
    """
    if isinstance(given, dict):
        methods = {name: _of_method(name, partitioners) for name, partitioners in given.items()}
        return Specialization(target="portable", methods=methods)
    return _chained(given, _FIELD) if given else Specialization(target="portable")


def manager_passes(lowering: LoweringRecipe, stages: Sequence[StageType]) -> tuple[EdgeManagerPass, ...]:
    """What the stage EDGE_PROGRAM_MANAGER_TRANSFORM runs, before or after the partitioners.

    It is part of the usual pipeline if there are functions for it. It runs `edge_transform_passes` again, even after
    TO_EDGE_TRANSFORM_AND_LOWER. Raises ConfigError for a pass that cannot be imported by its name.
    """
    functions, field = lowering.edge_manager_transform_passes, "lowering_recipe.edge_manager_transform_passes"
    if StageType.EDGE_PROGRAM_MANAGER_TRANSFORM not in stages and (stages or not functions):
        return ()
    before: Any = "partition" if StageType.TO_EDGE in stages else "compile"
    edge_passes = import_paths(lowering.edge_transform_passes, _PASSES)
    return (
        *(EdgeManagerPass(callable=path, takes_program=True, before=before) for path in edge_passes),
        *(EdgeManagerPass(callable=path, before=before) for path in import_paths(functions, field)),
    )


def edge_options(lowering: LoweringRecipe, stages: Sequence[StageType]) -> EdgeOptions:
    """The options of Edge programs; raises ConfigError for a pass that cannot be imported by its name."""
    whole = StageType.TO_EDGE not in stages
    paths = import_paths(lowering.edge_transform_passes, _PASSES) if whole else ()
    passes = tuple(EdgePass(callable=path, takes_program=True) for path in paths)
    config = lowering.edge_compile_config
    options: dict[str, Any] = {}
    if config is not None:
        options = {
            "check_ir_validity": config._check_ir_validity,  # noqa: SLF001 - its public options have private names
            "skip_dim_order": config._skip_dim_order,  # noqa: SLF001 - as above
            "core_aten_ops_exception_list": tuple(map(str, config._core_aten_ops_exception_list)),  # noqa: SLF001
            "preserve_operators": tuple(map(str, config.preserve_ops)),
        }
    return EdgeOptions(passes=passes, preserve_for_target=whole, **options)


def _of_method(name: str, given: Sequence[Partitioner]) -> MethodOptions:
    if not given:
        return MethodOptions(delegate=False)
    chained = _chained(given, f"{_FIELD}[{name!r}]")
    return MethodOptions(target=chained.target, options=chained.options)


def _chained(given: Sequence[Partitioner], field: str) -> Specialization:
    """One target that partitions as these do, one after another."""
    by_target: dict[str, Specialization] = {}
    for index, partitioner in enumerate(given):
        item = f"{field}[{index}]"
        spec = _target_of(partitioner, item)
        if by_target.setdefault(spec.target, spec) != spec:
            raise untranslatable(item, f"another partitioner of target {spec.target!r} has other options")
    if len(by_target) == 1:
        return next(iter(by_target.values()))
    options = {target: spec.options for target, spec in by_target.items()}
    return Specialization(target=TARGET_SEPARATOR.join(by_target), options=options)


def _target_of(given: Partitioner, field: str) -> Specialization:
    if isinstance(given, XnnpackPartitioner):
        return _xnnpack(given, field)
    kind = type(given).__name__
    if kind == "CoreMLPartitioner":
        return _coreml(given, field)
    if kind in _VULKAN:
        return _vulkan(given, _VULKAN[kind], field)
    for name in target_names():
        if type(given) not in _classes(name):
            continue
        (own,) = (own for own in find_target(name).partitioners() if type(own) is type(given))
        differing = [key for key, value in _public(given).items() if not bool(value == _public(own).get(key))]
        if "delegation_spec" in vars(own) and not differing:
            return Specialization(target=name)
        attribute = f".{differing[0]}" if differing else ""
        raise untranslatable(f"{field}{attribute}", f"it differs from what target {name!r} makes with its defaults")
    raise untranslatable(field, _why_not(given))


def _why_not(given: Partitioner) -> str:
    """Why no target makes a partitioner: its target is not available here, or there is none."""
    backend = getattr(getattr(given, "delegation_spec", None), "backend_id", None)
    for name in target_names():
        target = find_target_class(name)
        if backend in target.backends and (reason := target.available()):
            return f"target {name!r} is not available here: {reason}"
    return f"no target makes a {type(given).__name__}"


def _classes(name: str) -> set[type]:
    """The classes of a target's partitioners; empty if the target is not available here."""
    target = find_target(name, {})
    return set() if target.available() else {type(own) for own in target.partitioners()}


def _public(partitioner: Partitioner) -> dict[str, Any]:
    return {name: value for name, value in vars(partitioner).items() if not name.startswith("_")}


def check_overrides(given: object, base: type, field: str) -> None:
    """Raises ConfigError for an object whose class overrides methods of `base` other than its constructor."""
    for kind in type(given).__mro__[: type(given).__mro__.index(base)]:
        for name, value in vars(kind).items():
            if name != "__init__" and (callable(value) or isinstance(value, classmethod | staticmethod | property)):
                hint = f"{kind.__name__} overrides it; write a target (tasks/targets/README.md)"
                raise untranslatable(f"{field}.{name}", hint)


def _xnnpack(given: XnnpackPartitioner, field: str) -> Specialization:
    """The options of a partitioner, also of subclasses that only set some, as upstream's for single precisions."""
    check_overrides(given, XnnpackPartitioner, field)
    configs = given.target_partitioner_configs.values()
    field = f"{field}.target_partitioner_configs"
    kinds, usual_kinds = (
        {name: type(config) for name, config in partitioner.target_partitioner_configs.items()}
        for partitioner in (given, XnnpackPartitioner())
    )
    if kinds != usual_kinds:
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


def _vulkan(given: Any, target: str, field: str) -> Specialization:
    """Vulkan's options under their own names; WebGPU's partitioner is the same."""
    partitioner = getattr(given, "_vulkan_partitioner", given)
    for attribute in ("nn_module_blocklist", "nn_module_allowlist"):
        if getattr(partitioner, attribute):
            raise untranslatable(f"{field}.{attribute}", f"target {target!r} chooses by operator, not by module")
    fields = find_target_class(target).Options.model_fields
    written = {name: list(value) if isinstance(value, tuple) else value for name, value in partitioner.options.items()}
    if unknown := sorted(written.keys() - (fields.keys() - set(_OPERATOR_LISTS.values()))):
        raise untranslatable(f"{field}.options[{unknown[0]!r}]", f"target {target!r} has no such option")
    values = {name: item.default for name, item in VulkanOptions.model_fields.items()} | written
    options: dict[str, Any] = {name: values[name] for name in fields if values[name] != fields[name].default}
    for attribute, name in _OPERATOR_LISTS.items():
        if (listed := getattr(partitioner, attribute)) is not None and (listed or name == "only_operators"):
            options[name] = sorted(operator_name(operator, f"{field}.{attribute}") for operator in listed)
    return Specialization(target=target, options=options)


_OPERATOR_LISTS = {"operator_blocklist": "skip_operators", "operator_allowlist": "only_operators"}
"""Attributes of Vulkan's partitioner, and the options that they are."""


def operator_name(given: Any, field: str) -> str:
    """The name of an operator of ATen or Edge, such as ``aten.add.Tensor``."""
    found = given if isinstance(given, OpOverload) else getattr(given, "_op", None)
    if not isinstance(found, OpOverload):
        raise untranslatable(field, f"{given!r} is not an operator with its overload, such as aten.add.Tensor")
    return str(found)


def _coreml(given: Any, field: str) -> Specialization:
    from ...tasks.targets.coreml import CoreMlOptions  # noqa: PLC0415 - as above
    from ...tasks.upstream.compat import CoreMLBackend  # noqa: PLC0415 - needs coremltools

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
    """The name by which a function of an ExportRecipe's `field` is imported; ConfigError if it cannot be imported."""
    module, name = getattr(given, "__module__", None), getattr(given, "__qualname__", None)
    path = f"{module}:{name}"
    try:
        imported = pkgutil.resolve_name(path) if module != "__main__" else None
    except (ValueError, ImportError, AttributeError):
        imported = None
    if imported is not given:
        raise untranslatable(
            field,
            f"{given!r} cannot be imported by its name, as a key needs for its code; put it at the top of a module",
        )
    return path


def import_paths(given: Sequence[Callable[..., Any]] | None, field: str) -> list[str]:
    """The names of the functions of a field that lists some; raises as `import_path`."""
    return [import_path(function, f"{field}[{position}]") for position, function in enumerate(given or ())]
