"""Translates an `executorch.export.ExportRecipe`, or one of its recipe types, to a recipe of ours."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from executorch.export import ExportRecipe, LoweringRecipe, RecipeType, StageType
from executorch.export.recipe import Mode

from ...configs.base import TARGET_SEPARATOR
from ...configs.presets import RECIPE_TYPES
from ...configs.recipe import AtenPass, MethodOptions, Output, Recipe, Specialization
from ...configs.recipe_lookup import load_preset
from ...configs.verification import Verification
from ...errors import ConfigError
from ...tasks.stages.edge import Edge
from ...tasks.stages.edge_manager_passes import EdgeManagerPasses
from ...tasks.stages.export import Export
from ...tasks.stages.preprocess import Preprocess
from ...tasks.stages.quantize import Quantize
from .backend_config import compile_options, emission_passes, external_data, method_options
from .lowering import edge_options, import_path, manager_passes, specialization, untranslatable
from .quantization import quantize, source_transforms

_BOUNDS = {"quantize": 20.0, "source_transforms": 12.0}
"""Minimum SQNR in dB by kind of quantization, as in the shipped recipes."""

_UNTIL = {
    StageType.TORCH_EXPORT: Export.name,
    StageType.QUANTIZE: Quantize.name,
    StageType.TO_EDGE: Edge.name,
    StageType.EDGE_PROGRAM_MANAGER_TRANSFORM: EdgeManagerPasses.name,
    StageType.TO_BACKEND: Preprocess.name,
    StageType.TO_EDGE_TRANSFORM_AND_LOWER: Preprocess.name,
    StageType.TO_EXECUTORCH: None,
}
"""ExecuTorch's stages -> our stage that each ends with."""

_LOWERED = (StageType.TO_EDGE, StageType.TO_EDGE_TRANSFORM_AND_LOWER)
_AFTER = {
    StageType.SOURCE_TRANSFORM: (),
    StageType.QUANTIZE: (StageType.SOURCE_TRANSFORM,),
    StageType.TORCH_EXPORT: (StageType.SOURCE_TRANSFORM, StageType.QUANTIZE),
    StageType.TO_EDGE: (StageType.TORCH_EXPORT,),
    StageType.TO_EDGE_TRANSFORM_AND_LOWER: (StageType.TORCH_EXPORT,),
    StageType.EDGE_PROGRAM_MANAGER_TRANSFORM: _LOWERED,
    StageType.TO_BACKEND: (StageType.TO_EDGE, StageType.EDGE_PROGRAM_MANAGER_TRANSFORM),
    StageType.TO_EXECUTORCH: (
        StageType.TO_EDGE_TRANSFORM_AND_LOWER,
        StageType.TO_BACKEND,
        StageType.EDGE_PROGRAM_MANAGER_TRANSFORM,
    ),
}
"""Stages -> those that can come right before them (executorch/export/stages.py)."""
_FIRST = (StageType.SOURCE_TRANSFORM, StageType.QUANTIZE, StageType.TORCH_EXPORT, *_LOWERED)


@dataclass(frozen=True, slots=True)
class Translated:
    """A recipe of ours, and the settings of an ExportRecipe that no recipe has."""

    name: str
    recipe: Recipe
    strict: bool = False  # trace in torch.export's strict mode
    until: str | None = None  # name of the last stage to run; None for the file
    # returns samples for quantizers to observe; None for the example inputs
    calibration: Callable[[], Iterable[Any]] | None = None


def translate_type(kind: RecipeType) -> Translated:
    """The recipe for a recipe type; raises ConfigError if there is none."""
    if kind.value in RECIPE_TYPES:
        loaded = load_preset(RECIPE_TYPES[kind.value])
        return Translated(loaded.name, loaded.recipe)
    raise ConfigError(
        f"there is no recipe for the type {kind.value!r}; known: {', '.join(RECIPE_TYPES)}", field="recipe"
    )


def translate(given: ExportRecipe) -> Translated:
    """Translates a recipe.

    Several partitioners, as `ExportRecipe.combine` collects them, become targets that are joined, as in
    ``coreml+xnnpack``: each takes what those before it leave.

    Raises:
        ConfigError: a field has no equivalent: functions that cannot be imported, or partitioners and quantizers that
            no target makes.
    """
    lowering = given.lowering_recipe or LoweringRecipe()
    until, stages = _last_stage(given), tuple(given.pipeline_stages or ())
    fields: dict[str, Any] = {
        "quantize": quantize(given.quantization_recipe),
        "source_transforms": source_transforms(given.quantization_recipe),
    }
    payload = specialization(lowering.partitioners if _partitions(stages) else None)
    payload = _with_methods(payload, method_options(given.executorch_backend_config))
    # Functions over programs before they are lowered get what they would get from ExecuTorch.
    reads = given.aten_transform_passes or (given.quantization_recipe and given.quantization_recipe.pre_prepare_passes)
    bound = min([80.0, *(least for field, least in _BOUNDS.items() if fields[field])])
    return Translated(
        name=given.name or "recipe",
        recipe=Recipe(
            output=Output(external_data=external_data(given.executorch_backend_config)),
            specializations=(payload,),
            aten_passes=tuple(
                AtenPass(callable=import_path(function, f"aten_transform_passes[{position}]"))
                for position, function in enumerate(given.aten_transform_passes or ())
            ),
            fold_batch_norms=not reads,
            edge=edge_options(lowering, stages),
            edge_manager_passes=manager_passes(lowering, stages),
            emission_passes=emission_passes(given.executorch_backend_config),
            compile=compile_options(given.executorch_backend_config),
            debug=given.mode is Mode.DEBUG,
            verify=Verification(min_sqnr_db=bound, required=_runs_anywhere(payload)),
            **fields,
        ),
        strict=given.strict,
        until=until,
        calibration=given.quantization_recipe and given.quantization_recipe.calibration_inputs_fn,
    )


def _runs_anywhere(payload: Specialization) -> bool:
    """Whether ExecuTorch's packages of all platforms run the file, so that it can be asked for."""
    named = [payload.target, *(own.target for own in payload.methods.values() if own.target)]
    targets = {target for joined in named for target in joined.split(TARGET_SEPARATOR)}
    return targets <= {"portable", "xnnpack"}


def _partitions(stages: Sequence[StageType]) -> bool:
    """Whether the pipeline has a stage that runs partitioners; without stages it is the usual one, which has."""
    return not stages or not {StageType.TO_BACKEND, StageType.TO_EDGE_TRANSFORM_AND_LOWER}.isdisjoint(stages)


def _with_methods(payload: Specialization, methods: Mapping[str, MethodOptions]) -> Specialization:
    """The payload, with further options of single methods."""
    merged = dict(payload.methods)
    for method, own in methods.items():
        merged[method] = merged.get(method, MethodOptions()).model_copy(update=own.layout)
    return payload.model_copy(update={"methods": merged})


_PASSES_OF = {
    "edge_transform_passes": {StageType.TO_EDGE_TRANSFORM_AND_LOWER, StageType.EDGE_PROGRAM_MANAGER_TRANSFORM},
    "edge_manager_transform_passes": {StageType.EDGE_PROGRAM_MANAGER_TRANSFORM},
}
"""Fields of a lowering recipe -> the stages that read them."""


def _last_stage(given: ExportRecipe) -> str | None:
    stages = given.pipeline_stages
    if not stages:
        return None
    skipped = {StageType.SOURCE_TRANSFORM, StageType.QUANTIZE} - set(stages)
    if given.quantization_recipe and skipped:
        names = ", ".join(sorted(stage.value for stage in skipped))
        raise untranslatable("pipeline_stages", f"they leave out {names}, and there is a quantization_recipe")
    for before, stage in zip((None, *stages), stages, strict=False):
        if stage not in _UNTIL.keys() | _AFTER.keys():
            raise untranslatable("pipeline_stages", f"there is no stage that ends with {stage!r}")
        if before not in _AFTER[stage] and not (before is None and stage in _FIRST):
            where = f"follow {before.value}" if before else "come first"
            known = ", ".join(each.value for each in _AFTER[stage]) or "none"
            raise untranslatable("pipeline_stages", f"{stage.value} cannot {where}; stages before it are: {known}")
    for field, readers in _PASSES_OF.items():
        if getattr(given.lowering_recipe, field, None) and _lowers(stages) and readers.isdisjoint(stages):
            names = " or ".join(sorted(stage.value for stage in readers))
            raise untranslatable("pipeline_stages", f"they leave out {names}, and there are {field}")
    last = stages[-1]
    if last is StageType.EDGE_PROGRAM_MANAGER_TRANSFORM and StageType.TO_EDGE not in stages:
        last = StageType.TO_EDGE_TRANSFORM_AND_LOWER
    if last not in _UNTIL:
        raise untranslatable("pipeline_stages", f"nothing is lowered by {last.value} alone")
    return _UNTIL[last]


def _lowers(stages: Sequence[StageType]) -> bool:
    """Whether the pipeline goes on after its stages over whole Edge programs."""
    return stages[-1] in {StageType.TO_BACKEND, StageType.TO_EDGE_TRANSFORM_AND_LOWER, StageType.TO_EXECUTORCH}
