"""One model's run: the calls of stages, of the model and of each of its recipes, their results, and their history."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Coroutine, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Protocol, TypeVar, cast, overload

from ...artifacts.digest import Digest
from ...artifacts.ref import ArtifactRef
from ...artifacts.runs import FieldChange, StageOutcome, differing_fields
from ...artifacts.store import Store
from ...configs.model import Limits
from ...errors import first_line
from ..backend.stages.compile import Compile
from ..backend.stages.edge import Edge
from ..engine.keys.search import ModuleSearch
from ..engine.runner import CutShort, Done, NotCached, Runner, StageCall, StageId, UserCode
from ..engine.stage import Params, Roles, Stage, Workspace, is_known, to_roles
from ..export.stages.export import Export
from ..file.stages.serialize import Serialize
from ..programs.binding import REFUSED, bind, graph_of
from ..quantize.stages.quantize import Quantize
from ..quantize.stages.source_transform import SourceTransform
from ..results.causes import Circumstance, add_known_causes, awaits_diagnosis
from ..results.finding import FINDING, Finding, read_findings
from .model import PlannedModel, PlannedRecipe

Outputs_co = TypeVar("Outputs_co", covariant=True)
T = TypeVar("T")

_GONE = "nothing changed, but its outputs were not in the store any more"
_IDLE = "nothing of the model is delegated, so that every device would take it, and run the portable kernels"
# set while a lowering runs in one thread, so that its branches run one after another
_one_by_one: ContextVar[bool] = ContextVar("one_by_one", default=False)


class _Returns(Protocol[Outputs_co]):
    """A stage, by the outputs that its body returns."""

    name: ClassVar[str]

    @staticmethod
    def run(inputs: Any, params: Any, work: Workspace) -> Outputs_co: ...


@dataclass
class StageCalls:
    """The calls of stages for a model, or for one recipe of it."""

    runner: Runner
    model: PlannedModel
    finder: ModuleSearch | None = None  # for the user's modules; None where stages run that may add some
    # digests of the user's code that stages run, by its source as JSON and the modules that were watched
    sources: dict[tuple[str, tuple[str, ...]], Digest] = field(default_factory=dict)
    done: dict[StageId, Done] = field(default_factory=dict)  # what was run or found
    failed: dict[StageId, Exception] = field(default_factory=dict)
    skipped: frozenset[str] = frozenset()  # names of the stages after the last one to run
    parts: list[RecipeRun] = field(default_factory=list)  # a model's recipes; a recipe's files that are tried

    def all(self) -> Iterator[StageCalls]:
        """These calls, and those of all parts."""
        yield self
        for part in self.parts:
            yield from part.all()

    def step(self, stage: str, method: str = "", payload: str = "") -> StageId:
        """Which call of the model's this is."""
        del payload  # only recipes have some
        return StageId(stage, method)

    async def __call__(
        self,
        stage: type[_Returns[Outputs_co]],
        params: Params,
        inputs: Roles | None = None,
        *,
        method: str = "",
        payload: str = "",
        user_code: UserCode | None = None,
        circumstances: tuple[Circumstance, ...] = (),
    ) -> Outputs_co:
        """Calls a stage, and returns its outputs."""
        step = self.step(stage.name, method, payload)
        outputs: Outputs_co = (await self.call(step, stage, params, inputs, user_code, circumstances)).outputs
        return outputs

    async def call(
        self,
        step: StageId,
        stage: type[_Returns[Any]],
        params: Params,
        inputs: Roles | None = None,
        user_code: UserCode | None = None,
        circumstances: tuple[Circumstance, ...] = (),
        limits: Limits | None = None,
    ) -> Done:
        """Calls a stage, and returns everything that is known of the call. `limits` replace those of the model."""
        if stage.name in self.skipped:
            raise CutShort
        call = StageCall(
            model=self.model.name,
            id=step,
            stage=cast("type[Stage]", stage),
            params=params,
            inputs=to_roles(inputs) if inputs else {},
            limits=limits or self.model.limits,
            folder=self.model.folder,
            python_path=self.model.python_path,
            program_file=self.model.program_file,
            user_code=user_code,
            recipes=(step.recipe,) if step.recipe else tuple(recipe.name for recipe in self.model.recipes),
            circumstances=circumstances,
            submitted=time.time(),
        )
        try:
            done = self.done[step] = await self.runner(call)
        except (NotCached, CutShort):
            raise
        except Exception as error:
            self.failed[step] = error
            if not awaits_diagnosis(stage.name, error):
                add_known_causes(stage.name, error, circumstances, step.recipe)
            raise
        return done

    @property
    def store(self) -> Store:
        return self.runner.store

    def find(self, stage: str, *, method: str = "", payload: str = "") -> Done | None:
        """The result of a call, where it was run or found: for those who show what a run has done."""
        return self.done.get(self.step(stage, method, payload))

    def read_json(self, ref: ArtifactRef) -> Any:
        self.store.fetch(ref)
        return self.store.local.read_json(ref)

    def step_of(self, error: Exception) -> str:
        """Name of the step that raised an error; empty if none did."""
        failed = (item for part in self.all() for item in part.failed.items())
        return next((str(step) for step, raised in failed if raised is error), "")


@dataclass
class ModelRun(StageCalls):
    """A model's use of a runner: the calls that all of its recipes share."""

    @property
    def recipes(self) -> dict[str, RecipeRun]:
        """Recipes that have begun, by name."""
        return {recipe.plan.name: recipe for recipe in self.parts}

    def of_recipe(self, recipe: PlannedRecipe, skipped: frozenset[str]) -> RecipeRun:
        """The calls of a recipe, which begin when those of the model have ended."""
        shared = (self.runner, self.model, self.finder, self.sources, dict(self.done))
        self.parts.append(RecipeRun(*shared, plan=recipe, skipped=skipped))
        return self.parts[-1]


@dataclass(kw_only=True)
class RecipeRun(StageCalls):
    """A recipe's use of a runner. What was done has the model's calls, too."""

    plan: PlannedRecipe
    number: int = 0  # of an attempt, from 1 on

    def attempt(self, recipe: PlannedRecipe) -> RecipeRun:
        """The calls for one more file that is only tried, to score it or to see whether it passes."""
        number = len(self.parts) + 1
        self.parts.append(replace(self, plan=recipe, done=dict(self.done), failed={}, parts=[], number=number))
        return self.parts[-1]

    def step(self, stage: str, method: str = "", payload: str = "") -> StageId:
        return StageId(stage, method, self.plan.name, payload if self.plan.fat else "", self.number)

    async def on_graph(
        self, stage: type[_Returns[Outputs_co]], params: Any, inputs: Any, why: str, *, method: str, payload: str
    ) -> Outputs_co:
        """Calls a stage with the graph of its program, so that the result serves all weights of that graph.

        Then binds the weights to the result. A stage that needs them, for the reason `why` or one that it finds itself,
        takes the program instead, and its params say why.
        """
        step, program = self.step(stage.name, method, payload), inputs.program
        if not why and program.composite:
            if graph := graph_of(program, self.store):
                done = await self.call(step, stage, params, replace(inputs, program=graph))
                result = done.outputs.program
                if result.kind != REFUSED:
                    if is_known(result):
                        roles = {**done.roles, "program": bind(result, program, self.store)}
                        done = self.done[step] = replace(done, roles=roles)
                    bound: Outputs_co = done.outputs
                    return bound
                self.store.fetch(result)
                why = self.store.local.read_artifact(result).decode()
            else:
                why = "the weights are not apart from the graph"
        params = params.model_copy(update={"takes_weights": why})
        outputs: Outputs_co = (await self.call(step, stage, params, inputs)).outputs
        return outputs

    def why_left_out(self, names: Iterable[str]) -> dict[str, str]:
        """Why optional specializations are not in the file, by name."""
        problems = {step.payload: f"{step}: {first_line(error)}" for step, error in self.failed.items() if step.payload}
        return {name: self.plan.unavailable.get(name) or problems.get(name, _IDLE) for name in names}

    def findings(self) -> dict[str, ArtifactRef]:
        """Every finding of the recipe's stages, by ``ROLE/PAYLOAD/SUBJECT``; of two stages, the later one's."""
        roles = ((step, *item) for step, done in self.done.items() for item in done.roles.items())
        return {f"{role}/{step.payload}/{step.method}": ref for step, role, ref in roles if ref.kind == FINDING}

    def found_since(self) -> tuple[Finding, ...]:
        """Findings of stages after the report."""
        known = reported.call.inputs if (reported := self.find("report")) else {}
        late = {key: ref for key, ref in self.findings().items() if f"findings/{key}" not in known}
        return read_findings(late, self.read_json)

    def problems(self) -> dict[str, str]:
        """Failed steps: the first line of the reason, by name."""
        return {str(step): first_line(error) for step, error in self.failed.items()}


def outcome_of(done: Done) -> StageOutcome:
    """The outcome of a stage once it was run or found; `History` knows why it ran."""
    call = done.call
    return StageOutcome(
        slot=call.slot,
        stage=call.stage.name,
        method=call.id.method or None,
        recipes=call.recipes,
        status="cached" if done.cached else "ran",
        key=done.key.digest(),
        seconds=done.seconds,
        queued=done.queued,
        peak_memory=done.peak_memory,
        predicted_memory=done.predicted_memory,
    )


def outcome_of_failure(model: str, step: StageId, recipes: tuple[str, ...], error: Exception) -> StageOutcome:
    slot, method = step.slot(model), step.method or None
    return StageOutcome(slot, step.stage, method, recipes, "failed", key=None, message=str(error))


class History:
    """Why each stage of a model ran, for a run's record. Compares keys with those of the slots' last use."""

    def __init__(self, run: ModelRun) -> None:
        """Reads the last keys of a model's slots; `remember` replaces them."""
        self._model = run.model
        self._done: dict[str, list[tuple[StageId, Done]]] = {}  # by key: equal work of two recipes is one stage
        self._failed: dict[int, list[tuple[StageId, Exception]]] = {}
        for part in run.all():
            for step, done in part.done.items():
                steps = self._done.setdefault(done.key.digest(), [])
                if all(step != other for other, _ in steps):
                    steps.append((step, done))
            for step, error in part.failed.items():
                self._failed.setdefault(id(error), []).append((step, error))
        self._ledger = run.store.ledger
        self._reasons = {key: self._reason(*steps[0]) for key, steps in self._done.items() if not steps[0][1].cached}

    @property
    def ran(self) -> int:
        return sum(not steps[0][1].cached for steps in self._done.values())

    @property
    def cached(self) -> int:
        return len(self._done) - self.ran

    def remember(self) -> None:
        """Notes which key each slot has now, so that the next run can say what differs."""
        for key, steps in self._done.items():
            fields = steps[0][1].key.fields()
            for slot in [step.slot(self._model.name) for step, _ in steps]:
                last = self._ledger.last(slot) if steps[0][1].cached else None
                if last is None or last.key != key:
                    self._ledger.remember(slot, Digest(key), fields)

    def outcomes(self) -> tuple[StageOutcome, ...]:
        """Every stage that was run or found, or failed."""
        outcomes = [self._outcome(key, steps) for key, steps in self._done.items()]
        for steps in self._failed.values():
            step, error = steps[0]
            outcomes.append(outcome_of_failure(self._model.name, step, self._recipes(steps), error))
        return tuple(outcomes)

    def _reason(self, step: StageId, done: Done) -> tuple[tuple[FieldChange, ...], str]:
        last = self._ledger.last(step.slot(self._model.name))
        why = getattr(done.call.params, "takes_weights", "")
        needs = [f"takes the weights: {why}"] if why else []
        differing = differing_fields(last.fields, done.key.fields()) if last else ()
        reasons = ["had not run before", *needs] if last is None else needs if differing else [done.reason or _GONE]
        return differing, "; ".join([*reasons, *done.remarks])

    def _outcome(self, key: str, steps: list[tuple[StageId, Done]]) -> StageOutcome:
        step, done = steps[0]
        differs, reason = self._reasons.get(key, ((), ""))
        return replace(
            outcome_of(done),
            slot=step.slot(self._model.name),
            stage=step.stage,
            method=step.method or None,
            recipes=self._recipes(steps),
            differs=differs,
            message=reason,
        )

    def _recipes(self, steps: Iterable[tuple[StageId, Any]]) -> tuple[str, ...]:
        """The recipes that need a stage: all of them for a call that is no recipe's."""
        named = dict.fromkeys(step.recipe for step, _ in steps)
        return tuple(recipe.name for recipe in self._model.recipes) if "" in named else tuple(named)


@dataclass(frozen=True)
class Exports:
    """A model, exported."""

    methods: Mapping[str, Export.Outputs]  # by name, in the model's order
    source: Mapping[str, Any]  # key fields of its code, with all that the first method's export was seen to load

    @property
    def first(self) -> Export.Outputs:
        """The export of the first method, which has the model's constants, assets and metadata."""
        return next(iter(self.methods.values()))

    @property
    def programs(self) -> dict[str, ArtifactRef]:
        return {method: export.program for method, export in self.methods.items()}

    @property
    def examples(self) -> dict[str, ArtifactRef]:
        return {method: export.examples for method, export in self.methods.items()}


@dataclass(frozen=True)
class Prepared:
    """A method's ATen program as all specializations take it, and what was made on the way."""

    program: ArtifactRef
    transformed: SourceTransform.Outputs | None
    samples: ArtifactRef | None  # that quantizers observed in place of the examples
    quantized: Quantize.Outputs | None


@dataclass(frozen=True)
class Payload:
    """The result of a specialization: its programs by method, and the payload."""

    edges: Mapping[str, Edge.Outputs]  # whole, after the recipe's own functions over all of them
    linked: Mapping[str, ArtifactRef]  # that the payload was compiled from
    compiled: Compile.Outputs
    delegates: bool  # unless its target could, and nothing of the model is delegated


@dataclass(frozen=True)
class MadeFile:
    """The file of a recipe, and what it was made from."""

    file: Serialize.Outputs
    prepared: Mapping[str, Prepared]  # by method
    payloads: Mapping[str, Payload]  # by specialization
    so_far: ProgramsSoFar


@dataclass
class ProgramsSoFar:
    """Programs of a recipe, each added once it is made: if a later stage fails, the ladder still shows these."""

    transformed: dict[str, ArtifactRef] = field(default_factory=dict)  # by method
    quantized: dict[str, ArtifactRef] = field(default_factory=dict)  # by method
    edges: dict[str, dict[str, Edge.Outputs]] = field(default_factory=dict)  # by specialization and method
    payloads: dict[str, Payload] = field(default_factory=dict)  # by specialization


@overload
async def together(
    calls: Mapping[str, Awaitable[T]], *, into: dict[str, T] | None = None, return_exceptions: Literal[False] = False
) -> dict[str, T]: ...
@overload
async def together(
    calls: Mapping[str, Awaitable[T]], *, return_exceptions: Literal[True]
) -> dict[str, T | Exception]: ...
async def together(
    calls: Mapping[str, Awaitable[T]], *, into: dict[str, T] | None = None, return_exceptions: bool = False
) -> Any:
    """All results, by name; raises the first failure once all calls have ended.

    With `return_exceptions`, exceptions are among the results, as for `asyncio.gather`. The results of calls that did
    not fail are also added to `into`, whatever is raised.
    """
    outcomes: dict[str, Any] = {}
    if len(calls) < 2 or _one_by_one.get():
        for name, call in calls.items():
            try:
                outcomes[name] = await call
            except Exception as error:  # noqa: BLE001 - the caller decides what a failure means
                outcomes[name] = error
    else:
        outcomes = dict(zip(calls, await asyncio.gather(*calls.values(), return_exceptions=True), strict=True))
    for outcome in outcomes.values():
        if isinstance(outcome, BaseException) and not isinstance(outcome, Exception):
            raise outcome
    failures = [outcome for outcome in outcomes.values() if isinstance(outcome, Exception)]
    if into is not None:
        into |= {name: outcome for name, outcome in outcomes.items() if not isinstance(outcome, Exception)}
    if failures and not return_exceptions:
        raise first_of(failures)
    return outcomes


def first_of(failures: list[Exception]) -> Exception:
    """The failure to raise if there are several: a real one rather than that a run was cut short."""
    return next((failure for failure in failures if not isinstance(failure, CutShort)), failures[0])


def run_without_loop(lowering: Coroutine[Any, Any, T]) -> T:
    """Runs a lowering whose runner never waits, without an event loop: a notebook's own may be running."""
    token = _one_by_one.set(True)
    try:
        lowering.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        _one_by_one.reset(token)
    raise RuntimeError("a runner that must not wait did")
