"""How a model is lowered: the DAG of its stages, to be read from top to bottom."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

from ..artifacts.digest import canonical_json
from ..artifacts.ref import ArtifactRef
from ..configs.sources import BuilderSource
from ..configs.verification import AccuracyGate
from ..errors import AccuracyMissed, InputError, PteforgeError, SourceError, StageFailed, VerificationFailed
from ..formats.nfat.contents import BACKEND_ID, BYTE_ALIGNMENT
from .accuracy import Scores
from .causes import add_known_causes, is_worth_diagnosing
from .delivered import DEBUG_ROLES
from .diagnosis import Diagnosis, add_findings
from .keys.versions import host_capability
from .layer_search import Attempt, FoundLayers, next_count, rank_layers
from .model import PlannedRecipe, PlannedSpecialization, params_of
from .numerics import NodeLosses
from .runner import CutShort, NotCached, UserCode, first_of, together
from .scope import Scope
from .stage import Stage, is_known
from .stage_params import (
    aten_pass_params,
    compile_params,
    diagnose_params,
    edge_params,
    export_params,
    fields_of,
    manager_pass_params,
    metadata_params,
    pass_params,
    quantize_params,
    report_params,
    source_transform_params,
)
from .stages.aten_passes import AtenPasses
from .stages.baseline import Baseline
from .stages.bisect import Bisect
from .stages.bisect_payload import BisectPayload
from .stages.calibration import Calibration
from .stages.compile import Compile
from .stages.diagnose import Diagnose
from .stages.edge import Edge
from .stages.edge_manager_passes import EdgeManagerPasses
from .stages.evaluate import Evaluate
from .stages.export import Export
from .stages.fold_batch_norms import FoldBatchNorms
from .stages.gate import Gate, judge
from .stages.ladder import Ladder, RungParams
from .stages.pack import Pack, PackedPayload
from .stages.partition import Partition
from .stages.preprocess import Preprocess
from .stages.quantize import Quantize
from .stages.report import Report
from .stages.serialize import Serialize
from .stages.source_transform import SourceTransform
from .stages.verify import Verify

STAGES: tuple[type[Stage], ...] = (
    Export,
    Diagnose,
    SourceTransform,
    FoldBatchNorms,
    Calibration,
    Quantize,
    AtenPasses,
    Edge,
    EdgeManagerPasses,
    Partition,
    Preprocess,
    Compile,
    Pack,
    Serialize,
    Ladder,
    Bisect,
    BisectPayload,
    Verify,
    Baseline,
    Evaluate,
    Gate,
    Report,
)
"""Every stage, in the order in which a model goes through them; ``--until`` goes by it."""


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


Exports = Mapping[str, Export.Outputs]
"""Method name to its export, in the model's order."""

Programs = Mapping[str, ArtifactRef]
"""Method name to a program."""


@dataclass(frozen=True)
class Payload:
    """The result of a specialization: its Edge programs by method, and the payload."""

    edges: Mapping[str, Edge.Outputs]
    compiled: Compile.Outputs


async def lower_model(run: Scope) -> dict[str, Report.Outputs | Exception]:
    """Lowers every recipe of a model; a recipe that fails does not keep the others from being made."""
    if not run.model.recipes:
        return {}
    exports = await export_methods(run)
    recipes = {recipe.name: run.of_recipe(recipe, stages_after(recipe.until)) for recipe in run.model.recipes}
    lowering = {name: lower_recipe(scope, exports) for name, scope in recipes.items()}
    return await together(lowering, return_exceptions=True)


async def lower_recipe(run: Scope, exports: Exports) -> Report.Outputs:
    """Lowers a model with one recipe: payloads, the file, its proofs, and the provenance."""
    run.plan.check_methods(exports)
    await search_layers(run, exports)
    recipe = run.plan
    try:
        payloads = await make_payloads(run, exports)
        file = await serialize(run, exports, payloads)
    except (NotCached, CutShort):
        raise
    except Exception:
        with suppress(CutShort):
            await compare_programs(run, exports)  # as far as the recipe came: for whoever looks for what is wrong
        raise
    proofs = {
        "figures": verify(run, exports, file),
        "accuracy": score(run, file),
        "numerics": compare_programs(run, exports),
    }
    proven: dict[str, Any] = await together(proofs)
    debugging = debug_outputs(recipe, payloads)
    debug_refs: dict[str, Any] = {
        role: {payload: getattr(compiled, role) for payload, compiled in debugging.items()} for role in DEBUG_ROLES
    }
    return await run(
        Report,
        report_params(run, payloads),
        Report.Inputs(
            file=file.file,
            data=file.data,
            assets=next(iter(exports.values())).assets,
            origin=file.origin,
            examples={method: export.examples for method, export in exports.items()},
            quantization={method: reached for method in exports if (reached := _reached(run, method))},
            **proven,
            **debug_refs,
        ),
    )


def _reached(run: Scope, method: str) -> ArtifactRef | None:
    """What quantization reached of a method: that of transforms, where nothing quantizes afterwards."""
    done = run.find(Quantize.name, method=method) or run.find(SourceTransform.name, method=method)
    return done.outputs.reached if done else None


async def search_layers(run: Scope, exports: Exports) -> None:
    """Leaves the fewest layers in floating point with which the file passes its gate, if the recipe searches for them.

    Raises AccuracyMissed if no file passes that the search makes.
    """
    recipe, gate = run.plan, run.plan.gate
    if recipe.search is None or gate is None:
        return
    attempts: list[Attempt] = []
    ranked: tuple[str, ...] = ()
    while len(attempts) < recipe.search.budget and (count := next_count(attempts, len(ranked))) is not None:
        scope = run.attempt(recipe.without(ranked[:count]))
        file = await serialize(scope, exports, await make_payloads(scope, exports))
        bounds, refs = await make_scores(scope, gate, file)
        if not all(map(is_known, refs.values())):
            return  # planned for a store that does not have them
        scores = {role: Scores.from_json(run.read_json(ref)) for role, ref in refs.items()}
        judged = judge(bounds, scores["scores"], scores.get("baseline"))
        attempts.append(Attempt(count, judged.worst, passes=not judged.misses()))
        if not (ranked or attempts[-1].passes):
            ranked = await rank(scope, exports)
    passing = [attempt.layers for attempt in attempts if attempt.passes]
    if not passing:
        best = max(attempts, key=lambda attempt: attempt.score)
        raise AccuracyMissed(
            f"no file passes that `quantize.search` made. Of {len(attempts)} ({recipe.search.budget} are allowed), the "
            f"best scores {best.score:.6g}, with {best.layers} of {len(ranked)} layers in floating point; allow more "
            "with `budget`, or accept a larger `drop`"
        )
    layers = ranked[: min(passing)]
    chosen = recipe.without(layers)
    blobs = {blob for export in exports.values() for blob in run.store.objects_of(export.program)}
    size = sum(blob.size for blob in blobs)
    found = FoundLayers(layers, chosen.excluded, len(ranked), tuple(attempts), size)
    run.recipe = replace(chosen, found=found)


async def rank(run: Scope, exports: Exports) -> tuple[str, ...]:
    """The layers that lose something by quantization, the largest loss first."""
    before = {method: export.program for method, export in exports.items()} | _made(run, SourceTransform, exports)
    outcomes = await together(
        {
            method: run(
                Bisect,
                Bisect.Params(host=host_capability()),
                Bisect.Inputs(
                    before=before[method], after=after, origin=before[method], examples=exports[method].examples
                ),
                method=method,
            )
            for method, after in _made(run, Quantize, exports).items()
        }
    )
    return rank_layers(NodeLosses.from_json(run.read_json(made.nodes)) for made in outcomes.values())


async def make_payloads(run: Scope, exports: Exports) -> dict[str, Payload]:
    """Prepares every method's ATen program, and lowers them for each specialization at once."""
    recipe = run.plan
    programs = await together({method: prepare(run, method, exports) for method in exports})
    forks = {spec.name: lower_specialization(run, spec, exports, programs) for spec in recipe.specializations}
    outcomes = await together(forks, return_exceptions=True)
    failures = [
        outcome
        for spec in recipe.specializations
        if isinstance(outcome := outcomes[spec.name], Exception)
        and (spec.required or not recipe.fat or isinstance(outcome, NotCached | CutShort))
    ]
    if failures:
        raise first_of(failures)
    return {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, Payload)}


async def lower_specialization(
    run: Scope, spec: PlannedSpecialization, exports: Exports, programs: Programs
) -> Payload:
    """Lowers all methods for one backend, into one payload."""
    whole = await together({method: to_edge(run, spec, method, program) for method, program in programs.items()})
    edges = await edge_manager_passes(run, spec, exports, whole)
    delegating = [method for method in programs if spec.target_of(method).delegates]
    parts = await together({method: partition(run, spec, method, edges) for method in delegating})
    partitioned = {method: part.program for method, part in parts.items()}
    delegates = await preprocess(run, spec, partitioned) if partitioned else None
    linked = {method: partitioned.get(method, edge.program) for method, edge in edges.items()}
    recipe = run.plan
    compiled = await run(
        Compile,
        compile_params(run, spec, programs),
        Compile.Inputs(
            program=linked,
            constants=next(iter(exports.values())).constants,
            delegates=delegates,
            edge={method: edge.program for method, edge in edges.items()} if recipe.debugs else {},
        ),
        payload=spec.name,
    )
    return Payload(edges, compiled)


async def export_methods(run: Scope) -> Exports:
    """Exports every method; which there are is known when the first one has been exported."""
    first = await export(run, None)
    methods = run.methods(first.methods)
    others = await together({method: export(run, method) for method in methods[1:]})
    if unknown := sorted(set(run.model.calibration) - set(methods)):
        raise SourceError(f"calibration names the methods {unknown}; the model has {methods}")
    exports = {methods[0]: first, **others}
    check_one_build(run, exports)
    return exports


def check_one_build(run: Scope, exports: Exports) -> None:
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


async def export(run: Scope, method: str | None) -> Export.Outputs:
    """Exports one method; None for the model's first one, whose name is not known yet."""
    try:
        return await run(
            Export,
            export_params(run, method, run.model.watch_name(method)),
            method=method or "",
            user_code=UserCode(run.model.watch_name(method), run.model.source) if run.model.source else None,
        )
    except PteforgeError as error:
        if is_worth_diagnosing(error):
            await explain(run, method, error)
        add_known_causes(Export.name, error)
        raise


async def explain(run: Scope, method: str | None, error: PteforgeError) -> None:
    """Diagnoses a method that cannot be exported, and adds the findings to the error."""
    try:
        findings = (await diagnose(run, method)).relevant
    except Exception:  # noqa: BLE001 - the scope has it; the error to report is that of the export
        return
    add_findings(error, findings)


async def diagnose(run: Scope, method: str | None) -> Diagnosis:
    """Finds out whether a method can be exported, and why not; None for the model's first one."""
    params, user_code = diagnose_params(run, method)
    outputs = await run(Diagnose, params, method=method or "", user_code=user_code)
    return Diagnosis.from_json(run.read_json(outputs.diagnosis))


async def diagnose_methods(run: Scope) -> dict[str, Diagnosis | Exception]:
    """Diagnoses every method of a model; what was raised in place of a diagnosis, for those that have none."""
    first = await diagnose(run, None)
    diagnoses = {method: diagnose(run, method) for method in first.methods[1:]}
    others = await together(diagnoses, return_exceptions=True)
    return {first.method: first, **others}


async def prepare(run: Scope, method: str, exports: Exports) -> ArtifactRef:
    """The program of a method that is lowered for all specializations."""
    export = exports[method]
    transformed = await transform(run, method, export)
    folded = await fold_batch_norms(run, method, transformed, export)
    quantized = await quantize(run, method, folded, exports)
    return await aten_passes(run, method, quantized)


async def transform(run: Scope, method: str, export: Export.Outputs) -> ArtifactRef:
    """The program of a method: exported again, where the recipe transforms its module or quantizers observe batches."""
    if not (run.plan.recipe.source_transforms or run.plan.observes_any_batch(method)):
        return export.program
    params, user_code = source_transform_params(run, method)
    return (await run(SourceTransform, params, method=method, user_code=user_code)).program


async def fold_batch_norms(run: Scope, method: str, program: ArtifactRef, export: Export.Outputs) -> ArtifactRef:
    """The program of a method without batch norms, where it has some that can be folded and nothing changes them."""
    recipe = run.plan.recipe
    if not recipe.fold_batch_norms or export.batch_norms is None or recipe.compile.share_mutable_buffers:
        return program
    outputs = await run(FoldBatchNorms, FoldBatchNorms.Params(), FoldBatchNorms.Inputs(program=program), method=method)
    return outputs.program


async def aten_passes(run: Scope, method: str, program: ArtifactRef) -> ArtifactRef:
    """The program of a method after the recipe's own functions over it, if there are any."""
    if not run.plan.recipe.aten_passes:
        return program
    outputs = await run(AtenPasses, aten_pass_params(run, method), AtenPasses.Inputs(program=program), method=method)
    return outputs.program


async def quantize(run: Scope, method: str, program: ArtifactRef, exports: Exports) -> ArtifactRef:
    """The program of a method, quantized on its calibration data or examples where the recipe quantizes it."""
    recipe, model = run.plan, run.model
    if not recipe.quantizes(method):
        return program
    transformed = run.find(SourceTransform.name, method=method)
    export, samples = exports[method], None
    if method in model.calibration:
        dataset = model.calibration[method]
        source = dataset and BuilderSource(builder=dataset.dataset, kwargs=dataset.kwargs, files=dataset.files)
        params = Calibration.Params(
            source=fields_of(run, source) if source else {},
            seed=model.seed,
            samples=dataset.samples if dataset else 0,
        )
        samples = (await run(Calibration, params, method=method)).samples
    outputs = await run(
        Quantize,
        quantize_params(run),
        Quantize.Inputs(
            program=program,
            examples=export.examples,
            samples=samples,
            transformed=transformed.outputs.reached if transformed else None,
            shaped=export.program if recipe.observes_any_batch(method) else None,
            others={
                other: made.program
                for other, made in exports.items()
                if recipe.recipe.compile.share_mutable_buffers and other != method
            },
        ),
        method=method,
    )
    return outputs.program


async def to_edge(run: Scope, spec: PlannedSpecialization, method: str, program: ArtifactRef) -> Edge.Outputs:
    params = edge_params(run.plan, spec, method)
    if passes := run.plan.edge_options(spec, method).passes:
        params = params.model_copy(update={"passes": tuple(pass_params(run, method, passes))})
    inputs = Edge.Inputs(program=program)
    return await run.on_graph(Edge, params, inputs, method=method, payload=spec.name)


async def edge_manager_passes(
    run: Scope, spec: PlannedSpecialization, exports: Exports, edges: Mapping[str, Edge.Outputs]
) -> Mapping[str, Edge.Outputs]:
    """The Edge programs after the recipe's own functions over all of them, if there are any for whole programs."""
    passes = manager_pass_params(run, Partition.name)
    if not passes:
        return edges
    inputs = EdgeManagerPasses.Inputs(
        program={method: edge.program for method, edge in edges.items()},
        constants=next(iter(exports.values())).constants,
    )
    made = await together(
        {
            method: run(
                EdgeManagerPasses,
                EdgeManagerPasses.Params(method=method, passes=passes),
                inputs,
                method=method,
                payload=spec.name,
            )
            for method in edges
        }
    )
    return {method: Edge.Outputs(program=own.program, state=own.state) for method, own in made.items()}


async def partition(
    run: Scope, spec: PlannedSpecialization, method: str, edges: Mapping[str, Edge.Outputs]
) -> Partition.Outputs:
    """One method's partitions, unlinked. Methods that share state see which buffers the others change."""
    recipe = run.plan
    shares = recipe.recipe.compile.share_mutable_buffers
    return await run.on_graph(
        Partition,
        Partition.Params(target=params_of(spec.target_of(method)), edge=edge_params(recipe, spec, method)),
        Partition.Inputs(
            program=edges[method].program,
            state={other: edge.state for other, edge in edges.items() if shares and other != method},
        ),
        method=method,
        payload=spec.name,
    )


async def preprocess(run: Scope, spec: PlannedSpecialization, partitioned: Programs) -> ArtifactRef:
    params = Preprocess.Params(targets=spec.delegating(partitioned))
    return (await run(Preprocess, params, Preprocess.Inputs(program=partitioned), payload=spec.name)).delegates


async def serialize(run: Scope, exports: Exports, payloads: Mapping[str, Payload]) -> Serialize.Outputs:
    """The file: the only payload, or a container of several behind an outer program."""
    recipe = run.plan
    output, fallback = recipe.recipe.output, recipe.specializations[-1]
    compiled = payloads[fallback.name].compiled
    of_source = next(iter(exports.values())).metadata if (run.model.metadata or {}).get("from_source", True) else None
    sizes = {method: export.sizes for method, export in exports.items() if export.sizes}
    described = run.model.metadata is not None or of_source is not None
    return await run(
        Serialize,
        Serialize.Params(
            form=output.form,
            methods=tuple(exports),
            backends=(BACKEND_ID,) if recipe.fat else fallback.backends,
            external_data=output.external_data,
            metadata=metadata_params(run, payloads, described=described) if described or sizes else None,
        ),
        Serialize.Inputs(
            payload=compiled.payload,
            container=await pack(run, exports, payloads) if recipe.fat else None,
            data=compiled.data if output.external_data and not recipe.fat else None,
            metadata=of_source,
            sizes=sizes,
        ),
    )


async def pack(run: Scope, exports: Exports, payloads: Mapping[str, Payload]) -> ArtifactRef:
    recipe = run.plan
    present = [spec for spec in recipe.specializations if spec.name in payloads]
    outputs = await run(
        Pack,
        Pack.Params(
            payloads=tuple(PackedPayload(name=spec.name, backends=spec.backends) for spec in present),
            methods=tuple(exports),
            alignment=max(BYTE_ALIGNMENT, recipe.recipe.compile.segment_alignment),
            executorch_version=version("executorch"),
            share_transposed=recipe.recipe.output.share_transposed,
        ),
        Pack.Inputs(payload={name: payload.compiled.payload for name, payload in payloads.items()}),
    )
    return outputs.container


async def verify(run: Scope, exports: Exports, file: Serialize.Outputs) -> ArtifactRef:
    on_examples = judged_on_examples(run, exports)
    samples = {
        method: done.outputs.samples for method in on_examples if (done := run.find(Calibration.name, method=method))
    }
    inputs = Verify.Inputs(
        file=file.file,
        data=file.data,
        quantized=_made(run, Quantize, {method: exports[method] for method in on_examples}),
        examples={method: export.examples for method, export in exports.items()},
        constants=next(iter(exports.values())).constants,
        edge=_last_edges(run, exports) if run.plan.may_be_unverified else {},
        notes={
            method: done.outputs.notes
            for method in exports
            if (done := run.find(SourceTransform.name, method=method)) and done.outputs.notes
        },
        calibration={
            method: done.outputs.calibration
            for method in exports
            if run.plan.calibrates(method) and (done := run.find(Quantize.name, method=method))
        },
        samples=samples,
        exported={method: exports[method].program for method in samples},
    )
    params = Verify.Params(bounds=run.plan.bounds, host=host_capability(), on_examples=on_examples)
    try:
        return (await run(Verify, params, inputs)).figures
    except (StageFailed, VerificationFailed) as error:
        methods = run.plan.calibrated_on_examples(exports, run.model.calibration)
        if "sequence" in str(error) and (state := _unshared_state(run, exports)):
            error.args = (f"{error.args[0]}; {_on_sharing(state)}",)
        elif methods and re.search(r"drawn \d+, output \d+: SQNR", str(error)):
            error.args = (f"{error.args[0]}; {_on_calibration(methods)}",)
        elif re.search(r"output \d+: SQNR", str(error)) and (layers := await _losing_layers(run, exports)):
            error.args = (f"{error.args[0]}; {_on_layers(layers)}",)
        raise


def judged_on_examples(run: Scope, methods: Iterable[str]) -> tuple[str, ...]:
    """The methods whose activations have calibrated ranges, so that no bound applies to their random inputs.

    Values beyond those of the examples or calibration samples are clipped there, however right the file is.
    """
    return () if run.plan.asks_for_drawn_inputs else tuple(filter(run.plan.calibrates, methods))


async def _losing_layers(run: Scope, exports: Exports) -> tuple[str, ...]:
    """The layers that lose most by quantization, the worst one first; none where that cannot be found out."""
    try:
        return (await rank(run, exports))[:_LAYERS_NAMED] if any(map(run.plan.quantizes, exports)) else ()
    except (NotCached, CutShort):
        raise
    except Exception:  # noqa: BLE001 - the failure that it is about is what counts
        return ()


_LAYERS_NAMED = 4


def _on_layers(layers: Sequence[str]) -> str:
    return (
        f"quantization loses most in {', '.join(map(repr, layers))}, the worst one first: leave them in floating point "
        f"with `quantize: {{exclude: {list(layers)}}}` in the recipe, and where that is not enough, those that are "
        "named then"
    )


def _unshared_state(run: Scope, exports: Exports) -> list[str]:
    """Buffers that several methods change, each its own copy of them."""
    payload = run.plan.specializations[0].name
    found = [run.find(Edge.name, method=method, payload=payload) for method in exports]
    changed = Counter(name for edge in found if edge for name in run.read_json(edge.outputs.state))
    return (
        [] if run.plan.recipe.compile.share_mutable_buffers else sorted(n for n, times in changed.items() if times > 1)
    )


def _on_sharing(state: Sequence[str]) -> str:
    return (
        f"several methods change {', '.join(map(repr, state))}, and each has a copy of its own: "
        "`compile: {share_mutable_buffers: true}` in the recipe makes that one"
    )


def _on_calibration(methods: Sequence[str]) -> str:
    return (
        f"quantizers of {', '.join(map(repr, methods))} observed the example inputs only, and values beyond theirs are "
        "clipped: give the model `calibration` samples like those that it will meet"
    )


async def score(run: Scope, file: Serialize.Outputs) -> ArtifactRef | None:
    """The accuracy of the file, held against the recipe's gate, if it has one."""
    if run.plan.gate is None:
        return None
    bounds, scores = await make_scores(run, run.plan.gate, file)
    return (await run(Gate, bounds, Gate.Inputs(**scores))).accuracy


async def make_scores(
    run: Scope, gate: AccuracyGate, file: Serialize.Outputs
) -> tuple[Gate.Params, dict[str, ArtifactRef]]:
    """The bounds of a gate, and the scores of the file and, if they are compared, of eager."""
    model, host = run.model, host_capability()
    evaluator = fields_of(run, gate.evaluator)
    params = Evaluate.Params(evaluator=evaluator, seed=model.seed, host=host)
    scoring: dict[str, Awaitable[Evaluate.Outputs | Baseline.Outputs]] = {
        "scores": run(Evaluate, params, Evaluate.Inputs(file=file.file, data=file.data))
    }
    if gate.max_drop is not None:
        exported = next(done.call.params for step, done in run.done.items() if step.stage == Export.name)
        source = exported.source
        eager = Baseline.Params(source=source, evaluator=evaluator, seed=model.seed, host=host)
        scoring["baseline"] = run(Baseline, eager)
    scores = {role: outputs.scores for role, outputs in (await together(scoring)).items()}
    return Gate.Params(evaluator=gate.evaluator.builder, floor=gate.floor, max_drop=gate.max_drop), scores


async def compare_programs(run: Scope, exports: Exports) -> ArtifactRef | None:
    """The ladder of numerics: how far each program on the way to the file is from eager.

    Made where the recipe changes numerics on purpose, or asks for it. The file does not depend on it.
    """
    recipe = run.plan
    changes = bool(recipe.recipe.source_transforms) or any(map(recipe.quantizes, exports))
    if not (changes or recipe.recipe.verify.ladder):
        return None
    try:
        return (await ladder(run, exports)).numerics
    except (NotCached, CutShort):
        raise
    except Exception:  # noqa: BLE001 - the scope has it; a file is none the worse for it
        return None


async def ladder(run: Scope, exports: Exports) -> Ladder.Outputs:
    """Compares the programs that were made with eager, one rung each."""
    recipe = run.plan
    made: dict[str, ArtifactRef] = {}
    rungs = []
    for rung, programs in ladder_rungs(run, exports):
        rungs.append(rung)
        made |= {rung.role(method).removeprefix("rung/"): ref for method, ref in programs.items()}
    split = run.find(Compile.name) if recipe.recipe.output.payload_is_split else None
    return await run(
        Ladder,
        Ladder.Params(
            rungs=tuple(rungs),
            methods=tuple(exports),
            drawn_inputs=0 if judged_on_examples(run, exports) else recipe.bounds.drawn_inputs,
            host=host_capability(),
        ),
        Ladder.Inputs(
            examples={method: export.examples for method, export in exports.items()},
            rung=made,
            data=split.outputs.data if split else None,
        ),
    )


def ladder_rungs(run: Scope, exports: Exports) -> Iterator[tuple[RungParams, Programs]]:
    """Every rung of a recipe, with those of its programs that were made."""
    recipe = run.plan
    yield RungParams(name="exported"), {method: export.program for method, export in exports.items()}
    if recipe.recipe.source_transforms:
        yield RungParams(name="transformed"), _made(run, SourceTransform, exports)
    if any(map(recipe.quantizes, exports)):
        yield RungParams(name="quantized"), _made(run, Quantize, exports)
    sharing: dict[str, list[str]] = {}  # specializations whose Edge programs are the same
    for spec in recipe.specializations:
        params = [
            [edge_params(recipe, spec, method).model_dump(), recipe.edge_options(spec, method).model_dump(mode="json")]
            for method in exports
        ]
        sharing.setdefault(canonical_json(params).decode(), []).append(spec.name)
    for names in sharing.values():
        rung = RungParams(name="edge", specializations=tuple(names) if recipe.fat else ())
        yield rung, _made(run, Edge, exports, payload=names[0])
    for spec in recipe.specializations:
        compiled = run.find(Compile.name, payload=spec.name)
        rung = RungParams(name="payload", specializations=(spec.name,) if recipe.fat else ())
        yield rung, dict.fromkeys(exports, compiled.outputs.payload) if compiled else {}


async def lower_to_ladder(run: Scope) -> dict[str, Ladder.Outputs | Exception]:
    """Lowers a model's recipes up to the ladder, without verification, so it also works on files that fail it."""
    exports = await export_methods(run)

    async def climb(scope: Scope) -> Ladder.Outputs:
        scope.plan.check_methods(exports)
        try:
            await make_payloads(scope, exports)
        except (NotCached, CutShort):
            raise
        except Exception:  # noqa: BLE001, S110 - the scope has it; the ladder shows the programs that were made
            pass
        return await ladder(scope, exports)

    scopes = {recipe.name: run.of_recipe(recipe, stages_after(recipe.until)) for recipe in run.model.recipes}
    return await together({name: climb(scope) for name, scope in scopes.items()}, return_exceptions=True)


async def bisect_rung(run: Scope, before: RungParams, after: RungParams, method: str) -> Bisect.Outputs:
    """Compares the operators of `after`, a rung that is not a payload, with those of the rung `before`."""
    climbed = run.find(Ladder.name)
    assert climbed  # noqa: S101 - the caller has looked at it
    inputs = climbed.call.inputs
    exported_again = after.name == "transformed"
    transformed = RungParams(name="transformed").role(method)
    origin = transformed if transformed in inputs and not exported_again else RungParams(name="exported").role(method)
    return await run(
        Bisect,
        Bisect.Params(exported_anew=exported_again, host=host_capability()),
        Bisect.Inputs(
            before=inputs[before.role(method)],
            after=inputs[after.role(method)],
            origin=inputs[origin],
            examples=inputs[f"examples/{method}"],
        ),
        method=method,
        payload="+".join(after.specializations) or after.name,
    )


async def bisect_payload(
    run: Scope, rung: RungParams, method: str, *, least_db: float, drop_db: float
) -> BisectPayload.Outputs | None:
    """Finds the delegates and operators of a payload that lose; None for one that was not made."""
    (spec,) = [spec for spec in run.plan.specializations if not run.plan.fat or spec.name in rung.specializations]
    compiled = run.find(Compile.name, payload=spec.name)
    climbed = run.find(Ladder.name)
    if compiled is None or climbed is None:
        return None
    return await run(
        BisectPayload,
        BisectPayload.Params(
            method=method,
            target=params_of(spec.target_of(method)),
            least_db=least_db,
            drop_db=drop_db,
            drawn_inputs=climbed.call.params.drawn_inputs,
            host=host_capability(),
        ),
        BisectPayload.Inputs(
            program=compiled.call.inputs[f"program/{method}"],
            payload=compiled.outputs.payload,
            examples=climbed.call.inputs[f"examples/{method}"],
            data=climbed.call.inputs.get("data"),
        ),
        method=method,
        payload=spec.name,
    )


def debug_outputs(recipe: PlannedRecipe, payloads: Mapping[str, Payload]) -> dict[str, Compile.Outputs]:
    """By payload, what has the debug outputs, in debug mode; the payload of a plain file has an empty name."""
    if not recipe.debugs:
        return {}
    return {name if recipe.fat else "": payload.compiled for name, payload in payloads.items()}


def _last_edges(run: Scope, methods: Exports) -> dict[str, ArtifactRef]:
    """The Edge programs by method, of a plain file, that its payload was made from."""
    payload = run.plan.specializations[0].name
    return _made(run, EdgeManagerPasses, methods, payload=payload) or _made(run, Edge, methods, payload=payload)


def _made(run: Scope, stage: type[Stage], methods: Exports, *, payload: str = "") -> dict[str, ArtifactRef]:
    """Programs of a stage by method, of those that it made."""
    done = {method: run.find(stage.name, method=method, payload=payload) for method in methods}
    return {method: found.outputs.program for method, found in done.items() if found}
