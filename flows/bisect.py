"""Where a recipe loses quality: its ladder, the first rung that loses, and the operators that lose there."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import InputError, PteforgeError, StageFailed
from ..formats.pte.reader import read_pte
from ..tasks.codecs.payload import read_payload
from ..tasks.lowering import bisect_rung, lower_to_ladder
from ..tasks.numerics import Ladder, Loss, NodeLosses, Rung, find_loss
from ..tasks.runner import LedgerRunner, LocalRunner, NotCached, Runner, run_without_loop
from ..tasks.scope import Scope
from ..tasks.stages.compile import Compile
from ..tasks.stages.ladder import RungParams
from .outcome import Failure
from .session import Session
from .zoo import ladder_of


@dataclass(frozen=True, slots=True)
class Bisection:
    """Where a recipe loses quality."""

    name: str  # ``MODEL/RECIPE``
    ladder: Ladder
    loss: Loss | None  # the first rung that loses quality, if any
    nodes: NodeLosses | None = None  # losses of that rung's operators; None if they cannot be compared
    # if the payload loses, backend -> number of delegates of the method
    delegates: Mapping[str, int] = field(default_factory=dict)
    not_made: Mapping[str, str] = field(default_factory=dict)  # failed step -> reason; its rungs are missing

    def to_json(self) -> dict[str, Any]:
        loss = self.loss and {
            "rung": self.loss.rung.label,
            "method": self.loss.rung.method,
            "before": self.loss.before.label if self.loss.before else "eager",
            "reason": self.loss.reason,
            "nodes": self.nodes.to_json() if self.nodes else None,
            "delegates": dict(self.delegates),
        }
        ladder, not_made = self.ladder.to_json(), dict(self.not_made)
        return {"name": self.name, "numerics": ladder, "not_made": not_made, "loss": loss}


def bisect(session: Session, drop_db: float) -> Bisection:
    """Finds where the only recipe of a session's only model loses quality. Runs only stages that are not cached.

    Raises:
        PteforgeError: a stage that the ladder needs failed.
    """
    try:
        return run_without_loop(_bisect(session, LedgerRunner(session.executor), drop_db))
    except NotCached:
        session.workers.start()
        session.check_names()
        runner = LocalRunner(session.executor, 2 * session.jobs + 2, session)
        return asyncio.run(_bisect(session, runner, drop_db))


async def _bisect(session: Session, runner: Runner, drop_db: float) -> Bisection:
    (model,) = session.models
    (recipe,) = model.recipes
    run = Scope(runner, model)
    name = f"{model.name}/{recipe.name}"
    try:
        result = (await lower_to_ladder(run))[recipe.name]
    except Exception as error:  # noqa: BLE001 - raised below, like a recipe's own
        result = error
    scope = run.recipes.get(recipe.name, run)
    if isinstance(result, NotCached):
        raise result
    if isinstance(result, Exception):
        raise _failure(scope, result) from result
    ladder = ladder_of(scope)
    assert ladder  # noqa: S101 - the stage has succeeded
    loss = find_loss(ladder, recipe.bounds, drop_db)
    found = Bisection(name, ladder, loss, not_made=scope.problems())
    if loss is None:
        return found
    if loss.rung.name == "payload":
        return replace(found, delegates=_delegates(scope, loss))
    if loss.before is None:
        return found
    nodes = (await bisect_rung(scope, _params(loss.before), _params(loss.rung), loss.rung.method)).nodes
    return replace(found, nodes=NodeLosses.from_json(scope.read_json(nodes)))


def _params(rung: Rung) -> RungParams:
    return RungParams(name=rung.name, specializations=rung.specializations)


def _failure(scope: Scope, error: Exception) -> PteforgeError:
    failure = Failure.of(scope.step_of(error), error)
    problem = f"{scope.model.name} {failure.step}: {failure.problem}"
    if failure.bad_input:
        return InputError(problem)
    return StageFailed(f"{problem}\n{failure.log_tail.rstrip()}" if failure.log_tail else problem)


def _delegates(scope: Scope, loss: Loss) -> dict[str, int]:
    made = scope.find(Compile.name, payload="".join(loss.rung.specializations))
    if made is None:
        return {}
    payload = made.outputs.payload
    scope.store.fetch(payload)
    pte = read_pte(read_payload(payload, scope.store.local))
    methods = [method for method in pte.methods if method.name == loss.rung.method]
    return dict(Counter(delegate.id for method in methods for delegate in method.delegates))
