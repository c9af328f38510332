"""From an `executorch.export.ExportRecipe`, or one of its recipe types, to a recipe of ours."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from executorch.export import ExportRecipe, LoweringRecipe, RecipeType, StageType
from executorch.export.recipe import Mode

from ...configs.edge import EdgeOptions
from ...configs.presets.recipe_types import RECIPE_TYPES
from ...configs.recipe import Output, Recipe
from ...configs.recipe_file import load_preset
from ...configs.verify_bounds import Verification
from ...errors import ConfigError
from ...tasks.catalog import StageName
from .backend_config import compile_options, external_data
from .partitioners import specializations
from .passes import edge_passes
from .quantization import quantize, source_transforms
from .refusal import untranslatable

_BOUNDS = {"quantize": 20.0, "source_transforms": 12.0}
"""Least SQNR in dB of what is quantized in one way or the other, as in the shipped recipes."""

_UNTIL = {
    StageType.TORCH_EXPORT: StageName.EXPORT,
    StageType.QUANTIZE: StageName.QUANTIZE,
    StageType.TO_EDGE: StageName.EDGE,
    StageType.EDGE_PROGRAM_MANAGER_TRANSFORM: StageName.EDGE,
    StageType.TO_BACKEND: StageName.PREPROCESS,
    StageType.TO_EDGE_TRANSFORM_AND_LOWER: StageName.PREPROCESS,
    StageType.TO_EXECUTORCH: None,
}
"""The stage of ours that a stage of theirs ends with."""


@dataclass(frozen=True, slots=True)
class Translated:
    """A recipe of ours, and what an ExportRecipe says besides.

    Attributes:
        name: what it is called.
        recipe: the recipe.
        strict: trace in torch.export's strict mode.
        until: the last stage to go through; None for the file.
        calibration: gives what quantizers observe; None for the example inputs.
    """

    name: str
    recipe: Recipe
    strict: bool = False
    until: StageName | None = None
    calibration: Callable[[], Iterable[Any]] | None = None


def translate_type(kind: RecipeType) -> Translated:
    """The recipe that a recipe type stands for; ConfigError where there is none."""
    if kind.value in RECIPE_TYPES:
        loaded = load_preset(RECIPE_TYPES[kind.value])
        return Translated(loaded.name, loaded.recipe)
    raise ConfigError(
        f"there is no recipe for the type {kind.value!r}; known: {', '.join(RECIPE_TYPES)}", field="recipe"
    )


def translate(given: ExportRecipe) -> Translated:
    """The same recipe in our words.

    A recipe with several partitioners, as `ExportRecipe.combine` makes them, becomes one with a fat file: a payload for
    each, in their order, and the portable one at last.

    Raises:
        ConfigError: a field holds what cannot be said: functions, other partitioners and quantizers than those that
            targets make. It is named.
    """
    if given.aten_transform_passes:
        raise untranslatable("aten_transform_passes", "give source_transforms, which enter the key by their code")
    lowering = given.lowering_recipe or LoweringRecipe()
    if lowering.edge_manager_transform_passes:
        raise untranslatable(
            "lowering_recipe.edge_manager_transform_passes",
            "programs are lowered one by one, without a manager; edge_transform_passes and edge.passes are there",
        )
    fields: dict[str, Any] = {
        "quantize": quantize(given.quantization_recipe),
        "source_transforms": source_transforms(given.quantization_recipe),
    }
    payloads = specializations(lowering.partitioners)
    bound = min([80.0, *(least for field, least in _BOUNDS.items() if fields[field])])
    return Translated(
        name=given.name or "recipe",
        recipe=Recipe(
            output=Output(
                form="fat" if len(payloads) > 1 else "plain",
                external_data=external_data(given.executorch_backend_config),
            ),
            specializations=payloads,
            edge=_edge(lowering),
            compile=compile_options(given.executorch_backend_config),
            debug=given.mode is Mode.DEBUG,
            verify=Verification(min_sqnr_db=bound),
            **fields,
        ),
        strict=given.strict,
        until=_last_stage(given),
        calibration=given.quantization_recipe and given.quantization_recipe.calibration_inputs_fn,
    )


def _edge(lowering: LoweringRecipe) -> EdgeOptions:
    passes = edge_passes(lowering.edge_transform_passes or ())
    config = lowering.edge_compile_config
    if config is None:
        return EdgeOptions(passes=passes)
    fields: Mapping[str, Any] = vars(config)
    return EdgeOptions(
        passes=passes,
        check_ir_validity=fields["_check_ir_validity"],
        skip_dim_order=fields["_skip_dim_order"],
        core_aten_ops_exception_list=tuple(map(str, fields["_core_aten_ops_exception_list"])),
        preserve_operators=tuple(map(str, fields["preserve_ops"])),
    )


def _last_stage(given: ExportRecipe) -> StageName | None:
    stages = given.pipeline_stages
    if not stages:
        return None
    skipped = {StageType.SOURCE_TRANSFORM, StageType.QUANTIZE} - set(stages)
    if given.quantization_recipe and skipped:
        names = ", ".join(sorted(stage.value for stage in skipped))
        raise untranslatable("pipeline_stages", f"they leave out {names}, and there is a quantization_recipe")
    if stages[-1] not in _UNTIL:
        raise untranslatable("pipeline_stages", f"there is no stage that ends with {stages[-1]!r}")
    return _UNTIL[stages[-1]]
