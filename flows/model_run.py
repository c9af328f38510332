"""One model's way through a run: found, run, published, told."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ..artifacts.pte.pieces import payload_sha256
from ..artifacts.ref import ArtifactRef
from ..artifacts.runs import StageOutcome
from ..errors import ObjectDamaged, ObjectMissing
from ..tasks.accuracy import AccuracyReport
from ..tasks.catalog import StageName
from ..tasks.dataflow import Progress, Settle, find_steps, first_failure, run_steps, why_left_out
from ..tasks.executor import Executor, StepResult
from ..tasks.figures import Figures
from ..tasks.model import PlannedModel, PlannedRecipe
from ..tasks.numerics import Ladder
from ..tasks.plan import FIRST_EXPORT, ModelPlan, plan_model
from ..tasks.run_notes import RunNotes
from ..tasks.steps import Step
from .debug_files import publish_debug_files
from .outcome import Failure, ModelOutcome, RecipeOutcome, Status, not_applicable
from .publish import Files, publish, read_json
from .rejected import keep_rejected, remove_rejected

Planner = Callable[[PlannedModel, Sequence[str] | None, Callable[[str], tuple[str, ...]]], ModelPlan]
"""Plans a model, as `plan_model` does."""

_HEALINGS = 3  # rounds after an input turned out gone or damaged while the model ran


class ModelRun:
    """The steps of one model and where they are. Used by one thread at a time."""

    def __init__(self, model: PlannedModel, executor: Executor, planner: Planner = plan_model) -> None:
        """Plans what can be planned; runs nothing."""
        self.model = model
        self._executor = executor
        self._planner = planner
        self._progress = Progress()
        self._plan = self._make_plan()
        self.notes = RunNotes(model.name, executor.store.ledger)

    @property
    def complete(self) -> bool:
        """Whether every step is settled."""
        planned = bool(self._plan.methods) or not self.model.recipes
        return planned and all(step.name in self._progress.results for step in self._plan.steps)

    def find(self) -> None:
        """Settles what the ledger has."""
        find_steps(self._plan, self._executor.find, self._progress)
        if self._learn_methods():
            find_steps(self._plan, self._executor.find, self._progress)

    def run(self, settle: Settle, *, threads: int) -> None:
        """Settles all steps that can be settled."""
        for _ in range(_HEALINGS):
            self._progress = Progress()  # what the ledger has is found again, so that each step is shown
            self._plan = self._make_plan()
            run_steps(self._plan, settle, self._progress, threads=threads)
            if self._learn_methods():
                run_steps(self._plan, settle, self._progress, threads=threads)
            if not any(isinstance(error, ObjectMissing | ObjectDamaged) for error in self._progress.failures.values()):
                return

    def settle_more(self, step: Step, settle: Settle) -> StepResult:
        """Settles a step that is not in the plan and reads from settled ones only."""
        return settle(step, {role: self._progress.results[output.step] for role, output in step.inputs.items()})

    def publish(self, out: Path) -> ModelOutcome:
        """Writes the files of the recipes whose steps are all settled."""
        results = self._progress.results
        for result in results.values():
            self.notes.remember(result)
        ran = sum(not result.cached for result in results.values())
        recipes = tuple(self._publish(recipe.name, out) for recipe in self.model.recipes)
        left_out = not_applicable(self.model.not_applicable)
        return ModelOutcome(self.model.name, (*recipes, *left_out), ran, len(results) - ran)

    def stage_outcomes(self) -> tuple[StageOutcome, ...]:
        """Every step, for the run's record."""
        return self.notes.outcomes(self._plan, self._progress)

    def _make_plan(self) -> ModelPlan:
        return self._planner(self.model, self._methods(), self._executor.store.ledger.watched)

    def _methods(self) -> tuple[str, ...] | None:
        first = self._progress.results.get(FIRST_EXPORT)
        if first is None:
            return None
        store = self._executor.store
        store.fetch(first.outputs["methods"])
        return tuple(json.loads(store.local.read_artifact(first.outputs["methods"])))

    def _learn_methods(self) -> bool:
        """Plans the rest once the first export is there; says whether there is more to do."""
        if self._plan.methods or FIRST_EXPORT not in self._progress.results:
            return False
        self._plan = self._make_plan()
        return True

    def _publish(self, recipe: str, out: Path) -> RecipeOutcome:
        settled = self._progress.results
        report = settled.get(self._plan.reports.get(recipe, ""))
        steps = self._plan.recipe_steps.get(recipe, ())
        results = [settled[step] for step in steps if step in settled]
        status: Status = "cached" if all(result.cached for result in results) else "made"
        seconds = sum(result.seconds for result in results)
        if self._plan.methods and recipe not in self._plan.reports and len(results) == len(steps):
            return RecipeOutcome(recipe, status, seconds=seconds)  # cut short, and there is no file
        if report is None:
            return replace(self._failed(recipe, out), ladder=self.ladder(recipe))
        file, data = self._input_of(report, "file"), self._input_of(report, "data")
        assert file  # noqa: S101 - every report reads one
        written = Files(file, data, report.outputs["provenance"])
        path = publish(self._executor.store, written, out / self.model.name, recipe)
        beside = path.with_suffix(".ptd") if data else None
        remove_rejected(out / self.model.name, recipe)
        self._publish_debug_files(report, out, recipe)
        provenance = read_json(self._executor.store, report.outputs["provenance"])
        return RecipeOutcome(
            recipe=recipe,
            status=status,
            path=path,
            data=beside,
            size=path.stat().st_size + (beside.stat().st_size if beside else 0),
            sha256=payload_sha256(file, self._executor.store.local),
            figures=Figures.from_json(provenance["verification"]["figures"]),
            left_out=self._left_out(recipe, provenance["left_out"]),
            accuracy=AccuracyReport.from_json(provenance["accuracy"]) if "accuracy" in provenance else None,
            seconds=seconds,
            ladder=self.ladder(recipe),
        )

    def _publish_debug_files(self, report: StepResult, out: Path, recipe: str) -> None:
        refs = {role: ref for role in report.step.inputs if (ref := self._input_of(report, role))}
        payloads = [each.name for each in self._planned(recipe).specializations]
        publish_debug_files(self._executor.store, refs, out / self.model.name, recipe, payloads)

    def settled(self, recipe: str, part: str) -> StepResult | None:
        """The result of the step that does something for a recipe, where it is settled."""
        return self._progress.results.get(self._plan.recipe_parts.get(recipe, {}).get(part, ""))

    def ladder(self, recipe: str) -> Ladder | None:
        """How far each of a recipe's programs is from eager, where a settled step says so."""
        made = self.settled(recipe, StageName.LADDER.value)
        return Ladder.from_json(read_json(self._executor.store, made.outputs["numerics"])) if made else None

    def problems(self) -> dict[str, str]:
        """Steps that failed: the first line of why, by name."""
        return {
            step: (str(error) or type(error).__name__).splitlines()[0]
            for step, error in self._progress.failures.items()
        }

    def failure(self, recipe: str) -> Failure | None:
        """The failure that keeps a recipe from its end."""
        failed = first_failure(self._plan, self._progress, recipe)
        return Failure.of(*failed) if failed else None

    def _input_of(self, report: StepResult, role: str) -> ArtifactRef | None:
        output = report.step.inputs.get(role)
        return self._progress.results[output.step].outputs[output.role] if output else None

    def _left_out(self, recipe: str, names: Sequence[str]) -> dict[str, str]:
        return why_left_out(self._plan, self._progress, self._planned(recipe), names)

    def _planned(self, recipe: str) -> PlannedRecipe:
        return next(each for each in self.model.recipes if each.name == recipe)

    def _failed(self, recipe: str, out: Path) -> RecipeOutcome:
        """A file that only its accuracy gate refused is kept for those who want to know why it scores so low."""
        failure, parts = self.failure(recipe), self._plan.recipe_parts.get(recipe, {})
        if failure is None:
            return RecipeOutcome(recipe, "failed")
        if failure.step != parts.get(StageName.GATE.value):
            return RecipeOutcome(recipe, "failed", failure=failure)
        made = self._progress.results[parts[StageName.SERIALIZE.value]].outputs
        folder = out / self.model.name
        path = keep_rejected(self._executor.store, made["file"], made.get("data"), folder, recipe)
        failure = replace(failure, problem=f"{failure.problem}; the file is kept as {path}")
        return RecipeOutcome(recipe, "failed", failure=failure, rejected=path)
