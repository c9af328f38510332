"""From a recipe's accuracy gate to the steps that score its file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..configs.accuracy import AccuracyGate
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


def plan_evaluation(model: PlannedModel, gate: AccuracyGate | None, source: Mapping[str, Any]) -> Evaluation | None:
    """What scoring a recipe's file takes.

    Args:
        model: the model.
        gate: of one of its recipes; None where its file is not scored.
        source: key fields of the model's source.
    """
    if gate is None:
        return None
    evaluator = source_fields(gate.evaluator, ModuleSearch(model.python_path), folder=model.folder)
    seed, host = model.config.seed, host_capability()
    compared = gate.max_drop is not None  # building the model again is not for nothing
    return Evaluation(
        BaselineParams(source=dict(source), evaluator=evaluator, seed=seed, host=host) if compared else None,
        EvaluateParams(evaluator=evaluator, seed=seed, host=host),
        GateParams(evaluator=gate.evaluator.builder, floor=gate.floor, max_drop=gate.max_drop),
    )
