"""Whether the models of a zoo can be exported, in both modes of torch.export, and why not."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...tasks.engine.runner import LedgerRunner, NotCached, Runner, run_without_loop
from ...tasks.lowering.graph import diagnose_methods
from ...tasks.lowering.model import PlannedModel
from ...tasks.lowering.runs import ModelRun
from ...tasks.results.delivered import Failure
from ...tasks.results.diagnosis import Diagnosis
from .session import Session

_MODELS_AT_ONCE = 16  # they mostly wait for workers


@dataclass(frozen=True, slots=True)
class ModelDiagnosis:
    """What was found about a model.

    Attributes:
        methods: by method, the diagnosis, or why there is none. The name is empty where the model could not be built.
    """

    model: str
    methods: Mapping[str, Diagnosis | Failure]

    @property
    def well(self) -> bool:
        return all(map(_is_well, self.methods.values()))

    def to_json(self) -> dict[str, Any]:
        methods = {method: {"well": _is_well(found), **found.to_json()} for method, found in self.methods.items()}
        return {"well": self.well, "methods": methods}


def examine(session: Session) -> tuple[ModelDiagnosis, ...]:
    """Diagnoses every method of a session's models. Runs only what is not cached."""
    try:
        return run_without_loop(_examine(session.models, LedgerRunner(session.executor)))
    except NotCached:
        session.workers.start()
        return asyncio.run(_examine(session.models, session.local_runner()))


async def _examine(models: tuple[PlannedModel, ...], runner: Runner) -> tuple[ModelDiagnosis, ...]:
    if isinstance(runner, LedgerRunner):
        return tuple([await _examine_model(model, runner) for model in models])
    slots = asyncio.Semaphore(_MODELS_AT_ONCE)

    async def examine_one(model: PlannedModel) -> ModelDiagnosis:
        async with slots:
            return await _examine_model(model, runner)

    return tuple(await asyncio.gather(*map(examine_one, models)))


async def _examine_model(model: PlannedModel, runner: Runner) -> ModelDiagnosis:
    run = ModelRun(runner, model)
    try:
        found = await diagnose_methods(run)
    except NotCached:
        raise
    except Exception as error:  # noqa: BLE001 - the boundary of a model: the others continue
        found = {"": error}
    if missing := next((each for each in found.values() if isinstance(each, NotCached)), None):
        raise missing
    return ModelDiagnosis(
        model.name,
        {
            method: Failure.of(run.step_of(each), each) if isinstance(each, Exception) else each
            for method, each in found.items()
        },
    )


def _is_well(found: Diagnosis | Failure) -> bool:
    return isinstance(found, Diagnosis) and found.well
