"""What finding out where quality is lost takes: a plan that ends with ladders, and the step that compares operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from .catalog import StageName
from .keys.versions import host_capability
from .ladder_plan import plan_ladder
from .model import PlannedModel, PlannedRecipe
from .numerics import Rung
from .numerics_params import BisectParams, RungParams
from .plan import ModelPlan, export_steps, plan_model
from .quality import Loss
from .steps import Step, leading_to


def plan_ladders(
    model: PlannedModel, methods: Sequence[str] | None, watched: Callable[[str], tuple[str, ...]]
) -> ModelPlan:
    """Plans a model up to the ladders of its recipes: neither verification nor its failure is on the way.

    Args:
        model: the model with its recipes.
        methods: see `plan_model`.
        watched: likewise.
    """
    plan = plan_model(model, methods, watched)
    if not plan.reports:
        return plan
    steps = {step.name: step for step in plan.steps}
    parts = dict(plan.recipe_parts)
    reports, needed = {}, {}
    for recipe in model.recipes:
        ladder = _ladder(recipe, plan)
        steps.setdefault(ladder.name, ladder)
        parts[recipe.name] = {**parts[recipe.name], StageName.LADDER.value: ladder.name}
        reports[recipe.name] = ladder.name
        needed[recipe.name] = leading_to(ladder.name, tuple(steps.values()))
    kept = {name for names in needed.values() for name in names}
    ordered = tuple(step for step in steps.values() if step.name in kept)
    return replace(plan, steps=ordered, reports=reports, recipe_steps=needed, recipe_parts=parts)


def _ladder(recipe: PlannedRecipe, plan: ModelPlan) -> Step:
    parts = plan.recipe_parts[recipe.name]
    exports = {method: parts[step] for method, step in export_steps(plan.methods).items()}
    planned = plan_ladder(recipe, exports, parts)
    name = f"{StageName.LADDER.value}/{recipe.name}"
    return Step(
        name, StageName.LADDER, planned.params, planned.inputs, recipes=(recipe.name,), optional=planned.optional
    )


def plan_nodes(loss: Loss, ladder: Step) -> Step | None:
    """The step that compares the operators of the rung that loses with those of the rung before; None for a payload.

    Args:
        loss: what the ladder says.
        ladder: the step that it comes from.
    """
    rung, before = loss.rung, loss.before
    if before is None or rung.name == "payload":
        return None
    anew = rung.name == "transformed"
    transformed = RungParams(name="transformed").role(rung.method)
    origin = transformed if transformed in ladder.inputs and not anew else RungParams(name="exported").role(rung.method)
    inputs = {
        "before": ladder.inputs[_role(before)],
        "after": ladder.inputs[_role(rung)],
        "origin": ladder.inputs[origin],
        "examples": ladder.inputs[f"examples/{rung.method}"],
    }
    name = f"{StageName.BISECT.value}/{rung.method}/{ladder.recipes[0]}.{rung.label}"
    params = BisectParams(exported_anew=anew, host=host_capability())
    return Step(name, StageName.BISECT, params, inputs, recipes=ladder.recipes)


def _role(rung: Rung) -> str:
    return RungParams(name=rung.name, specializations=rung.specializations).role(rung.method)
