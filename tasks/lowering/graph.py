"""How a model is lowered: the DAG of its stages, to be read from top to bottom."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version
from typing import Any

from ...artifacts.digest import canonical_json
from ...artifacts.ref import ArtifactRef
from ...errors import InputError, PteforgeError, SourceError, StageFailed, VerificationFailed
from ...formats.nfat.contents import BACKEND_ID, BYTE_ALIGNMENT
from ..backend.stages.compile import Compile
from ..backend.stages.edge import Edge
from ..backend.stages.edge_manager_passes import EdgeManagerPasses
from ..backend.stages.partition import Partition
from ..backend.stages.preprocess import Preprocess
from ..engine.runner import CutShort, Done, NotCached, UserCode
from ..engine.stage import CallableParams, Stage, is_known
from ..explain.stages.bisect import Bisect
from ..explain.stages.bisect_payload import BisectPayload
from ..explain.stages.diagnose import Diagnose
from ..export.stages.aten_passes import AtenPasses
from ..export.stages.export import Export
from ..export.stages.fold_batch_norms import FoldBatchNorms
from ..file.stages.pack import Pack, PackedPayload, SelfCheckParams
from ..file.stages.report import Report
from ..file.stages.serialize import Serialize
from ..quantize.stages.calibration import Calibration
from ..quantize.stages.quantize import Quantize
from ..quantize.stages.source_transform import SourceTransform
from ..results.causes import add_known_causes, is_worth_diagnosing
from ..results.delivered import DEBUG_ROLES
from ..results.diagnosis import Diagnosis, add_findings
from ..verify.stages.baseline import Baseline
from ..verify.stages.bench import Bench
from ..verify.stages.evaluate import Evaluate
from ..verify.stages.gate import Gate
from ..verify.stages.ladder import Ladder
from ..verify.stages.prove import Prove
from ..verify.stages.search_inputs import SearchInputs
from ..verify.stages.verify import Verify
from . import quality
from .model import PlannedSpecialization, params_of
from .params import (
    compile_params,
    edge_params,
    edge_params_with_passes,
    export_params,
    fields_of,
    manager_pass_params,
    metadata_params,
    quantize_params,
    report_params,
    source_transform_params,
)
from .quantization_search import search_quantization
from .runs import Exports, MadeFile, ModelRun, Payload, Prepared, ProgramsSoFar, RecipeRun, first_of, together

STAGES: tuple[type[Stage], ...] = (
    *(Export, Diagnose, SourceTransform, FoldBatchNorms, Calibration, Quantize, AtenPasses),
    *(Edge, EdgeManagerPasses, Partition, Preprocess, Compile),
    *(Pack, Serialize, Ladder, Bisect, BisectPayload, Verify, SearchInputs, Prove),
    *(Baseline, Evaluate, Gate, Report, Bench),
)
"""Every stage, in the order in which a model goes through them; ``--until`` goes by it."""

_UNBOUNDED_DB = 40.0  # what a payload's own check asks for if verification asks for nothing
_LAYERS_NAMED = 4  # in advice


def check_stage(name: str) -> str:
    """The name of a stage; raises InputError with a close one, or with all names, where there is none."""
    known = [stage.name for stage in STAGES]
    if name in known:
        return name
    if close := difflib.get_close_matches(str(name).lower().removeprefix("to_"), known, n=1):
        raise InputError(f"there is no stage {name!r}; did you mean {close[0]!r}?")
    raise InputError(f"there is no stage {name!r}; stages: {', '.join(known)}")


def stages_after(until: str | None) -> frozenset[str]:
    """Names of the stages after one; none where everything is to run."""
    names = [stage.name for stage in STAGES]
    return frozenset(names[names.index(until) + 1 :]) if until else frozenset()


async def lower_model(run: ModelRun) -> dict[str, Report.Outputs | Exception]:
    """Lowers every recipe of a model; a recipe that fails does not keep the others from being made."""
    if not run.model.recipes:
        return {}
    exports = await export_methods(run)
    recipes = {recipe.name: run.of_recipe(recipe, stages_after(recipe.until)) for recipe in run.model.recipes}
    lowering = {name: lower_recipe(recipe_run, exports) for name, recipe_run in recipes.items()}
    return await together(lowering, return_exceptions=True)


async def lower_recipe(run: RecipeRun, exports: Exports) -> Report.Outputs:
    """Lowers a model with one recipe: payloads, the file, its proofs, and the provenance."""
    if is_known(exports.first.methods):  # else it is planned, and never ran
        run.plan.check_methods(exports.methods)
    recipe = await search_quantization(run, exports, make_file)
    run, so_far = replace(run, plan=recipe), ProgramsSoFar()
    try:
        made = await make_file(run, exports, so_far)
    except (NotCached, CutShort):
        raise
    except Exception:
        with suppress(CutShort):
            await quality.compare_programs(run, exports, so_far)  # for whoever looks for what is wrong
        raise
    proofs = {
        "verified": verify_and_search(run, exports, made),
        "accuracy": quality.score(run, exports, made),
        "numerics": quality.compare_programs(run, exports, so_far),
        "proofs": quality.prove_on_places(run, exports, made),
    }
    proven: dict[str, Any] = await together(proofs)
    quality.check_proven(run, proven["verified"], proven["proofs"])
    compiled = {name if recipe.fat else "": payload.compiled for name, payload in made.payloads.items()}
    debugging = compiled if recipe.debugs else {}
    debug_refs: dict[str, Any] = {
        role: {payload: getattr(outputs, role) for payload, outputs in debugging.items()} for role in DEBUG_ROLES
    }
    reported = await run(
        Report,
        report_params(run, made.payloads),
        Report.Inputs(
            file=made.file.file,
            data=made.file.data,
            assets=made.file.assets or exports.first.assets,
            origin=made.file.origin,
            examples=exports.examples,
            findings={key: ref for key, ref in run.findings().items() if key.split("/")[1] in ("", *made.payloads)},
            **debug_refs,
        ),
    )
    quality.check_memory(run, reported.provenance)
    if recipe.recipe.verify.bench:
        await quality.bench_on_places(run, exports, made)
    return reported


async def make_file(run: RecipeRun, exports: Exports, so_far: ProgramsSoFar) -> MadeFile:
    """Makes the file of a recipe; nothing proves it yet."""
    prepared, payloads = await make_payloads(run, exports, so_far)
    return MadeFile(await serialize(run, exports, payloads), prepared, payloads, so_far)


async def make_payloads(
    run: RecipeRun, exports: Exports, so_far: ProgramsSoFar
) -> tuple[dict[str, Prepared], dict[str, Payload]]:
    """Prepares every method's ATen program, and lowers them for each specialization at once."""
    recipe = run.plan
    prepared = await together({method: prepare(run, method, exports, so_far) for method in exports.methods})
    forks = {spec.name: lower_specialization(run, spec, exports, prepared, so_far) for spec in recipe.specializations}
    outcomes = await together(forks, return_exceptions=True)
    payloads = {
        spec.name: outcome
        for spec in recipe.specializations
        if isinstance(outcome := outcomes[spec.name], Payload)
        and (outcome.delegates or spec is recipe.specializations[-1])  # others would run in place of those after them
    }
    so_far.payloads |= payloads
    failures = [
        outcome
        for spec in recipe.specializations
        if isinstance(outcome := outcomes[spec.name], Exception)
        and (spec.required or not recipe.fat or isinstance(outcome, NotCached | CutShort))
    ]
    if failures:
        raise first_of(failures)
    return prepared, payloads


async def lower_specialization(
    run: RecipeRun,
    spec: PlannedSpecialization,
    exports: Exports,
    prepared: Mapping[str, Prepared],
    so_far: ProgramsSoFar,
) -> Payload:
    """Lowers all methods for one backend, into one payload."""
    whole = so_far.edges.setdefault(spec.name, {})
    lowering = {}
    params = {method: edge_params_with_passes(run, spec, method) for method in prepared}  # may raise: before all calls
    for method, own in params.items():
        program, why = Edge.Inputs(program=prepared[method].program), Edge.takes_weights(own)
        lowering[method] = run.on_graph(Edge, own, program, why, method=method, payload=spec.name)
    await together(lowering, into=whole)
    edges = await edge_manager_passes(run, spec, exports, whole)
    delegating = [method for method in prepared if spec.target_of(method).delegates]
    parts = await together({method: partition(run, spec, method, edges) for method in delegating})
    partitioned = {method: part.program for method, part in parts.items()}
    delegates = None
    if partitioned:
        targets, linking = spec.delegating(parts), Preprocess.Inputs(program=partitioned)
        preprocessed = await run(Preprocess, Preprocess.Params(targets=targets), linking, payload=spec.name)
        delegates = preprocessed.delegates
    programs = {method: edge.program for method, edge in edges.items()}
    linked, debugged = programs | partitioned, programs if run.plan.debugs else {}
    inputs = Compile.Inputs(program=linked, constants=exports.first.constants, delegates=delegates, edge=debugged)
    compiled = await run(Compile, compile_params(run, spec, prepared), inputs, payload=spec.name)
    return Payload(edges, linked, compiled, delegates=not parts or any(part.delegated for part in parts.values()))


async def export_methods(run: ModelRun) -> Exports:
    """Exports every method. Their names are known once one has been exported: a bucket, or else the first one."""
    buckets = run.model.buckets
    first = await export(run, buckets[0].name if buckets else None)
    source, outputs = first.call.params.source, first.outputs
    bucketed = [*dict.fromkeys(bucket.method for bucket in buckets)]
    own = bucketed or ["forward"]
    if is_known(outputs.methods):
        own = run.read_json(outputs.methods)
        run.model.check_methods(own)
    names = run.model.methods_in_file(own)
    begun = buckets[0].name if buckets else names[0]
    others = await together({method: export(run, method) for method in names if method != begun})
    methods = {method: others[method].outputs if method in others else outputs for method in names}
    check_one_build(run, methods)
    return Exports(methods, source)


def check_one_build(run: ModelRun, exports: Mapping[str, Export.Outputs]) -> None:
    """Raises SourceError unless all methods have weights of one model: each is exported from a build of its own."""
    refs = {method: export.weights for method, export in exports.items()}
    built = {method: run.read_json(ref) for method, ref in refs.items() if ref and is_known(ref)}
    for method, weights in built.items():
        first = next(iter(built))
        for owner, digests in weights.items():
            for name in sorted(digests):
                if built[first].get(owner, {}).get(name) != digests[name]:
                    raise SourceError(
                        f"the builder makes another model each time: parameter {name!r} of method {owner!r} had other "
                        f"values when {method!r} was exported than when {first!r} was. Let it draw random numbers from "
                        "torch, numpy or random, which `seed` sets, and read files that do not change; then export "
                        "the model again with --refresh"
                    )


async def export(run: ModelRun, method: str | None) -> Done:
    """Exports one method; None for the model's first one, whose name is not known yet."""
    watch_name, source = run.model.watch_name(method), run.model.source
    try:
        return await run.call(
            run.step(Export.name, method or ""),
            Export,
            export_params(run, method, watch_name),
            user_code=UserCode(watch_name, source) if source else None,
        )
    except PteforgeError as error:
        if is_worth_diagnosing(error):
            with suppress(Exception):  # the run has it; the error to report is that of the export
                add_findings(error, (await diagnose(run, method)).relevant)
        add_known_causes(Export.name, error)
        raise


async def diagnose(run: ModelRun, method: str | None) -> Diagnosis:
    """Finds out whether and why a method cannot be exported; None for the model's first one."""
    watch_name = canonical_json(["diagnose", run.model.watch_name(method)]).decode()
    # without what only eager's figures depend on
    exported = export_params(run, method, watch_name).model_dump(exclude={"drawn_inputs", "host"})
    params = Diagnose.Params(**exported)
    user_code = UserCode(watch_name, run.model.source) if run.model.source else None
    outputs = await run(Diagnose, params, method=method or "", user_code=user_code)
    return Diagnosis.from_json(run.read_json(outputs.diagnosis))


async def diagnose_methods(run: ModelRun) -> dict[str, Diagnosis | Exception]:
    """The diagnosis of every method of a model, or what was raised instead."""
    first = await diagnose(run, None)
    others = {method: diagnose(run, method) for method in first.methods[1:]}
    return {first.method: first, **await together(others, return_exceptions=True)}


async def prepare(run: RecipeRun, method: str, exports: Exports, so_far: ProgramsSoFar) -> Prepared:
    """The program of a method that is lowered for all specializations."""
    export = exports.methods[method]
    transformed = await transform(run, method)
    program = transformed.program if transformed else export.program
    if transformed:
        so_far.transformed[method] = program
    program = await fold_batch_norms(run, method, program, export)
    samples = await calibrate(run, method) if run.plan.quantizes(method) else None
    quantized = await quantize(run, method, program, exports, transformed, samples)
    if quantized:
        program = so_far.quantized[method] = quantized.program
    return Prepared(await aten_passes(run, method, program), transformed, samples, quantized)


async def transform(run: RecipeRun, method: str) -> SourceTransform.Outputs | None:
    """Exports a method again, where the recipe transforms its module or quantizers observe batches."""
    if not (run.plan.recipe.transforms or run.plan.observes_any_batch(method)):
        return None
    params, user_code = source_transform_params(run, method)
    samples = (
        {other: await calibrate(run, other) for other in run.model.calibration}
        if run.plan.recipe.rounds_by_samples
        else {}
    )
    inputs = SourceTransform.Inputs(samples={other: ref for other, ref in samples.items() if ref})
    return await run(SourceTransform, params, inputs, method=method, user_code=user_code)


async def fold_batch_norms(run: RecipeRun, method: str, program: ArtifactRef, export: Export.Outputs) -> ArtifactRef:
    """The program of a method without batch norms, where it has some that can be folded and nothing changes them."""
    recipe = run.plan.recipe
    if not recipe.fold_batch_norms or export.batch_norms is None or recipe.compile.share_mutable_buffers:
        return program
    inputs = FoldBatchNorms.Inputs(program=program)
    return (await run(FoldBatchNorms, FoldBatchNorms.Params(), inputs, method=method)).program


async def aten_passes(run: RecipeRun, method: str, program: ArtifactRef) -> ArtifactRef:
    """The program of a method after the recipe's own functions over it, if there are any."""
    if not run.plan.recipe.aten_passes:
        return program
    passes = tuple(CallableParams(source=fields_of(run, own.source)) for own in run.plan.recipe.aten_passes)
    params = AtenPasses.Params(method=method, passes=passes)
    return (await run(AtenPasses, params, AtenPasses.Inputs(program=program), method=method)).program


async def calibrate(run: RecipeRun, method: str) -> ArtifactRef | None:
    """The samples that quantizers observe, if the model has some for the method."""
    model = run.model
    if method not in model.calibration:
        return None
    dataset = model.calibration[method]
    taken = {"samples": dataset.samples, "shuffle": dataset.shuffle} if dataset else {"samples": 0}
    params = Calibration.Params(source=fields_of(run, dataset.source) if dataset else {}, seed=model.seed, **taken)
    return (await run(Calibration, params, method=method)).samples


async def quantize(
    run: RecipeRun,
    method: str,
    program: ArtifactRef,
    exports: Exports,
    transformed: SourceTransform.Outputs | None,
    samples: ArtifactRef | None,
) -> Quantize.Outputs | None:
    """Quantizes the program of a method on its samples, or else its examples, where the recipe quantizes it."""
    recipe, export = run.plan, exports.methods[method]
    if not recipe.quantizes(method):
        return None
    shares = recipe.recipe.compile.share_mutable_buffers
    inputs = Quantize.Inputs(
        program=program,
        examples=export.examples,
        samples=samples,
        transformed=transformed.quantization if transformed else None,
        shaped=export.program if recipe.observes_any_batch(method) else None,
        others={other: made for other, made in exports.programs.items() if shares and other != method},
    )
    params = quantize_params(run, one_of_several=len(exports.methods) > 1)
    return await run(Quantize, params, inputs, method=method)


async def edge_manager_passes(
    run: RecipeRun, spec: PlannedSpecialization, exports: Exports, edges: Mapping[str, Edge.Outputs]
) -> Mapping[str, Edge.Outputs]:
    """The Edge programs after the recipe's own functions over all of them, if there are any before `partition`."""
    passes = manager_pass_params(run, Partition.name)
    if not passes:
        return edges
    programs = {method: edge.program for method, edge in edges.items()}
    inputs = EdgeManagerPasses.Inputs(program=programs, constants=exports.first.constants)
    changing = {}
    for method in edges:
        params = EdgeManagerPasses.Params(method=method, passes=passes)
        changing[method] = run(EdgeManagerPasses, params, inputs, method=method, payload=spec.name)
    changed = await together(changing)
    return {method: Edge.Outputs(program=own.program, state=own.state) for method, own in changed.items()}


async def partition(
    run: RecipeRun, spec: PlannedSpecialization, method: str, edges: Mapping[str, Edge.Outputs]
) -> Partition.Outputs:
    """One method's partitions, not linked yet. Methods that share state see which buffers the others change."""
    shares = run.plan.recipe.compile.share_mutable_buffers
    params = Partition.Params(target=params_of(spec.target_of(method)), edge=edge_params(run.plan, spec, method))
    state = {other: edge.state for other, edge in edges.items() if shares and other != method}
    inputs = Partition.Inputs(program=edges[method].program, state=state)
    why = Partition.takes_weights(params)
    return await run.on_graph(Partition, params, inputs, why, method=method, payload=spec.name)


async def serialize(run: RecipeRun, exports: Exports, payloads: Mapping[str, Payload]) -> Serialize.Outputs:
    """The file: the only payload, or a container of several behind an outer program."""
    recipe = run.plan
    output, fallback = recipe.recipe.output, recipe.specializations[-1]
    compiled = payloads[fallback.name].compiled
    of_source = exports.first.metadata if (run.model.metadata or {}).get("from_source", True) else None
    sizes = {method: export.sizes for method, export in exports.methods.items() if export.sizes}
    buckets = {method: export.bucket for method, export in exports.methods.items() if export.bucket}
    described = run.model.metadata is not None or of_source is not None
    params = Serialize.Params(
        form=output.form,
        header=f"{recipe.name}.pte" if output.form == "header" else "",
        methods=tuple(exports.methods),
        backends=(BACKEND_ID,) if recipe.fat else fallback.backends,
        external_data=bool(output.external_data),
        metadata=metadata_params(run, payloads, described=described) if described or sizes or buckets else None,
    )
    inputs = Serialize.Inputs(
        payload=compiled.payload,
        assets=exports.first.assets if output.form == "header" else None,
        container=await pack(run, exports, payloads) if recipe.fat else None,
        data=compiled.data if output.external_data and not recipe.fat else None,
        metadata=of_source,
        sizes=sizes,
        buckets=buckets,
    )
    return await run(Serialize, params, inputs)


async def pack(run: RecipeRun, exports: Exports, payloads: Mapping[str, Payload]) -> ArtifactRef:
    recipe = run.plan
    present = [spec for spec in recipe.specializations if spec.name in payloads]
    check, bound = recipe.recipe.output.self_check, recipe.bounds.min_sqnr_db
    edges = payloads[present[-1].name].edges if check else {}
    own_check = None
    if check:
        least = _UNBOUNDED_DB if bound is None else bound
        own_check = SelfCheckParams(**check.model_dump(), drawn=not recipe.quantizers, min_sqnr_db=least)
    params = Pack.Params(
        payloads=tuple(PackedPayload(name=spec.name, backends=spec.backends) for spec in present),
        methods=tuple(exports.methods),
        alignment=max(BYTE_ALIGNMENT, recipe.recipe.compile.segment_alignment),
        executorch_version=version("executorch"),
        share_transposed=recipe.recipe.output.share_transposed,
        self_check=own_check,
    )
    inputs = Pack.Inputs(
        payload={name: payload.compiled.payload for name, payload in payloads.items()},
        examples=exports.examples if check else {},
        state={method: edge.state for method, edge in edges.items()},
    )
    return (await run(Pack, params, inputs)).container


async def verify_and_search(run: RecipeRun, exports: Exports, made: MadeFile) -> ArtifactRef:
    """The figures of the file, followed by a search for inputs; adds advice to the error of a file that fails."""
    try:
        figures = await quality.verify_file(run, exports, made)
    except (StageFailed, VerificationFailed) as error:
        if advice := await _advice(run, exports, made, str(error)):
            error.args = (f"{error.args[0]}; {advice}",)
        raise
    await quality.search_inputs(run, exports, made)
    return figures


async def _advice(run: RecipeRun, exports: Exports, made: MadeFile, problem: str) -> str:
    """Advice for a file whose verification failed; empty if there is none."""
    recipe, prepared = run.plan, made.prepared
    changed = quality.count_changes(run, made.so_far) if "sequence" in problem else {}
    if state := sorted(name for name, times in changed.items() if times > 1):
        return (
            f"several methods change {', '.join(map(repr, state))}, and each has a copy of its own: "
            "`compile: {share_mutable_buffers: true}` in the recipe makes that one"
        )
    if "searched [" in problem or not re.search(r"output \d+: SQNR", problem):
        return ""  # on inputs of a search, the quantized program is right
    if "its examples pass" in problem:
        calibration = run.model.calibration
        if on_examples := [name for name in prepared if recipe.calibrates(name) and name not in calibration]:
            return (
                f"quantizers of {', '.join(map(repr, on_examples))} observed the example inputs only, and values "
                "beyond theirs are clipped: give the model `calibration` samples like those that it will meet"
            )
        if not recipe.asks_for_drawn_inputs:
            return ""  # layers are ranked by the examples, which pass
    try:
        return await _way_out(run, exports, await quality.rank(run, exports, prepared))
    except (NotCached, CutShort):
        raise
    except Exception:  # noqa: BLE001 - the failure that it is about is what counts
        return ""


async def _way_out(run: RecipeRun, exports: Exports, layers: tuple[str, ...]) -> str:
    """Advice on which layers to leave in floating point, if half of those that lose by quantization are enough.

    Tries files with a 16th of the layers, and then twice as many each time; then one without fixed scales.
    """
    if not layers:
        return ""
    worst = f"quantization loses most in {', '.join(map(repr, layers[:_LAYERS_NAMED]))}, the worst one first"
    for count in dict.fromkeys(-(-len(layers) * share // 16) for share in (1, 2, 4, 8)):
        recipe = run.plan.without(layers[:count])
        if await _passes(run.attempt(recipe), exports):
            left = f"`quantize: {{exclude: {list(recipe.excluded)}}}` in the recipe"
            return f"{worst}: the file passes with {count} of {len(layers)} layers in floating point, with {left}"
    advice = f"{worst}, and the file does not pass with half of {len(layers)} layers in floating point"
    computed = run.plan.with_computed_scales()
    if computed and await _passes(run.attempt(computed), exports):
        advice += "; it passes with scales that it computes itself: `quantize: {options: {dynamic: true}}` in the "
        advice += "recipe, as in xnnpack-int8-dynamic"
    return advice


async def _passes(run: RecipeRun, exports: Exports) -> bool:
    with suppress(StageFailed, VerificationFailed):
        await quality.verify_file(run, exports, await make_file(run, exports, ProgramsSoFar()))
        return True
    return False


async def lower_to_ladder(run: ModelRun) -> dict[str, quality.Climbed | Exception]:
    """Lowers a model's recipes up to the ladder, without verification, so it also works on files that fail it."""
    exports = await export_methods(run)

    async def climb(recipe_run: RecipeRun) -> quality.Climbed:
        recipe_run.plan.check_methods(exports.methods)
        so_far = ProgramsSoFar()
        try:
            await make_payloads(recipe_run, exports, so_far)
        except (NotCached, CutShort):
            raise
        except Exception:  # noqa: BLE001, S110 - the run has it; the ladder shows the programs that were made
            pass
        return await quality.ladder(recipe_run, exports, so_far)

    recipes = {recipe.name: run.of_recipe(recipe, stages_after(recipe.until)) for recipe in run.model.recipes}
    climbing = {name: climb(recipe_run) for name, recipe_run in recipes.items()}
    return await together(climbing, return_exceptions=True)
