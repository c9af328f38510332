"""A runner as a model, and each of its recipes, uses it: makes the calls of stages, and remembers what came of each."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, TypeVar, cast

from ..artifacts.digest import Digest
from ..artifacts.ref import ArtifactRef
from ..artifacts.store import Store
from ..errors import first_line
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


@dataclass
class StageCalls(ABC):
    """The calls of stages for a model, or for one recipe of it."""

    runner: Runner
    model: PlannedModel
    # finds modules of the user's code, for several models at once; None where stages run that may add some
    search: ModuleSearch | None = None
    # digests of the user's code that stages run, by its source as JSON and the modules that were watched
    sources: dict[tuple[str, tuple[str, ...]], Digest] = field(default_factory=dict)
    done: dict[StageId, Done] = field(default_factory=dict)  # what was run or found
    failed: dict[StageId, Exception] = field(default_factory=dict)
    skipped: frozenset[str] = frozenset()  # names of the stages after the last one to run

    @abstractmethod
    def all(self) -> Iterator[StageCalls]:
        """These calls, and those of the parts that the lowering branched into."""

    @abstractmethod
    def step(self, stage: str, method: str = "", payload: str = "") -> StageId: ...

    @property
    @abstractmethod
    def needed_by(self) -> tuple[str, ...]:
        """Names of the recipes that these calls are for."""

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
    ) -> Done:
        """Calls a stage, and returns everything that is known of the call."""
        if stage.name in self.skipped:
            raise CutShort
        call = StageCall(
            model=self.model.name,
            id=step,
            stage=cast("type[Stage]", stage),
            params=params,
            inputs=to_roles(inputs) if inputs else {},
            limits=self.model.limits,
            folder=self.model.folder,
            python_path=self.model.python_path,
            program_file=self.model.program_file,
            user_code=user_code,
            recipes=self.needed_by,
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
                add_known_causes(stage.name, error, circumstances)
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
        return json.loads(self.store.local.read_artifact(ref))

    def step_of(self, error: Exception) -> str:
        """Name of the step that raised an error; the model's name where none did."""
        failed = (item for part in self.all() for item in part.failed.items())
        return next((str(step) for step, raised in failed if raised is error), self.model.name)


@dataclass
class ModelRun(StageCalls):
    """A model's use of a runner: the calls that all of its recipes share."""

    recipes: dict[str, RecipeRun] = field(default_factory=dict)  # by name, as they come

    def of_recipe(self, recipe: PlannedRecipe, skipped: frozenset[str]) -> RecipeRun:
        """The calls of a recipe, which begin when those of the model have ended."""
        shared = (self.runner, self.model, self.search, self.sources, dict(self.done))
        run = self.recipes[recipe.name] = RecipeRun(*shared, plan=recipe, skipped=skipped)
        return run

    def all(self) -> Iterator[StageCalls]:
        yield self
        for recipe in self.recipes.values():
            yield from recipe.all()

    def step(self, stage: str, method: str = "", payload: str = "") -> StageId:
        del payload
        return StageId(stage, method)

    @property
    def needed_by(self) -> tuple[str, ...]:
        return tuple(recipe.name for recipe in self.model.recipes)


@dataclass(kw_only=True)
class RecipeRun(StageCalls):
    """A recipe's use of a runner. What was done has the model's calls, too."""

    plan: PlannedRecipe
    attempts: list[RecipeRun] = field(default_factory=list)  # of the search, one for each file that it scores
    number: int = 0  # of an attempt, from 1 on

    def attempt(self, recipe: PlannedRecipe) -> RecipeRun:
        """The calls for one more file of the search."""
        number = len(self.attempts) + 1
        run = replace(self, plan=recipe, done=dict(self.done), failed={}, attempts=[], number=number)
        self.attempts.append(run)
        return run

    def all(self) -> Iterator[StageCalls]:
        yield self
        yield from self.attempts

    def step(self, stage: str, method: str = "", payload: str = "") -> StageId:
        return StageId(stage, method, self.plan.name, payload if self.plan.fat else "", self.number)

    @property
    def needed_by(self) -> tuple[str, ...]:
        return (self.plan.name,)

    async def on_graph(
        self, stage: type[_TakesGraphs[Outputs_co]], params: Any, inputs: Any, *, method: str, payload: str
    ) -> Outputs_co:
        """Calls a stage with the graph of its program, so that the result serves all weights of that graph.

        The weights are bound to the result, here and now. Where the stage cannot do without them, it takes the program
        itself, and its params say why.
        """
        step, program = self.step(stage.name, method, payload), inputs.program
        why = stage.takes_weights(params)
        if not why and program.composite:
            if graph := graph_of(program, self.store):
                done = await self.call(step, stage, params, replace(inputs, program=graph))
                made = done.outputs.program
                if made.kind != REFUSED:
                    if is_known(made):
                        roles = {**done.roles, "program": bind(made, program, self.store)}
                        done = self.done[step] = replace(done, roles=roles)
                    bound: Outputs_co = done.outputs
                    return bound
                self.store.fetch(made)
                why = self.store.local.read_artifact(made).decode()
            else:
                why = "the weights are not apart from the graph"
        params = params.model_copy(update={"takes_weights": why})
        outputs: Outputs_co = (await self.call(step, stage, params, inputs)).outputs
        return outputs

    def why_left_out(self, names: Iterable[str]) -> dict[str, str]:
        """Why specializations are not in the file that does not require them, by name."""
        problems = {step.payload: f"{step}: {first_line(error)}" for step, error in self.failed.items() if step.payload}
        return {name: self.plan.unavailable.get(name) or problems.get(name, "failed") for name in names}

    def problems(self) -> dict[str, str]:
        """Failed steps: the first line of the reason, by name."""
        return {str(step): first_line(error) for step, error in self.failed.items()}
