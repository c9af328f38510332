"""Running a model's steps as their inputs become ready, several at once."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ..artifacts.ref import ArtifactRef
from .executor import StepResult
from .model import PlannedRecipe
from .plan import FIRST_EXPORT, ModelPlan, complete_step
from .steps import Step

Settle = Callable[[Step, Mapping[str, StepResult]], StepResult]
"""Settles a step, given the results of the steps it reads from by role. Called from several threads at once."""


@dataclass
class Progress:
    """Where a model's steps are.

    Attributes:
        results: by step name.
        failures: by step name, what a step raised.
    """

    results: dict[str, StepResult] = field(default_factory=dict)
    failures: dict[str, Exception] = field(default_factory=dict)

    def ready(self, plan: ModelPlan, begun: set[str]) -> list[Step]:
        """Steps that have not begun and whose inputs are all there, or are optional and cannot come any more."""
        lost = self.lost(plan)
        return [
            step
            for step in plan.steps
            if step.name not in begun
            and step.name not in lost
            and all(o.step in self.results or (o.step in lost and r in step.optional) for r, o in step.inputs.items())
        ]

    def lost(self, plan: ModelPlan) -> set[str]:
        """Steps that failed, and those that need what failed."""
        lost = set(self.failures)
        for step in plan.steps:
            if any(o.step in lost and role not in step.optional for role, o in step.inputs.items()):
                lost.add(step.name)
        return lost


def input_refs(step: Step, results: Mapping[str, StepResult]) -> dict[str, ArtifactRef]:
    """Role to artifact.

    Args:
        step: the step.
        results: role to result of the step it comes from.
    """
    return {role: results[role].outputs[output.role] for role, output in step.inputs.items()}


def run_steps(plan: ModelPlan, settle: Settle, progress: Progress, *, threads: int) -> None:
    """Settles every step of a plan that is not in `progress` yet and does not depend on one that fails.

    Args:
        plan: the steps.
        settle: called in pool threads, each in a copy of the caller's context; what it raises is kept in `progress`.
        progress: filled in.
        threads: how many steps at once; 0 for one after another in the calling thread, where Ctrl-C ends them at once.
    """
    begun = set(progress.results) | set(progress.failures)
    running: dict[Future[StepResult], str] = {}
    with _cancelling_pool(threads) as pool:
        while True:
            for step in progress.ready(plan, begun):
                begun.add(step.name)
                keys = {name: result.key.digest() for name, result in progress.results.items()}
                complete = complete_step(step, plan, keys)
                inputs = {role: progress.results[output.step] for role, output in complete.inputs.items()}
                context = contextvars.copy_context()
                running[pool.submit(context.run, settle, complete, inputs)] = step.name
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                name = running.pop(future)
                if error := future.exception():
                    if not isinstance(error, Exception):
                        raise error  # an interrupt ends the whole run
                    progress.failures[name] = error
                else:
                    progress.results[name] = future.result()


class _CallingThread(Executor):
    """Runs what is submitted at once."""

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """A future that is done."""
        future: Future[Any] = Future()
        try:
            future.set_result(function(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - a task boundary: whoever asks the future gets it
            future.set_exception(error)
        return future


@contextmanager
def _cancelling_pool(threads: int) -> Iterator[Executor]:
    """A pool that starts nothing more once its block has ended by an exception."""
    pool = ThreadPoolExecutor(threads, thread_name_prefix="steps") if threads else _CallingThread()
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def find_steps(
    plan: ModelPlan, find: Callable[[Step, Mapping[str, ArtifactRef]], StepResult | None], progress: Progress
) -> None:
    """Fills `progress` with every step of a plan that the ledger has, without running anything."""
    for step in plan.steps:
        if step.name in progress.results or any(o.step not in progress.results for o in step.inputs.values()):
            continue
        keys = {name: result.key.digest() for name, result in progress.results.items()}
        complete = complete_step(step, plan, keys)
        inputs = {role: progress.results[output.step] for role, output in complete.inputs.items()}
        if found := find(complete, input_refs(complete, inputs)):
            progress.results[step.name] = found


def first_failure(plan: ModelPlan, progress: Progress, recipe: str) -> tuple[str, Exception] | None:
    """The first step that failed of those that a recipe cannot do without, and what it raised.

    Args:
        plan: of the model; it may know of no more than its first export.
        progress: where the steps are.
        recipe: name of the recipe.
    """
    report = plan.reports.get(recipe)
    steps = plan.required_by(report) if report else plan.recipe_steps.get(recipe, (FIRST_EXPORT,))
    for step in steps:
        if error := progress.failures.get(step):
            return step, error
    return None


def why_left_out(plan: ModelPlan, progress: Progress, recipe: PlannedRecipe, names: Sequence[str]) -> dict[str, str]:
    """Why specializations are not in the file that does not require them, by name.

    Args:
        plan: of the model.
        progress: where the steps are.
        recipe: the recipe.
        names: of the specializations, as the report has them.
    """
    problems = {
        part.rpartition(".")[2]: f"{step}: {str(progress.failures[step]).splitlines()[0]}"
        for part, step in plan.recipe_parts[recipe.name].items()
        if step in progress.failures
    }
    return {name: recipe.unavailable.get(name) or problems.get(name, "failed") for name in names}
