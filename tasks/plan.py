"""From a model and its recipes to steps: stages with their params, and whose outputs they read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from .catalog import StageName
from .keys.versions import host_capability
from .model import PlannedModel, PlannedRecipe
from .params import (
    CompileParams,
    EdgeParams,
    Params,
    PartitionParams,
    PreprocessParams,
    ReportParams,
    SerializeParams,
    TargetParams,
    VerifyParams,
)


@dataclass(frozen=True, slots=True)
class Output:
    """One output of a step."""

    step: str
    role: str


@dataclass(frozen=True, slots=True)
class Step:
    """One stage of one model, to be run or found in the ledger.

    Attributes:
        name: unique in its model: stage, then method and recipe where they tell steps apart.
        stage: which stage.
        params: what it reads besides artifacts.
        inputs: role to the output of an earlier step.
        recipes: the recipes that need it.
        target: the target whose code takes part, if any.
    """

    name: str
    stage: StageName
    params: Params
    inputs: Mapping[str, Output]
    recipes: tuple[str, ...]
    target: TargetParams | None = None


@dataclass(frozen=True)
class ModelPlan:
    """All steps of a model, each after those it reads from.

    Attributes:
        steps: the steps.
        methods: the model's methods; empty while only the first export is known.
        reports: recipe name to its last step.
        recipe_steps: recipe name to the names of all steps it needs.
    """

    steps: tuple[Step, ...]
    methods: tuple[str, ...]
    reports: Mapping[str, str]
    recipe_steps: Mapping[str, tuple[str, ...]]


FIRST_EXPORT = StageName.EXPORT.value


def plan_model(
    model: PlannedModel, methods: Sequence[str] | None, watched: Mapping[str | None, tuple[str, ...]]
) -> ModelPlan:
    """Plans a model.

    Which methods a model has is known when its first one has been exported, so a plan without `methods` has that one
    step. Steps with equal stage, params and inputs are one step, whichever recipes they come from.

    Args:
        model: the model with its recipes.
        methods: names of its methods, the first one first.
        watched: by method, None for the first one: see `PlannedModel.export_params`; what is missing watches nothing.
    """
    steps, known = _Steps(), dict(watched)
    names = tuple(recipe.name for recipe in model.recipes)
    first = steps.add(FIRST_EXPORT, StageName.EXPORT, model.export_params(None, known.get(None, ())), {}, names)
    if methods is None:
        return ModelPlan(steps.all(), (), {}, {})
    exports = {methods[0]: first}
    for method in methods[1:]:
        params = model.export_params(method, known.get(method, ()))
        exports[method] = steps.add(f"export/{method}", StageName.EXPORT, params, {}, names)
    reports = {recipe.name: _plan_recipe(steps, model, recipe, exports) for recipe in model.recipes}
    needed = {name: steps.needed_by(report) for name, report in reports.items()}
    return ModelPlan(steps.all(), tuple(methods), reports, needed)


def complete_params(step: Step, plan: ModelPlan, keys: Mapping[str, str]) -> Step:
    """Fills in what a report says of the other steps: their keys, known by the time it can run."""
    if not isinstance(step.params, ReportParams):
        return step
    steps = plan.recipe_steps[step.params.recipe]
    used = {_unshared_name(name): keys[name] for name in steps if name != step.name}
    return replace(step, params=step.params.model_copy(update={"stage_keys": used}))


def _unshared_name(name: str) -> str:
    """A step's name without the recipe: a shared step bears the name of the first recipe that was asked for."""
    stage, *rest = name.split("/")
    match stage:
        case StageName.EXPORT.value:
            return name
        case StageName.EDGE.value | StageName.PARTITION.value:
            return f"{stage}/{rest[0]}"
    return stage


class _Steps:
    """Steps by what they do."""

    def __init__(self) -> None:
        self._by_work: dict[tuple[StageName, str, tuple[tuple[str, Output], ...]], str] = {}
        self._steps: dict[str, Step] = {}

    def add(
        self,
        name: str,
        stage: StageName,
        params: Params,
        inputs: Mapping[str, Output],
        recipes: tuple[str, ...],
        target: TargetParams | None = None,
    ) -> str:
        """The name of the step that does this work, a new one if there is none yet."""
        work = (stage, params.model_dump_json(), tuple(sorted((role, output) for role, output in inputs.items())))
        known = self._by_work.setdefault(work, name)
        step = self._steps.get(known) or Step(name, stage, params, inputs, (), target)
        self._steps[known] = replace(step, recipes=tuple(dict.fromkeys((*step.recipes, *recipes))))
        return known

    def all(self) -> tuple[Step, ...]:
        return tuple(self._steps.values())

    def needed_by(self, name: str) -> tuple[str, ...]:
        """The step and all that it reads from, directly or not, in the order of the plan."""
        needed = {name}
        for step in reversed(self._steps.values()):
            if step.name in needed:
                needed |= {output.step for output in step.inputs.values()}
        return tuple(step for step in self._steps if step in needed)


def _plan_recipe(steps: _Steps, model: PlannedModel, recipe: PlannedRecipe, exports: Mapping[str, str]) -> str:
    """Adds the steps of one recipe; gives the name of the last one."""
    name, target = recipe.name, recipe.target_params
    edge = _edge_params(recipe)
    programs: dict[str, Output] = {}
    for method, export in exports.items():
        keeper = target if edge.preserve_for else None
        inputs = {"program": Output(export, "program")}
        program = steps.add(f"edge/{method}/{name}", StageName.EDGE, edge, inputs, (name,), keeper)
        if recipe.target.delegates:
            partition = PartitionParams(target=target, edge=edge)
            inputs = {"program": Output(program, "program")}
            program = steps.add(f"partition/{method}/{name}", StageName.PARTITION, partition, inputs, (name,), target)
        programs[f"program/{method}"] = Output(program, "program")
    linked = {**programs, "constants": Output(FIRST_EXPORT, "constants")}
    if recipe.target.delegates:
        preprocess = PreprocessParams(target=target)
        step = steps.add(f"preprocess/{name}", StageName.PREPROCESS, preprocess, programs, (name,), target)
        linked["delegates"] = Output(step, "delegates")
    compiling = CompileParams(options=recipe.recipe.compile, edge=edge)
    payload = Output(steps.add(f"compile/{name}", StageName.COMPILE, compiling, linked, (name,)), "payload")
    serializing = SerializeParams(
        form=recipe.recipe.output.form, methods=tuple(exports), backends=tuple(recipe.target.backends)
    )
    serialize = steps.add(f"serialize/{name}", StageName.SERIALIZE, serializing, {"payload": payload}, (name,))
    return _plan_proof(steps, model, recipe, exports, Output(serialize, "file"))


def _plan_proof(
    steps: _Steps, model: PlannedModel, recipe: PlannedRecipe, exports: Mapping[str, str], file: Output
) -> str:
    name = recipe.name
    examples = {f"examples/{method}": Output(export, "examples") for method, export in exports.items()}
    verifying = VerifyParams(bounds=recipe.bounds, host=host_capability())
    verify = steps.add(f"verify/{name}", StageName.VERIFY, verifying, {"file": file, **examples}, (name,))
    reporting = ReportParams(
        model=model.name,
        recipe=name,
        target=recipe.target_params,
        stage_keys={},
        versions=recipe.versions,
        bounds=recipe.bounds,
    )
    inputs = {"file": file, "figures": Output(verify, "figures"), **examples}
    return steps.add(f"report/{name}", StageName.REPORT, reporting, inputs, (name,))


def _edge_params(recipe: PlannedRecipe) -> EdgeParams:
    options = recipe.recipe.edge
    keeping = recipe.target.preserving()
    return EdgeParams(
        preserve_for=None if keeping is None else TargetParams(name=recipe.target.name, options=keeping),
        preserve_operators=options.preserve_operators,
        check_ir_validity=options.check_ir_validity,
        skip_dim_order=options.skip_dim_order,
    )
