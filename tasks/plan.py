"""From a model and its recipes to steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..errors import SourceError
from .accuracy_plan import plan_evaluations
from .catalog import StageName
from .model import PlannedModel, PlannedRecipe
from .params import PackParams, ReportParams
from .recipe_plan import plan_recipe
from .source_params import SourceTransformParams
from .source_transforms import source_transform_params, transform_watch_name
from .steps import Step, Steps, leading_to


@dataclass(frozen=True)
class ModelPlan:
    """All steps of a model, each after those it reads from.

    Attributes:
        steps: the steps.
        methods: the model's methods; empty while only the first export is known.
        reports: recipe name to its last step, of those that are not cut short.
        recipe_steps: recipe name to the names of all steps it needs.
        recipe_parts: recipe name to what its steps do for it: name without the recipe to name of the step.
    """

    steps: tuple[Step, ...]
    methods: tuple[str, ...]
    reports: Mapping[str, str]
    recipe_steps: Mapping[str, tuple[str, ...]]
    recipe_parts: Mapping[str, Mapping[str, str]]

    def required_by(self, name: str) -> tuple[str, ...]:
        """The step and all that it cannot do without, directly or not, in the order of the plan."""
        return leading_to(name, self.steps, required_only=True)


FIRST_EXPORT = StageName.EXPORT.value


def export_steps(methods: Sequence[str]) -> dict[str, str]:
    """Method name to what the step is called that exports it; the first one's is known before its method is."""
    return {method: f"{FIRST_EXPORT}/{method}" if position else FIRST_EXPORT for position, method in enumerate(methods)}


def plan_model(
    model: PlannedModel, methods: Sequence[str] | None, watched: Callable[[str], tuple[str, ...]]
) -> ModelPlan:
    """Plans a model.

    Without a recipe there is nothing to do. Which methods a model has is known when its first one has been exported, so
    a plan without `methods` has that one step. Steps with equal stage, params and inputs are one step, whichever
    recipes they come from.

    Args:
        model: the model with its recipes.
        methods: names of its methods, the first one first.
        watched: gives the modules on a watch list: see `PlannedModel.export_params`.
    """
    if not model.recipes:
        return ModelPlan((), (), {}, {}, {})
    steps = Steps()
    names = tuple(recipe.name for recipe in model.recipes)
    exporting = model.export_params(None, watched(model.watch_name(None)))
    first = steps.add(FIRST_EXPORT, StageName.EXPORT, exporting, {}, names)
    if methods is None:
        return ModelPlan(steps.all(), (), {}, {}, {})
    exports = export_steps(methods)
    exports[methods[0]] = first
    for method in methods[1:]:
        params = model.export_params(method, watched(model.watch_name(method)))
        exports[method] = steps.add(exports[method], StageName.EXPORT, params, {}, names)
    datasets = model.calibration_params()
    if unknown := sorted(set(datasets) - set(methods)):
        raise SourceError(f"calibration names the methods {unknown}; the model has {list(methods)}")
    evaluations = plan_evaluations(model, model.eager_source(exporting))
    parts = {}
    for recipe in model.recipes:
        evaluation = evaluations.get(recipe.name)
        transforms = _transforms(model, recipe, methods, watched)
        parts[recipe.name] = plan_recipe(steps, model, recipe, exports, datasets, transforms, evaluation)
    whole = ModelPlan(
        steps=steps.all(),
        methods=tuple(methods),
        reports={name: done[StageName.REPORT.value] for name, done in parts.items()},
        recipe_steps={name: steps.needed_by(done[StageName.REPORT.value]) for name, done in parts.items()},
        recipe_parts=parts,
    )
    cuts = {recipe.name: recipe.until for recipe in model.recipes if recipe.until}
    return _cut(whole, cuts) if cuts else whole


def _cut(plan: ModelPlan, cuts: Mapping[str, StageName]) -> ModelPlan:
    """The plan with some of its recipes going no further than a stage: recipe name to stage."""
    stages = {step.name: step.stage for step in plan.steps}

    def kept(recipe: str, step: str) -> bool:
        return recipe not in cuts or stages[step].position <= cuts[recipe].position

    needed = {
        recipe: tuple(name for name in names if kept(recipe, name)) for recipe, names in plan.recipe_steps.items()
    }
    used = {plan.steps[0].name}.union(*needed.values())
    return ModelPlan(
        steps=tuple(step for step in plan.steps if step.name in used),
        methods=plan.methods,
        reports={recipe: step for recipe, step in plan.reports.items() if kept(recipe, step)},
        recipe_steps=needed,
        recipe_parts={
            recipe: {part: step for part, step in parts.items() if kept(recipe, step)}
            for recipe, parts in plan.recipe_parts.items()
        },
    )


def _transforms(
    model: PlannedModel, recipe: PlannedRecipe, methods: Sequence[str], watched: Callable[[str], tuple[str, ...]]
) -> Mapping[str, SourceTransformParams]:
    """What is done to the module of each method before it is exported, where the recipe asks for anything."""
    if not recipe.recipe.source_transforms:
        return {}
    names = {method: transform_watch_name(model, recipe.recipe, method) for method in methods}
    return {
        method: source_transform_params(model, recipe.recipe, method, watched(name)) for method, name in names.items()
    }


def complete_step(step: Step, plan: ModelPlan, keys: Mapping[str, str]) -> Step:
    """Fills in what is known by the time a step can run.

    Args:
        step: a step of the plan, all of whose required inputs are settled.
        plan: the plan.
        keys: the keys of all steps that are settled, by name.

    Returns:
        The step without the inputs that it has to do without; a report says which payloads those are, and the keys of
        the recipe's other steps.
    """
    inputs = {role: output for role, output in step.inputs.items() if output.step in keys}
    if inputs != step.inputs:
        step = replace(step, inputs=inputs)
    match step.params:
        case PackParams(payloads=payloads):
            present = tuple(payload for payload in payloads if f"payload/{payload.name}" in inputs)
            return replace(step, params=step.params.model_copy(update={"payloads": present}))
        case ReportParams(recipe=recipe, specializations=specializations, left_out=left_out):
            parts = plan.recipe_parts[recipe]
            used = {part: keys[name] for part, name in parts.items() if name != step.name and name in keys}
            compiled = {name: parts.get(f"{StageName.COMPILE.value}.{name}") for name in specializations}
            lost = tuple(name for name, made in compiled.items() if made and made not in keys)
            update = {"stage_keys": used, "left_out": (*left_out, *lost)}
            return replace(step, params=step.params.model_copy(update=update))
    return step
