"""Runs `pteforge bisect` and `doctor`: finds where a recipe loses quality, and whether models can be exported."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import InputError
from ...tasks.engine.executor import LedgerRunner
from ...tasks.engine.runner import NotCached, Runner
from ...tasks.lowering import bisection as lowering
from ...tasks.lowering.bisection import Bisection
from ...tasks.lowering.graph import diagnose_methods
from ...tasks.lowering.model import PlannedModel
from ...tasks.lowering.runs import ModelRun, run_without_loop
from ...tasks.results.delivered import Failure
from ...tasks.results.diagnosis import Diagnosis
from ...tasks.results.figures import Worst
from ...tasks.results.numerics import CLEAN_DB, NodeLoss
from .session import Session, check_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def bisect(session: Session, drop_db: float) -> Bisection:
    """Finds where a session's only recipe loses quality; runs uncached stages only. PteforgeError if one fails."""
    (model,) = session.models
    try:
        return run_without_loop(lowering.bisect(LedgerRunner(session.executor), model, drop_db))
    except NotCached:
        session.workers.start()
        check_names(session)
        return asyncio.run(lowering.bisect(session.local_runner(), model, drop_db))


_EXACT_DB = 160.0  # plotted for equal outputs; fp32 reaches about 150


def check_plot(path: Path) -> None:
    """Raises InputError, before any work, if a plot cannot be made or written."""
    if find_spec("matplotlib") is None:
        raise InputError("plots need Matplotlib: pip install 'pteforge[plot]'")
    if path.suffix.lower() != ".png":
        raise InputError(f"plots are PNG files: {path} should end in .png")
    if not path.absolute().parent.is_dir():
        raise InputError(f"the plot cannot be written to {path}: there is no folder {path.absolute().parent}")


def draw(bisection: Bisection) -> bytes:
    """The plot as a PNG file."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - slow import, and an optional dependency

    nodes = bisection.nodes.losing[:12] if bisection.nodes else ()
    columns = 2 if nodes else 1
    figure = Figure(figsize=(6.0 * columns, 4.5), layout="constrained")
    axes = figure.subplots(1, columns, squeeze=False)[0]
    _draw_rungs(axes[0], bisection)
    if nodes:
        _draw_nodes(axes[1], nodes, bisection)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=120)
    return content.getvalue()


def _draw_rungs(axes: Axes, bisection: Bisection) -> None:
    for path in bisection.ladder.paths():
        measured = [rung for rung in path if rung.figures]
        label = " ".join(filter(None, ("+".join(path[-1].specializations), path[-1].method)))
        axes.plot([rung.name for rung in measured], [_decibels(rung.figures) for rung in measured], "o-", label=label)
    if loss := bisection.loss:
        axes.plot([loss.rung.name], [_decibels(loss.rung.figures)], "rx", markersize=12, label="loses")
    axes.axhspan(CLEAN_DB, _EXACT_DB + 5, color="tab:green", alpha=0.1)
    axes.set_ylabel("SQNR against eager, dB (equal: on top)")
    axes.set_title(bisection.name)
    axes.legend()


def _draw_nodes(axes: Axes, nodes: Sequence[NodeLoss], bisection: Bisection) -> None:
    names = [" + ".join(node.sources) for node in nodes]
    axes.plot([_decibels(node.own) for node in nodes], names, "o", color="tab:orange", label="alone")
    axes.plot([_decibels(node.passed_on) for node in nodes], names, "x", color="tab:gray", label="so far")
    axes.invert_yaxis()
    axes.set_xlim(left=min(0.0, axes.get_xlim()[0]))
    axes.grid(axis="x", alpha=0.3)
    axes.set_xlabel("SQNR of operators, dB")
    axes.set_title(f"loses most in {bisection.loss.rung.label}" if bisection.loss else "")
    axes.legend()


def _decibels(worst: Worst | None) -> float:
    if worst is None:
        return 0.0
    return _EXACT_DB if worst.sqnr_db is None else worst.sqnr_db


@dataclass(frozen=True, slots=True)
class ModelDiagnosis:
    """The diagnosis of each method of a model, or why there is none; without a name if the model cannot be built."""

    model: str
    methods: Mapping[str, Diagnosis | Failure]

    @property
    def well(self) -> bool:
        return all(method["well"] for method in self._described().values())

    def to_json(self) -> dict[str, Any]:
        return {"well": self.well, "methods": self._described()}

    def _described(self) -> dict[str, dict[str, Any]]:
        return {
            method: {"well": isinstance(diagnosis, Diagnosis) and diagnosis.well, **diagnosis.to_json()}
            for method, diagnosis in self.methods.items()
        }


def examine(session: Session) -> tuple[ModelDiagnosis, ...]:
    """Diagnoses every method of a session's models. Runs only stages that are not cached."""
    try:
        return run_without_loop(_examine(session.models, LedgerRunner(session.executor)))
    except NotCached:
        session.workers.start()
        return asyncio.run(_examine(session.models, session.local_runner()))


async def _examine(models: tuple[PlannedModel, ...], runner: Runner) -> tuple[ModelDiagnosis, ...]:
    if isinstance(runner, LedgerRunner):
        return tuple([await _examine_model(model, runner) for model in models])
    limit = asyncio.Semaphore(16)  # models at once; they mostly wait for workers

    async def examine_one(model: PlannedModel) -> ModelDiagnosis:
        async with limit:
            return await _examine_model(model, runner)

    return tuple(await asyncio.gather(*map(examine_one, models)))


async def _examine_model(model: PlannedModel, runner: Runner) -> ModelDiagnosis:
    run = ModelRun(runner, model)
    try:
        results = await diagnose_methods(run)
    except Exception as error:  # noqa: BLE001 - the boundary of a model: the others continue
        results = {"": error}
    if missing := next((result for result in results.values() if isinstance(result, NotCached)), None):
        raise missing
    methods = {
        method: Failure.of(run.step_of(result), result) if isinstance(result, Exception) else result
        for method, result in results.items()
    }
    return ModelDiagnosis(model.name, methods)
