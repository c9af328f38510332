"""Where a recipe loses quality: its ladder, the first rung that loses, and the operators that lose there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..artifacts.pte.pieces import read_payload
from ..artifacts.pte.reader import read_pte
from ..artifacts.ref import ArtifactRef
from ..errors import InputError, PteforgeError, StageFailed
from ..tasks.bisect_plan import plan_ladders, plan_nodes
from ..tasks.catalog import StageName
from ..tasks.model import PlannedModel, PlannedRecipe
from ..tasks.numerics import Ladder, NodeLosses
from ..tasks.quality import Loss, find_loss
from .model_run import ModelRun
from .publish import read_json
from .session import Session
from .settling import settle_plainly


@dataclass(frozen=True, slots=True)
class Bisection:
    """Where a recipe loses quality.

    Attributes:
        name: model and recipe.
        ladder: how far each program is from eager.
        loss: the first rung that loses; None where none does.
        nodes: the operators of that rung; None where they cannot be looked into.
        delegates: for a payload that loses, how many delegates of which backend its method has.
        not_made: steps that failed, for want of which rungs are missing: why, by name.
    """

    name: str
    ladder: Ladder
    loss: Loss | None
    nodes: NodeLosses | None = None
    delegates: Mapping[str, int] = field(default_factory=dict)
    not_made: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        loss = self.loss and {
            "rung": self.loss.rung.label,
            "method": self.loss.rung.method,
            "before": self.loss.before.label if self.loss.before else "eager",
            "reason": self.loss.reason,
            "nodes": self.nodes.to_json() if self.nodes else None,
            "delegates": dict(self.delegates),
        }
        return {
            "name": self.name,
            "numerics": self.ladder.to_json(),
            "not_made": dict(self.not_made),
            "loss": loss,
        }


def bisect(session: Session, drop_db: float) -> Bisection:
    """Finds out where the only recipe of the only model of a session loses quality. What is in the store is not made.

    Args:
        session: with one model and one recipe.
        drop_db: see `find_loss`.

    Raises:
        PteforgeError: a stage that the ladder needs failed.
    """
    (model,) = session.models
    (recipe,) = model.recipes
    run = ModelRun(model, session.executor, plan_ladders)
    run.find()
    settle = settle_plainly(session, run)
    if not run.complete:
        session.workers.start()
        session.check_names()
        run.run(settle, threads=2 * session.jobs + 2)
    ladder = run.ladder(recipe.name)
    if ladder is None:
        raise _failed(run, model, recipe)
    loss = find_loss(ladder, recipe.bounds, drop_db)
    found = Bisection(f"{model.name}/{recipe.name}", ladder, loss, not_made=run.problems())
    if loss is None:
        return found
    if loss.rung.name == "payload":
        return replace(found, delegates=_delegates(session, run, recipe, loss))
    made = run.settled(recipe.name, StageName.LADDER.value)
    step = plan_nodes(loss, made.step) if made else None
    if step is None:
        return found
    nodes = read_json(session.store, run.settle_more(step, settle).outputs["nodes"])
    return replace(found, nodes=NodeLosses.from_json(nodes))


def _failed(run: ModelRun, model: PlannedModel, recipe: PlannedRecipe) -> PteforgeError:
    failure = run.failure(recipe.name)
    if failure is None:
        return StageFailed(f"{model.name}/{recipe.name} has no ladder")
    problem = f"{model.name} {failure.step}: {failure.problem}"
    if failure.bad_input:
        return InputError(problem)
    return StageFailed(f"{problem}\n{failure.log_tail.rstrip()}" if failure.log_tail else problem)


def _delegates(session: Session, run: ModelRun, recipe: PlannedRecipe, loss: Loss) -> dict[str, int]:
    payload = "".join(f".{name}" for name in loss.rung.specializations)
    made = run.settled(recipe.name, f"{StageName.COMPILE.value}{payload}")
    if made is None:
        return {}
    ref: ArtifactRef = made.outputs["payload"]
    session.store.fetch(ref)
    pte = read_pte(read_payload(ref, session.store.local))
    counts: dict[str, int] = {}
    for method in pte.methods:
        for delegate in method.delegates if method.name == loss.rung.method else ():
            counts[delegate.id] = counts.get(delegate.id, 0) + 1
    return counts
