"""The quality of a recipe's file, and where it is lost: verification, scores, the ladder, and bisection."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from ...artifacts.digest import canonical_json
from ...artifacts.ledger import FoundCase
from ...artifacts.ref import ArtifactRef
from ...configs.places import HOST
from ...configs.verification import ERROR_BOUNDS, AccuracyGate, VerifyBounds
from ...errors import PteforgeError, StageError, StageFailed, StageTimedOut, VerificationFailed, first_line
from ..engine.keys.search import host_capability
from ..engine.runner import CutShort, NotCached, StageId
from ..engine.stage import is_known
from ..explain.stages.bisect import Bisect
from ..results.accuracy import rank_layers
from ..results.causes import Circumstance
from ..results.costs import MemoryUse, Timing, exceeded
from ..results.delivered import Delivered
from ..results.figures import WHOLE_FILE, Figures, Proof, Searched, violations
from ..results.numerics import NodeLosses
from ..verify.places import PlannedPlace, processor
from ..verify.stages.baseline import Baseline
from ..verify.stages.bench import Bench
from ..verify.stages.evaluate import Evaluate
from ..verify.stages.gate import Gate
from ..verify.stages.ladder import Ladder, RungParams
from ..verify.stages.prove import Prove
from ..verify.stages.search_inputs import SearchInputs
from ..verify.stages.verify import Verify
from .model import PlannedRecipe
from .params import edge_params, fields_of
from .runs import Exports, MadeFile, Payload, Prepared, ProgramsSoFar, RecipeRun, first_of, together


@dataclass(frozen=True)
class Climbed:
    """A recipe's ladder: the call of the stage, its outputs, and the payloads that are its last rungs."""

    params: Ladder.Params
    inputs: Ladder.Inputs
    outputs: Ladder.Outputs
    payloads: Mapping[str, Payload]  # by specialization


async def verify_file(
    run: RecipeRun,
    exports: Exports,
    made: MadeFile,
    found: ArtifactRef | None = None,
    bounds: VerifyBounds | None = None,
) -> ArtifactRef:
    """The figures of the file, within `bounds`, by default the recipe's.

    A search for inputs also runs it on those `found` now and before.
    """
    recipe, prepared = run.plan, made.prepared
    on_examples = judged_on_examples(recipe, prepared)
    samples = {method: own.samples for method, own in prepared.items() if own.samples and method in on_examples}
    quantized = {method: own.quantized for method, own in prepared.items() if own.quantized}
    transformed = {method: own.transformed for method, own in prepared.items() if own.transformed}
    kept = sorted({*_found_before(run, made), *([found] if found else [])}, key=lambda ref: ref.identity)
    may_be_unverified = not (recipe.fat or (recipe.recipe.verify.required and not recipe.places))
    inputs = Verify.Inputs(
        file=made.file.file,
        data=made.file.data,
        quantized={method: outputs.program for method, outputs in quantized.items() if method in on_examples},
        examples=exports.examples,
        constants=exports.first.constants,
        edge=_edge_programs(run, made) if may_be_unverified else _for_reference(run, made),
        notes={method: outputs.notes for method, outputs in transformed.items() if outputs.notes},
        calibration={method: outputs.calibration for method, outputs in quantized.items() if recipe.calibrates(method)},
        samples=samples,
        exported={method: exports.programs[method] for method in (exports.programs if kept else samples)},
        floating=_floating(exports, made),
        found={str(number): ref for number, ref in enumerate(kept)},
        reference=_references(exports, made) if kept else {},
    )
    params = Verify.Params(
        bounds=bounds or recipe.bounds, host=host_capability(), on_examples=on_examples, runtime=recipe.runtime
    )
    return (await run(Verify, params, inputs, circumstances=tuple(_circumstances(run, made.so_far)))).figures


def _floating(exports: Exports, made: MadeFile) -> dict[str, ArtifactRef]:
    """The exported programs of methods that nothing quantizes."""
    return {name: exports.programs[name] for name, own in made.prepared.items() if not own.quantized}


def _edge_programs(run: RecipeRun, made: MadeFile) -> dict[str, ArtifactRef]:
    edges = made.payloads[run.plan.specializations[0].name].edges
    return {method: edge.program for method, edge in edges.items()}


def _for_reference(run: RecipeRun, made: MadeFile) -> dict[str, ArtifactRef]:
    """The edge programs of a plain file that may have operators of its target's own."""
    rewritten = any(target.operators for spec in run.plan.specializations for target in spec.targets)
    return _edge_programs(run, made) if rewritten and not run.plan.fat else {}


_EXACT = 300.0  # dB that stand for outputs without an error


async def likeness(run: RecipeRun, exports: Exports, made: MadeFile) -> tuple[float, bool] | None:
    """A file's lowest SQNR in dB, and whether it is within the bounds; None where it is planned, and has no figures."""
    free = dict.fromkeys((*ERROR_BOUNDS, "min_part_sqnr_db"))
    try:
        ref = await verify_file(run, exports, made, bounds=run.plan.bounds.model_copy(update=free))
    except (StageFailed, VerificationFailed):  # such as outputs that are no numbers
        return 0.0, False
    if not is_known(ref):
        return None
    worst = Figures.from_json(run.read_json(ref)).overall
    return _EXACT if worst.sqnr_db is None else worst.sqnr_db, not any(violations(worst, run.plan.bounds))


async def prove_on_places(run: RecipeRun, exports: Exports, made: MadeFile) -> dict[str, ArtifactRef]:
    """The proofs of all payloads by ``PLACE/PAYLOAD``; raises the first failure, or if a required place cannot run."""
    recipe = run.plan
    # the random inputs of methods with calibrated ranges have no bounds here
    drawn = {"drawn_inputs": 0} if judged_on_examples(recipe, made.prepared) else {}
    bounds = recipe.bounds.model_copy(update=drawn)
    if unreachable := [place for place in recipe.places if place.unreachable and place.required]:
        raise VerificationFailed(
            f"place {unreachable[0].name!r} is required, and cannot be reached: {unreachable[0].unreachable}"
        )
    floating = _floating(exports, made)
    payloads = {name: replace(of, floating=floating) for name, of in _payloads(recipe, exports, made).items()}
    whole = {"": replace(_whole(exports, made), floating=floating)}
    proving = {
        f"{place.name}/{payload}": _prove(run, place, payload, Prove.Params(place=place.params, bounds=bounds), inputs)
        for place in recipe.places
        if not place.unreachable
        # a command also runs a fat file as an app does, with the payload that is chosen there
        for payload, inputs in {**payloads, **(whole if place.params.command else {})}.items()
    }
    outcomes = await together(proving, return_exceptions=True)
    if failures := {key: outcome for key, outcome in outcomes.items() if isinstance(outcome, Exception)}:
        raise _with_others(run, failures)
    proofs = {key: outcome for key, outcome in outcomes.items() if isinstance(outcome, ArtifactRef)}
    for place in recipe.places:
        there = [ref for key, ref in proofs.items() if key.startswith(f"{place.name}/")]
        if place.required and all(map(is_known, there)):
            _check_required(place, [proof for ref in there for proof in Proof.found(run.read_json(ref))])
    return proofs


def _with_others(run: RecipeRun, failures: Mapping[str, Exception]) -> Exception:
    """The failure to raise, with all other places and payloads that failed."""
    first = first_of([*failures.values()])
    failed = {str(step): error for step, error in run.failed.items() if step.stage == Prove.name}
    others = [f"{step}: {first_line(error)}" for step, error in failed.items() if step != run.step_of(first)]
    if others and first.args and (more := f"; also {'; '.join(others)}") not in str(first.args[0]):
        first.args = (f"{first.args[0]}{more}", *first.args[1:])
    return first


def _check_required(place: PlannedPlace, proofs: Sequence[Proof]) -> None:
    """Raises VerificationFailed for a place that finds no device, or can run nothing of the file."""
    absent = [proof.not_run for proof in proofs if proof.no_device]
    if absent or not any(proof.figures for proof in proofs):
        reason, what = (absent or [proof.not_run for proof in proofs])[0], "a payload" if absent else "the file"
        raise VerificationFailed(
            f"place {place.name!r} is required, and cannot run {what}, which {reason}; give the place what is missing, "
            "or choose other recipes with --recipe"
        )


def _whole(exports: Exports, made: MadeFile) -> Prove.Inputs:
    return Prove.Inputs(file=made.file.file, examples=exports.examples, data=made.file.data)


def _payloads(recipe: PlannedRecipe, exports: Exports, made: MadeFile) -> dict[str, Prove.Inputs]:
    """What places run: the payloads of a fat file by name, or a plain file, which has none."""
    if not recipe.fat:
        return {"": _whole(exports, made)}
    payloads = {name: payload.compiled.payload for name, payload in made.payloads.items()}
    return {name: Prove.Inputs(file=file, examples=exports.examples) for name, file in payloads.items()}


async def bench_on_places(run: RecipeRun, exports: Exports, made: MadeFile) -> None:
    """Times every payload on this process's runtime and on all places of the recipe, one after another."""
    recipe, machine = run.plan, processor()
    places: dict[str, PlannedPlace | None] = {HOST: None} if HOST in recipe.recipe.verify.on else {}
    runs = (place for place in recipe.places if not (place.unreachable or place.params.emulated))
    places |= {place.name: place for place in runs}
    for name, place in places.items():
        params, limits = (place.params, place.limits(run.model.limits)) if place else (None, None)
        for payload, inputs in _payloads(recipe, exports, made).items():
            step = StageId(Bench.name, name, recipe.name, payload, run.number)
            with suppress(StageError, NotCached):  # the run has it; a file is none the worse for it
                await run.call(step, Bench, Bench.Params(place=params, machine=machine), inputs, limits=limits)


async def time_calls(run: RecipeRun, exports: Exports, made: MadeFile) -> float:
    """Seconds of one call of each method on this process's runtime, in all; 0 if that is only planned."""
    step, params = (
        StageId(Bench.name, HOST, run.plan.name, "", run.number),
        Bench.Params(place=None, machine=processor()),
    )
    outputs: Bench.Outputs = (await run.call(step, Bench, params, _whole(exports, made))).outputs
    timings = Timing.found(run.read_json(outputs.timings)) if is_known(outputs.timings) else ()
    return sum(timing.median for timing in timings)


def check_memory(run: RecipeRun, provenance: ArtifactRef) -> None:
    """Raises VerificationFailed for a file whose methods need more memory than devices have."""
    limits = run.model.limits.device
    if limits is None or not is_known(provenance):
        return
    uses = Delivered.of_provenance(run.read_json(provenance)).every(MemoryUse)
    if problems := list(exceeded(uses, limits)):
        away = (place for place in run.plan.places if place.unreachable)
        problems += [f"place {place.name!r} cannot be reached: {place.unreachable}" for place in away]
        raise VerificationFailed(f"recipe {run.plan.name!r}: {'; '.join(problems)}")


async def _prove(
    run: RecipeRun, place: PlannedPlace, payload: str, params: Prove.Params, inputs: Prove.Inputs
) -> ArtifactRef:
    step, limits = StageId(Prove.name, place.name, run.plan.name, payload, run.number), place.limits(run.model.limits)
    try:
        outputs: Prove.Outputs = (await run.call(step, Prove, params, inputs, limits=limits)).outputs
    except StageTimedOut as error:
        error.args = (f"{error.args[0].partition(';')[0]}; `timeout` of the place {place.name!r} sets another",)
        raise
    return outputs.proofs


def check_proven(run: RecipeRun, figures: ArtifactRef, proofs: Mapping[str, ArtifactRef]) -> None:
    """Raises VerificationFailed for a plain file that nothing has run, if the recipe requires verification."""
    refs = (figures, *proofs.values())
    if not run.plan.recipe.verify.required or not run.plan.places or not all(map(is_known, refs)):
        return
    own = Figures.from_json(run.read_json(figures))
    there = {key.partition("/")[0]: proof for key, ref in proofs.items() for proof in Proof.found(run.read_json(ref))}
    if own.of_file or any(proof.figures for proof in there.values()):
        return
    reasons = [f"here, it {own.not_run[WHOLE_FILE].partition(';')[0]}"]
    reasons += [f"on {place.name!r}, {place.unreachable}" for place in run.plan.places if place.unreachable]
    reasons += [f"on {place!r}, it {proof.not_run}" for place, proof in there.items()]
    raise VerificationFailed(
        f"nothing has run the file, so nothing can be said of what it computes: {'; '.join(reasons)} "
        "(with `verify: {required: false}` in the recipe it is made all the same)"
    )


def _found_before(run: RecipeRun, made: MadeFile) -> Iterator[ArtifactRef]:
    """Inputs that searches have found, except those of this file that passed: the search itself has run them."""
    if run.plan.recipe.verify.search:
        for kept in run.store.ledger.found_inputs(f"{run.model.name}/{run.plan.name}"):
            if (kept.wrong or kept.file != made.file.file.identity) and run.store.has(kept.inputs):
                yield kept.inputs


def _references(exports: Exports, made: MadeFile) -> dict[str, ArtifactRef]:
    """The program of each method that its file has to compute: with the recipe's changes of numerics."""
    prepared = made.prepared.items()
    return {name: (own.quantized or own.transformed or exports.methods[name]).program for name, own in prepared}


async def search_inputs(run: RecipeRun, exports: Exports, made: MadeFile) -> None:
    """Raises VerificationFailed if a search finds inputs on which the file is wrong; later files must pass them."""
    asked = run.plan.recipe.verify.search
    if asked is None:
        return
    params = SearchInputs.Params(bounds=run.plan.bounds, asked=asked, host=host_capability())
    inputs = SearchInputs.Inputs(
        file=made.file.file,
        data=made.file.data,
        examples=exports.examples,
        exported=exports.programs,
        reference=_references(exports, made),
    )
    done = await run.call(run.step(SearchInputs.name), SearchInputs, params, inputs)
    outputs: SearchInputs.Outputs = done.outputs
    if not is_known(outputs.searched):
        return
    searched = Searched.from_json(run.read_json(outputs.searched))
    if outputs.inputs and not done.cached:
        case = FoundCase(outputs.inputs, made.file.file.identity, bool(searched.problem))
        run.store.ledger.keep_found(f"{run.model.name}/{run.plan.name}", case)
    if searched.problem and not searched.unsteady:
        await verify_file(run, exports, made, outputs.inputs)
    elif searched.problem:
        raise VerificationFailed(f"{searched.problem}; --refresh searches again")


def judged_on_examples(recipe: PlannedRecipe, methods: Iterable[str]) -> tuple[str, ...]:
    """The methods whose activations have calibrated ranges, so that no bound applies to their random inputs.

    Values beyond those of the examples or calibration samples are clipped there, even in a file that is right.
    """
    return () if recipe.asks_for_drawn_inputs else tuple(filter(recipe.calibrates, methods))


def _circumstances(run: RecipeRun, so_far: ProgramsSoFar) -> Iterator[Circumstance]:
    """What the cause of a failed verification may depend on."""
    if run.plan.quantizers or run.plan.recipe.transforms:
        yield "quantized"
    with suppress(PteforgeError):  # whoever needs it says so
        if count_changes(run, so_far):
            yield "own state"


def count_changes(run: RecipeRun, so_far: ProgramsSoFar) -> Counter[str]:
    """The number of methods that change each buffer, if there are several with copies of their own."""
    states = {method: edge.state for edges in so_far.edges.values() for method, edge in edges.items()}
    if len(states) < 2 or run.plan.recipe.compile.share_mutable_buffers:
        return Counter()
    return Counter(name for state in states.values() if is_known(state) for name in run.read_json(state))


async def rank(run: RecipeRun, exports: Exports, prepared: Mapping[str, Prepared]) -> tuple[str, ...]:
    """The layers that lose something by quantization, the largest loss first."""
    compared = dict[str, Awaitable[Bisect.Outputs]]()
    for method, own in prepared.items():
        if own.quantized:
            export = exports.methods[method]
            before = own.transformed.program if own.transformed else export.program
            inputs = Bisect.Inputs(before=before, after=own.quantized.program, origin=before, examples=export.examples)
            compared[method] = run(Bisect, Bisect.Params(host=host_capability()), inputs, method=method)
    losses = await together(compared)
    return rank_layers(NodeLosses.from_json(run.read_json(outputs.nodes)) for outputs in losses.values())


async def score(run: RecipeRun, exports: Exports, made: MadeFile) -> ArtifactRef | None:
    """The accuracy of the file, which passes the recipe's gate, if it has one."""
    if run.plan.gate is None:
        return None
    bounds, scores = await make_scores(run, run.plan.gate, exports, made)
    return (await run(Gate, bounds, Gate.Inputs(**scores))).accuracy


async def make_scores(
    run: RecipeRun, gate: AccuracyGate, exports: Exports, made: MadeFile
) -> tuple[Gate.Params, dict[str, ArtifactRef]]:
    """The bounds of a gate, and the scores of the file and, if they are compared, of eager."""
    scorer = {"evaluator": fields_of(run, gate.evaluator), "seed": run.model.seed, "host": host_capability()}
    inputs = Evaluate.Inputs(file=made.file.file, data=made.file.data, edge=_for_reference(run, made))
    scoring: dict[str, Awaitable[Evaluate.Outputs | Baseline.Outputs]] = {
        "scores": run(Evaluate, Evaluate.Params(**scorer), inputs)
    }
    if gate.max_drop is not None or gate.keep is not None:
        scoring["baseline"] = run(Baseline, Baseline.Params(source=exports.source, **scorer))
    scores = {role: outputs.scores for role, outputs in (await together(scoring)).items()}
    bounds = {name: getattr(gate, name) for name in ("floor", "max_drop", "keep")}
    return Gate.Params(evaluator=gate.evaluator.builder, **bounds), scores


async def compare_programs(run: RecipeRun, exports: Exports, so_far: ProgramsSoFar) -> ArtifactRef | None:
    """The ladder of a recipe that changes numerics on purpose, or asks for it. The file does not depend on it."""
    recipe = run.plan
    changes = bool(recipe.recipe.transforms) or any(map(recipe.quantizes, exports.methods))
    if not (changes or recipe.recipe.verify.ladder):
        return None
    try:
        return (await ladder(run, exports, so_far)).outputs.numerics
    except (NotCached, CutShort):
        raise
    except Exception:  # noqa: BLE001 - the run has it; a file is none the worse for it
        return None


async def ladder(run: RecipeRun, exports: Exports, so_far: ProgramsSoFar) -> Climbed:
    """Compares each program on the way to the file with eager, one rung each."""
    recipe, payloads = run.plan, so_far.payloads
    rungs = list(ladder_rungs(recipe, exports, so_far))
    split = payloads.get(recipe.specializations[0].name) if recipe.recipe.output.split_weights else None
    params = Ladder.Params(
        rungs=tuple(rung for rung, _ in rungs),
        methods=tuple(exports.methods),
        drawn_inputs=0 if judged_on_examples(recipe, exports.methods) else recipe.bounds.drawn_inputs,
        host=host_capability(),
    )
    inputs = Ladder.Inputs(
        examples=exports.examples,
        rung={rung.key(method): program for rung, programs in rungs for method, program in programs.items()},
        data=split.compiled.data if split else None,
    )
    return Climbed(params, inputs, await run(Ladder, params, inputs), payloads)


def ladder_rungs(
    recipe: PlannedRecipe, exports: Exports, so_far: ProgramsSoFar
) -> Iterator[tuple[RungParams, Mapping[str, ArtifactRef]]]:
    """Every rung of a recipe, with its programs by method, as far as they were made."""
    yield RungParams(name="exported"), exports.programs
    if recipe.recipe.transforms:
        yield RungParams(name="transformed"), so_far.transformed
    if any(map(recipe.quantizes, exports.methods)):
        yield RungParams(name="quantized"), so_far.quantized
    sharing: dict[bytes, list[str]] = {}  # specializations whose Edge programs are the same
    for spec in recipe.specializations:
        params = [
            [edge_params(recipe, spec, method).model_dump(), recipe.edge_options(spec, method).model_dump(mode="json")]
            for method in exports.methods
        ]
        sharing.setdefault(canonical_json(params), []).append(spec.name)
    for names in sharing.values():
        edges = so_far.edges.get(names[0], {})
        rung = RungParams(name="edge", specializations=tuple(names) if recipe.fat else ())
        yield rung, {method: edge.program for method, edge in edges.items()}
    for spec in recipe.specializations:
        payload = so_far.payloads.get(spec.name)
        rung = RungParams(name="payload", specializations=(spec.name,) if recipe.fat else ())
        yield rung, dict.fromkeys(exports.methods, payload.compiled.payload) if payload else {}
