"""Derives the params of stages from a recipe."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ...artifacts.digest import canonical_json, digest_json
from ...configs.quantize import CallableTransform, EqualizingTransform, TorchaoTransform
from ...configs.quantize import SourceTransform as Transform
from ...configs.sources import BuilderSource, ProgramSource
from ..backend.stages.compile import Compile, EmissionPassParams
from ..backend.stages.edge import Edge, PassParams
from ..backend.stages.edge_manager_passes import ManagerPassParams
from ..engine.keys.search import ModuleSearch, host_capability
from ..engine.keys.source import source_fields
from ..engine.runner import UserCode
from ..engine.stage import CallableParams
from ..export.stages.export import Export
from ..file.stages.report import Report
from ..file.stages.serialize import MetadataParams
from ..quantize.stages.quantize import Quantize
from ..quantize.stages.source_transform import SourceTransform
from ..quantize.torchao_configs import EqualizingParams, TorchaoParams, class_name
from ..targets import TargetParams
from .model import PlannedRecipe, PlannedSpecialization, params_of
from .runs import RecipeRun, StageCalls


def export_params(run: StageCalls, method: str | None, watch_name: str) -> Export.Params:
    """Params of `export`; a model in memory has no source, and its key is completed by whoever exports it."""
    model, bucket = run.model, run.model.bucket(method)
    watched = run.store.ledger.watched(watch_name) if model.source else ()
    return Export.Params(
        source=fields_of(run, model.source, watched) if model.source else {},
        method=bucket.method if bucket else method,
        bucket=bucket,
        seed=model.seed,
        strict=model.strict,
        dynamic_shapes=model.dynamic_shapes,
        drawn_inputs=model.random_inputs,
        host=host_capability() if model.source else "",
    )


def source_transform_params(run: RecipeRun, method: str) -> tuple[SourceTransform.Params, UserCode | None]:
    """Params of `source_transform`, with digests of the user's code, and that code."""
    model, transforms = run.model, run.plan.recipe.transforms
    callables = tuple(source for transform in transforms if (source := _code_of(transform)))
    called = [[source.builder, source.kwargs] for source in callables]
    watch_name = canonical_json(["source_transform", model.watch_name(method), called]).decode()
    params = SourceTransform.Params(
        **export_params(run, method, watch_name).model_dump(exclude={"drawn_inputs"}),
        transforms=tuple(_transform_params(run, transform) for transform in transforms),
        dynamic_batch=run.plan.observes_any_batch(method),
    )
    return params, UserCode(watch_name, model.source, callables) if model.source else None


def _code_of(transform: Transform) -> BuilderSource | None:
    """The user's function that a transform calls, if it calls one."""
    if isinstance(transform, CallableTransform):
        return BuilderSource(builder=transform.callable, kwargs=transform.kwargs, files=transform.files)
    filter_fn = transform.filter_fn if isinstance(transform, TorchaoTransform) else None
    return BuilderSource(builder=filter_fn) if filter_fn else None


def _transform_params(run: RecipeRun, transform: Transform) -> TorchaoParams | CallableParams | EqualizingParams:
    if isinstance(transform, EqualizingTransform):
        return EqualizingParams(**transform.model_dump())
    code = _code_of(transform)
    called = CallableParams(source=fields_of(run, code)) if code else None
    if isinstance(transform, TorchaoTransform):
        chosen = {"intx_choose_qparams_algorithm": "hqq_scale_only"} if transform.rounding == "hqq" else {}
        return TorchaoParams(
            config=class_name(transform.torchao),
            fields=transform.params | chosen,
            include=transform.filter,
            exclude=transform.exclude,
            layers=transform.layers,
            at_least=transform.at_least,
            filter_fn=called,
            otherwise=transform.otherwise and transform.otherwise | chosen,
            rounding="gptq" if transform.rounding == "gptq" else "nearest",
        )
    assert called  # noqa: S101 - the other kind of transform is a function
    return called


def edge_params(recipe: PlannedRecipe, spec: PlannedSpecialization, method: str) -> Edge.Params:
    """How a method becomes an Edge program, without the recipe's own passes, which later stages need not know."""
    options, target = recipe.edge_options(spec, method), spec.target_of(method)
    preserved = target.decomposition_options() if options.preserve_for_target else None
    passes = target.pass_options()
    decomposes = preserved is not None if target.leaves_affine else not target.delegates
    return Edge.Params(
        preserve_for=None if preserved is None else TargetParams(name=target.name, options=preserved),
        passes_of=None if passes is None else TargetParams(name=target.name, options=passes),
        preserve_operators=options.preserve_operators,
        check_ir_validity=options.check_ir_validity and target.keeps_dialect,
        skip_dim_order=options.skip_dim_order or target.skips_dim_order,
        decompose_affine=bool(recipe.recipe.transforms) and decomposes,
        core_aten_exceptions=options.core_aten_ops_exception_list,
    )


def edge_params_with_passes(run: RecipeRun, spec: PlannedSpecialization, method: str) -> Edge.Params:
    """Params of `edge`: with the recipe's own passes over the method, and digests of their code."""
    passes = tuple(
        PassParams(source=fields_of(run, own.source), method=method if own.takes_program else None)
        for own in run.plan.edge_options(spec, method).passes
    )
    params = edge_params(run.plan, spec, method)
    return params.model_copy(update={"passes": passes}) if passes else params


def quantize_params(run: RecipeRun, *, one_of_several: bool) -> Quantize.Params:
    """The recipe's quantizers, and its functions between their steps, with digests of their code."""
    quantization = run.plan.recipe.quantize
    passes = {
        step: tuple(CallableParams(source=fields_of(run, function.source)) for function in functions)
        for step, functions in (quantization.passes if quantization else {}).items()
    }
    filters = {
        position: CallableParams(source=fields_of(run, BuilderSource(builder=chosen.filter_fn)))
        for position, chosen in enumerate(quantization.chosen if quantization else ())
        if chosen.filter_fn
    }
    return Quantize.Params(
        quantizers=run.plan.quantizers,
        filters=filters,
        exclude=run.plan.excluded,
        smooth=bool(quantization and quantization.smooth),
        correct_biases=bool(quantization and quantization.correct_biases),
        at_least=quantization and quantization.at_least,
        one_of_several=one_of_several,
        **passes,
    )


def manager_pass_params(run: RecipeRun, before: str) -> tuple[ManagerPassParams, ...]:
    """The recipe's functions over the Edge programs of all methods before a stage, with digests of their code."""
    return tuple(
        ManagerPassParams(source=fields_of(run, own.source), takes_program=own.takes_program)
        for own in run.plan.recipe.edge_manager_passes
        if own.before == before
    )


def compile_params(run: RecipeRun, spec: PlannedSpecialization, methods: Collection[str]) -> Compile.Params:
    """How the methods become one payload."""
    recipe = run.plan
    options = recipe.recipe.compile_options
    return Compile.Params(
        options=options,
        edge=_common([edge_params(recipe, spec, method) for method in methods]),
        methods={method: options.model_copy(update=own.layout) for method, own in spec.methods.items() if own.layout},
        state_order=tuple(methods) if options.share_mutable_buffers else (),
        external_data=recipe.recipe.output.split_weights,
        edge_manager_passes=manager_pass_params(run, Compile.name),
        emission_passes=tuple(
            EmissionPassParams(source=fields_of(run, own.source), takes_module=own.takes_module)
            for own in recipe.recipe.emission_passes
        ),
    )


def metadata_params(run: RecipeRun, payloads: Collection[str], *, described: bool) -> MetadataParams:
    """What the zoo says about the model, and what a file that is `described` is made from and with."""
    recipe, layout = run.plan, run.plan.recipe.compile
    targets = {spec.name: params_of(spec.target).model_dump(mode="json") for spec in recipe.specializations}
    origin = {
        "format": 1,  # of these fields, whose digest a file's metadata has
        "model": run.model.name,
        "recipe": recipe.name,
        "specializations": targets,
        "left_out": list(_left_out(recipe, payloads)),
        "toolchain": recipe.versions,
    }
    return MetadataParams(
        written=dict(run.model.metadata or {}),
        origin=origin if described else {},
        segment_alignment=layout.segment_alignment,
        delegate_alignment=layout.delegate_alignment,
    )


def _left_out(recipe: PlannedRecipe, payloads: Collection[str]) -> tuple[str, ...]:
    """Names of specializations that could not be made and were not required."""
    return (*recipe.unavailable, *(spec.name for spec in recipe.specializations if spec.name not in payloads))


def report_params(run: RecipeRun, payloads: Collection[str]) -> Report.Params:
    """What the provenance says besides what the report reads."""
    recipe = run.plan
    return Report.Params(
        model=run.model.name,
        recipe=recipe.name,
        specializations={spec.name: params_of(spec.target) for spec in recipe.specializations},
        left_out=_left_out(recipe, payloads),
        stage_keys={step.part: done.key.digest() for step, done in run.done.items()},
        versions=recipe.versions,
        bounds=recipe.bounds,
        unreachable={place.name: place.unreachable for place in recipe.places if place.unreachable},
        findings={recipe.found.role: recipe.found.to_json()} if recipe.found else {},
    )


def _common(edges: list[Edge.Params]) -> Edge.Params:
    """What holds for all of them. Where they differ, `edge` has checked each against its own."""
    if all(params == edges[0] for params in edges):
        return edges[0]
    preserved = dict.fromkeys(operator for params in edges for operator in params.preserve_operators)
    exceptions = dict.fromkeys(operator for params in edges for operator in params.core_aten_exceptions)
    return Edge.Params(
        preserve_operators=tuple(preserved),
        check_ir_validity=False,
        skip_dim_order=all(params.skip_dim_order for params in edges),
        core_aten_exceptions=tuple(exceptions),
    )


def fields_of(run: StageCalls, source: BuilderSource | ProgramSource, watched: tuple[str, ...] = ()) -> dict[str, Any]:
    """Key fields of the user's code, whose digest the run keeps."""
    finder = run.finder or ModuleSearch(run.model.python_path)
    fields = source_fields(source, finder, watched, folder=run.model.folder, digest=run.store.inputs.digest)
    run.sources[source.model_dump_json(), watched] = digest_json(fields)
    return fields
