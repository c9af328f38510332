"""Translates an `executorch.export.ExportRecipe`, or one of its recipe types, to a recipe of ours."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from executorch.exir import ExecutorchBackendConfig
from executorch.exir.memory_planning import MemoryPlanningAlgorithmSuite, greedy, naive
from executorch.exir.pass_base import ExportPass
from executorch.exir.passes import MemoryPlanningPass, ToOutVarPass
from executorch.export import ExportRecipe, LoweringRecipe, RecipeType, StageType
from executorch.export.recipe import Mode

from ...configs.base import TARGET_SEPARATOR
from ...configs.presets import RECIPE_TYPES
from ...configs.recipe import AtenPass, CompileOptions, EmissionPass, MethodOptions, Output, Recipe, Specialization
from ...configs.recipe_lookup import load_preset
from ...configs.verification import Verification
from ...errors import ConfigError
from ...tasks.backend.emission import SYM_SHAPE_EVAL
from ...tasks.backend.stages.edge import Edge
from ...tasks.backend.stages.edge_manager_passes import EdgeManagerPasses
from ...tasks.backend.stages.preprocess import Preprocess
from ...tasks.export.stages.export import Export
from ...tasks.quantize.stages.quantize import Quantize
from .lowering import edge_options, import_path, import_paths, manager_passes, specialization, untranslatable
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
    if kind.value not in RECIPE_TYPES:
        problem = f"there is no recipe for the type {kind.value!r}; known: {', '.join(RECIPE_TYPES)}"
        raise ConfigError(problem, field="recipe")
    loaded = load_preset(RECIPE_TYPES[kind.value])
    return Translated(loaded.name, loaded.recipe)


def translate(given: ExportRecipe) -> Translated:
    """Translates a recipe.

    Several partitioners (`ExportRecipe.combine`) become joined targets, such as ``coreml+xnnpack``, in their order.

    Raises ConfigError for functions that cannot be imported, and partitioners and quantizers that no target makes.
    """
    lowering, backend = given.lowering_recipe or LoweringRecipe(), given.executorch_backend_config
    until, stages = _last_stage(given), tuple(given.pipeline_stages or ())
    fields: dict[str, Any] = {
        "quantize": quantize(given.quantization_recipe),
        "source_transforms": source_transforms(given.quantization_recipe),
    }
    # the usual pipeline, which has no stages here, runs partitioners
    partitions = not stages or not {StageType.TO_BACKEND, StageType.TO_EDGE_TRANSFORM_AND_LOWER}.isdisjoint(stages)
    payload = specialization(lowering.partitioners if partitions else None)
    methods = dict(payload.methods)
    for method, options in method_options(backend).items():
        methods[method] = methods.get(method, MethodOptions()).model_copy(update=options.layout)
    payload = payload.model_copy(update={"methods": methods})
    aten_passes = import_paths(given.aten_transform_passes, "aten_transform_passes")
    # Functions over programs before they are lowered get what they would get from ExecuTorch.
    reads = given.aten_transform_passes or (given.quantization_recipe and given.quantization_recipe.pre_prepare_passes)
    bound = min([80.0, *(least for field, least in _BOUNDS.items() if fields[field])])
    return Translated(
        name=given.name or "recipe",
        recipe=Recipe(
            output=Output(external_data=external_data(backend)),
            specializations=(payload,),
            aten_passes=tuple(AtenPass(callable=path) for path in aten_passes),
            fold_batch_norms=not reads,
            edge=edge_options(lowering, stages),
            edge_manager_passes=manager_passes(lowering, stages),
            emission_passes=emission_passes(backend),
            compile=compile_options(backend),
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


_PASSES_OF = {
    "edge_transform_passes": {StageType.TO_EDGE_TRANSFORM_AND_LOWER, StageType.EDGE_PROGRAM_MANAGER_TRANSFORM},
    "edge_manager_transform_passes": {StageType.EDGE_PROGRAM_MANAGER_TRANSFORM},
}
"""Fields of a lowering recipe -> the stages that read them."""

_LAST = {StageType.TO_BACKEND, StageType.TO_EDGE_TRANSFORM_AND_LOWER, StageType.TO_EXECUTORCH}
"""Stages after those over whole Edge programs."""


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
        if getattr(given.lowering_recipe, field, None) and stages[-1] in _LAST and readers.isdisjoint(stages):
            names = " or ".join(sorted(stage.value for stage in readers))
            raise untranslatable("pipeline_stages", f"they leave out {names}, and there are {field}")
    last = stages[-1]
    if last is StageType.EDGE_PROGRAM_MANAGER_TRANSFORM and StageType.TO_EDGE not in stages:
        last = StageType.TO_EDGE_TRANSFORM_AND_LOWER
    if last not in _UNTIL:
        raise untranslatable("pipeline_stages", f"nothing is lowered by {last.value} alone")
    return _UNTIL[last]


_FIELD = "executorch_backend_config"
_SAME_NAMES = (
    "emit_stacktrace", "extract_delegate_segments", "segment_alignment", "constant_tensor_alignment",
    "delegate_alignment", "remove_view_copy", "emit_mutable_buffer_names", "do_quant_fusion_and_const_prop",
    "run_reinplace_pass", "enable_non_cpu_memory_planning",
)  # fmt: skip
_PLANNING = ("allow_lifetime_and_storage_overlap", "alloc_graph_input", "alloc_graph_output", "alloc_mutable_buffers")
_DEVICES = ("skip_h2d_for_method_inputs", "skip_d2h_for_method_outputs")
_SYM_SHAPE_EVAL: dict[type, Any] = {made: name for name, made in SYM_SHAPE_EVAL.items()}
_NOT_OURS = {
    "external_mutable_weights": "it is for training on the device, of programs with gradients, which no stage exports",
    "dynamic_memory_planning_mode": "ExecuTorch does not read it",
}


def compile_options(given: ExecutorchBackendConfig | None) -> CompileOptions:
    """The same as options of methods without `method_options`; ConfigError for functions and other pass classes."""
    if given is None:
        return CompileOptions()
    for name, hint in _NOT_OURS.items():
        if getattr(given, name):
            raise untranslatable(f"{_FIELD}.{name}", hint)
    if type(given.to_out_var_pass) is not ToOutVarPass:
        raise untranslatable(f"{_FIELD}.to_out_var_pass", "it is another class than ToOutVarPass")
    fields: dict[str, Any] = {name: getattr(given, name) for name in _SAME_NAMES}
    return CompileOptions(
        **fields,
        **_of_passes(given, None),
        share_mutable_buffers=_shares_buffers(given.memory_planning_pass),
        ignore_to_out_var_failure=given.to_out_var_pass.ignore_to_out_var_failure,
        # of an edge operator, the ATen one that it stands for
        reinplace_extra_ops=tuple(sorted(str(own._op) for own in given.reinplace_extra_ops or ())),  # noqa: SLF001
    )


def emission_passes(given: ExecutorchBackendConfig | None) -> tuple[EmissionPass, ...]:
    """Functions, and objects of classes, by import path; raises ConfigError for those that no path and values make."""
    passes = given.passes if given else ()
    return tuple(_emission_pass(own, f"{_FIELD}.passes[{position}]") for position, own in enumerate(passes))


def _emission_pass(given: Any, field: str) -> EmissionPass:
    if isinstance(given, FunctionType):
        return EmissionPass(callable=import_path(given, field), takes_module=True)
    path = import_path(type(given), field)
    kwargs = {
        name: vars(given)[name]
        for name, parameter in inspect.signature(type(given)).parameters.items()
        if name in vars(given) and parameter.kind in {parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY}
    }
    for name, value in kwargs.items():
        if not isinstance(value, bool | int | float | str | None):
            raise untranslatable(f"{field}.{name}", f"{value!r} is not a plain value")
    try:
        made = vars(type(given)(**kwargs))
    except TypeError as error:
        raise untranslatable(field, f"its attributes do not say how it was made: {error}") from error
    for name, value in vars(given).items():
        if name not in vars(ExportPass()) and (name not in made or not made[name] == value):
            raise untranslatable(f"{field}.{name}", f"it is not what {type(given).__name__} sets from its arguments")
    return EmissionPass(callable=path, kwargs=kwargs)


def method_options(given: ExecutorchBackendConfig | None) -> dict[str, MethodOptions]:
    """What differs by method: memory planning, dynamic sizes, and devices of inputs and outputs."""
    if given is None:
        return {}
    devices = given.propagate_device_config
    single = () if isinstance(devices, dict) else (getattr(devices, name) for name in _DEVICES)
    values = [given.memory_planning_pass, given.sym_shape_eval_pass, devices, *single]
    methods = dict.fromkeys(method for value in values if isinstance(value, dict) for method in value)
    usual, found = _of_passes(given, None), {}
    for method in methods:
        options = _of_passes(given, method)
        if differing := {name: value for name, value in options.items() if value != usual[name]}:
            found[method] = MethodOptions(**differing)
    return found


def external_data(given: ExecutorchBackendConfig | None) -> bool:
    """Whether weights go to a `.ptd` file; raises ConfigError if a function chooses which ones do."""
    external = given is not None and given.external_constants
    if not isinstance(external, bool):
        raise untranslatable(
            f"{_FIELD}.external_constants",
            "a function chooses the file of each weight; a recipe has all of them in the .pte, or with "
            "`output: {external_data: true}` all in one .ptd, so give True",
        )
    return external


def _of_passes(given: ExecutorchBackendConfig, method: str | None) -> dict[str, Any]:
    """Options of one method, or of those that the config does not name."""
    default = ExecutorchBackendConfig()
    made = _choose(given.sym_shape_eval_pass, method, default.sym_shape_eval_pass)
    sym_shape_eval = _SYM_SHAPE_EVAL.get(type(made))
    if sym_shape_eval is None:
        raise untranslatable(f"{_FIELD}.sym_shape_eval_pass", "it is neither constraint based nor hint based")
    devices = _choose(given.propagate_device_config, method, default.propagate_device_config)
    return {
        **_planning(_choose(given.memory_planning_pass, method, default.memory_planning_pass)),
        "sym_shape_eval": sym_shape_eval,
        **{name: bool(_choose(getattr(devices, name), method, default=False)) for name in _DEVICES},
    }


def _choose(given: Any, method: str | None, default: Any) -> Any:
    """What holds for a method, of one value for all of them or a mapping; as `to_executorch` chooses."""
    return given.get(method, default) if isinstance(given, dict) else given


def _shares_buffers(given: Any) -> bool:
    """Whether methods share the buffers that they change, which all of their passes must agree on."""
    planned = list(given.values()) if isinstance(given, dict) else [given]
    shared = {bool(getattr(planning, "share_mutable_buffers", False)) for planning in planned}
    if len(shared) > 1:
        raise untranslatable(f"{_FIELD}.memory_planning_pass", "share_mutable_buffers differs by method")
    return shared == {True}


def _planning(given: Any) -> dict[str, Any]:
    field = f"{_FIELD}.memory_planning_pass"
    if type(given) is not MemoryPlanningPass:
        raise untranslatable(field, f"it is a {type(given).__name__}, and not a MemoryPlanningPass")
    suite = given.memory_planning_algo
    algorithms = suite.algo_list if isinstance(suite, MemoryPlanningAlgorithmSuite) else [suite]
    if algorithms not in ([greedy], [naive]):
        raise untranslatable(f"{field}.memory_planning_algo", "it is neither greedy nor naive")
    return {
        **{name: getattr(given, name) for name in _PLANNING},
        "memory_planning_algo": algorithms[0].__name__,
        "tensor_alignment": given.alignment,
    }
