"""One model's use of a runner: makes the calls of its stages, and remembers what became of each."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, TypeVar, cast

from ..artifacts.digest import Digest
from ..artifacts.ref import ArtifactRef
from ..artifacts.runs import FieldChange, StageOutcome, differing_fields
from ..artifacts.store import Store
from ..errors import StoreError, first_line
from .causes import Circumstance, add_known_causes, awaits_diagnosis
from .codecs.binding import REFUSED, bind, graph_of
from .keys.search import ModuleSearch
from .model import PlannedModel, PlannedRecipe
from .runner import CutShort, Done, NotCached, Runner, StageCall, StageId, UserCode
from .stage import Params, Roles, Stage, Workspace, is_known, to_roles

Outputs_co = TypeVar("Outputs_co", covariant=True)


class _Returns(Protocol[Outputs_co]):
    """A stage, by the outputs that its body returns."""

    name: ClassVar[str]

    @staticmethod
    def run(inputs: Any, params: Any, work: Workspace) -> Outputs_co: ...


class _TakesGraphs(_Returns[Outputs_co], Protocol):
    """A stage that can take a program without its weights."""

    @classmethod
    def takes_weights(cls, params: Any) -> str: ...


_GONE = "nothing changed, but its outputs were not in the store any more"


@dataclass
class Scope:
    """The runner as a model, or one recipe of it, uses it."""

    runner: Runner
    model: PlannedModel
    recipe: PlannedRecipe | None = None  # None for what all recipes of the model share
    skipped: frozenset[str] = frozenset()  # names of the stages after the last one to run
    # what was run or found. A recipe's scope also has what all recipes share.
    done: dict[StageId, Done] = field(default_factory=dict)
    failed: dict[StageId, Exception] = field(default_factory=dict)
    recipes: dict[str, Scope] = field(default_factory=dict)  # scopes of the model's recipes, by name, as they come
    attempts: list[Scope] = field(default_factory=list)  # of a recipe's search, one for each file that it scores
    number: int = 0  # of an attempt, from 1 on
    # finds modules of the user's code, for several models at once; None where stages run that may add some
    search: ModuleSearch | None = None
    # digests of the user's code that stages run, by its source as JSON and the modules that were watched
    sources: dict[tuple[str, tuple[str, ...]], Digest] = field(default_factory=dict)

    def of_recipe(self, recipe: PlannedRecipe, skipped: frozenset[str]) -> Scope:
        scope = self.recipes[recipe.name] = Scope(
            self.runner, self.model, recipe, skipped, dict(self.done), search=self.search, sources=self.sources
        )
        return scope

    def attempt(self, recipe: PlannedRecipe) -> Scope:
        """A scope for one more file of the search of a recipe, which this one is of."""
        done = dict(self.done)
        scope = Scope(self.runner, self.model, recipe, self.skipped, done, search=self.search, sources=self.sources)
        self.attempts.append(scope)
        scope.number = len(self.attempts)
        return scope

    def all(self) -> Iterator[Scope]:
        """This scope, those of recipes, and those of their searches."""
        yield self
        for scope in (*self.recipes.values(), *self.attempts):
            yield from scope.all()

    async def __call__(
        self,
        stage: type[_Returns[Outputs_co]],
        params: Params,
        inputs: Roles | None = None,
        *,
        method: str = "",
        payload: str = "",
        user_code: UserCode | None = None,
    ) -> Outputs_co:
        recipe = self.recipe
        if stage.name in self.skipped:
            raise CutShort
        name = self._id(stage.name, method, payload)
        call = StageCall(
            model=self.model.name,
            id=name,
            stage=cast("type[Stage]", stage),
            params=params,
            inputs=to_roles(inputs) if inputs else {},
            limits=self.model.limits,
            folder=self.model.folder,
            python_path=self.model.python_path,
            program_file=self.model.program_file,
            user_code=user_code,
            recipes=(recipe.name,) if recipe else tuple(each.name for each in self.model.recipes),
            circumstances=tuple(self._circumstances()) if stage.name == "verify" else (),
            submitted=time.time(),
        )
        try:
            self.done[name] = done = await self.runner(call)
        except (NotCached, CutShort):
            raise
        except Exception as error:
            self.failed[name] = error
            if not awaits_diagnosis(stage.name, error):
                add_known_causes(stage.name, error, call.circumstances)
            raise
        outputs: Outputs_co = done.outputs
        return outputs

    async def on_graph(
        self, stage: type[_TakesGraphs[Outputs_co]], params: Any, inputs: Any, *, method: str, payload: str
    ) -> Outputs_co:
        """Calls a stage with the graph of its program, so that the result serves all weights of that graph.

        The weights are bound to the result, here and now. Where the stage cannot do without them, it takes the program
        itself, and its params say why.
        """
        program = inputs.program
        why = stage.takes_weights(params)
        if not why and program.composite:
            if graph := graph_of(program, self.store):
                outputs: Any = await self(stage, params, replace(inputs, program=graph), method=method, payload=payload)
                if outputs.program.kind != REFUSED:
                    bound: Outputs_co = self._bind(self._id(stage.name, method, payload), outputs.program, program)
                    return bound
                self.store.fetch(outputs.program)
                why = self.store.local.read_artifact(outputs.program).decode()
            else:
                why = "the weights are not apart from the graph"
        params = params.model_copy(update={"takes_weights": why})
        return await self(stage, params, inputs, method=method, payload=payload)

    def _bind(self, step: StageId, graph: ArtifactRef, program: ArtifactRef) -> Any:
        """The outputs of a call that made a graph, with the program in its place; unknown ones stay."""
        done = self.done[step]
        if is_known(graph):
            done = replace(done, roles={**done.roles, "program": bind(graph, program, self.store)})
            self.done[step] = done
        return done.outputs

    def _circumstances(self) -> Iterator[Circumstance]:
        recipe = self.recipe
        if recipe is None:
            return
        if recipe.quantizers or recipe.recipe.source_transforms:
            yield "quantized"
        states = {step.method: done.roles.get("state") for step, done in self.done.items() if step.stage == "edge"}
        shared = recipe.recipe.compile.share_mutable_buffers
        if len(states) < 2 or shared:
            return
        with suppress(StoreError):  # whoever needs it says so
            if any(self.read_json(ref) for ref in states.values() if ref and is_known(ref)):
                yield "own state"

    @property
    def plan(self) -> PlannedRecipe:
        """The recipe, in its scope."""
        assert self.recipe  # noqa: S101 - of a recipe's scope
        return self.recipe

    @property
    def store(self) -> Store:
        return self.runner.store

    def find(self, stage: str, *, method: str = "", payload: str = "") -> Done | None:
        """The result of one of this recipe's calls, where it was run or found."""
        return self.done.get(self._id(stage, method, payload))

    def _id(self, stage: str, method: str, payload: str) -> StageId:
        recipe = self.recipe
        if recipe is None:
            return StageId(stage, method)
        return StageId(stage, method, recipe.name, payload if recipe.fat else "", self.number)

    def read_json(self, ref: ArtifactRef) -> Any:
        self.store.fetch(ref)
        return json.loads(self.store.local.read_artifact(ref))

    def methods(self, names: ArtifactRef) -> list[str]:
        """Names of the model's methods, the first one first; a plan for a model never exported assumes one."""
        if not is_known(names):
            return ["forward"]
        methods: list[str] = self.read_json(names)
        return methods

    def step_of(self, error: Exception) -> str:
        """Name of the step that raised an error; the model's name where none did."""
        failed = (item for scope in self.all() for item in scope.failed.items())
        return next((str(step) for step, raised in failed if raised is error), self.model.name)

    def why_left_out(self, names: Iterable[str]) -> dict[str, str]:
        """Why specializations are not in the file that does not require them, by name."""
        problems = {step.payload: f"{step}: {first_line(error)}" for step, error in self.failed.items() if step.payload}
        unavailable = self.recipe.unavailable if self.recipe else {}
        return {name: unavailable.get(name) or problems.get(name, "failed") for name in names}

    def problems(self) -> dict[str, str]:
        """Failed steps: the first line of the reason, by name."""
        return {str(step): first_line(error) for step, error in self.failed.items()}


def outcome_of(done: Done) -> StageOutcome:
    """What is known of a stage as soon as it was run or found; `History` knows why it ran."""
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


def outcome_of_failure(call: StageCall, error: Exception) -> StageOutcome:
    """The same of a stage that failed."""
    method = call.id.method or None
    return StageOutcome(call.slot, call.stage.name, method, call.recipes, "failed", key=None, message=str(error))


class History:
    """What a run's record says of one model's stages: why each ran. Compares keys with those of the slots' last use."""

    def __init__(self, scope: Scope) -> None:
        """Reads the last keys of a model's slots; `remember` replaces them."""
        self._model = scope.model
        self._done: dict[str, list[tuple[StageId, Done]]] = {}  # by key: equal work of two recipes is one stage
        self._failed: dict[int, list[tuple[StageId, Exception]]] = {}
        for each in scope.all():
            for step, done in each.done.items():
                steps = self._done.setdefault(done.key.digest(), [])
                steps += [] if any(step == known for known, _ in steps) else [(step, done)]
            for step, error in each.failed.items():
                self._failed.setdefault(id(error), []).append((step, error))
        self._ledger = scope.store.ledger
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
        return (
            *(self._outcome(key, steps) for key, steps in self._done.items()),
            *(self._failure(steps) for steps in self._failed.values()),
        )

    def _reason(self, step: StageId, done: Done) -> tuple[tuple[FieldChange, ...], str]:
        last = self._ledger.last(step.slot(self._model.name))
        why = getattr(done.call.params, "takes_weights", "")
        needs = f"takes the weights: {why}" if why else ""
        if last is None:
            return (), "; ".join(filter(None, ("had not run before", needs)))
        differing = differing_fields(last.fields, done.key.fields())
        return differing, needs if differing else done.reason or _GONE

    def _outcome(self, key: str, steps: list[tuple[StageId, Done]]) -> StageOutcome:
        step, done = steps[0]
        differs, reason = self._reasons.get(key, ((), ""))
        return replace(
            outcome_of(done),
            slot=step.slot(self._model.name),
            stage=step.stage,
            method=step.method or None,
            recipes=self._recipes(step for step, _ in steps),
            differs=differs,
            message=reason,
        )

    def _failure(self, steps: list[tuple[StageId, Exception]]) -> StageOutcome:
        step, error = steps[0]
        return StageOutcome(
            slot=step.slot(self._model.name),
            stage=step.stage,
            method=step.method or None,
            recipes=self._recipes(step for step, _ in steps),
            status="failed",
            key=None,
            message=str(error),
        )

    def _recipes(self, steps: Iterable[StageId]) -> tuple[str, ...]:
        """The recipes that need a stage; what is made for no recipe is needed by all."""
        named = dict.fromkeys(step.recipe for step in steps)
        return tuple(recipe.name for recipe in self._model.recipes) if "" in named else tuple(named)
