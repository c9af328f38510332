"""From the accuracy gates of a model's recipes to what their stages read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .accuracy_params import BaselineParams, EvaluateParams, GateParams
from .keys.search import ModuleSearch
from .keys.source import source_fields
from .keys.versions import host_capability
from .model import PlannedModel


@dataclass(frozen=True)
class Evaluation:
    """Params of the stages that score one file.

    Attributes:
        baseline: of `baseline`; None where eager's score is not asked for.
        evaluate: of `evaluate`.
        gate: of `gate`.
    """

    baseline: BaselineParams | None
    evaluate: EvaluateParams
    gate: GateParams


def plan_evaluations(model: PlannedModel, source: Mapping[str, Any]) -> dict[str, Evaluation]:
    """What scoring the files of a model's recipes takes: by recipe, of those that have a gate.

    Args:
        model: the model.
        source: key fields of the model's source.
    """
    search, seed, host = ModuleSearch(model.python_path), model.config.seed, host_capability()
    evaluators: dict[str, dict[str, Any]] = {}  # recipes tend to have the same one, and its files may be large
    evaluations = {}
    for recipe in model.recipes:
        gate = recipe.gate
        if gate is None:
            continue
        written = gate.evaluator.model_dump_json()
        if written not in evaluators:
            evaluators[written] = source_fields(gate.evaluator, search, folder=model.folder)
        evaluator = evaluators[written]
        compared = gate.max_drop is not None  # building the model again is not for nothing
        evaluations[recipe.name] = Evaluation(
            BaselineParams(source=dict(source), evaluator=evaluator, seed=seed, host=host) if compared else None,
            EvaluateParams(evaluator=evaluator, seed=seed, host=host),
            GateParams(evaluator=gate.evaluator.builder, floor=gate.floor, max_drop=gate.max_drop),
        )
    return evaluations
