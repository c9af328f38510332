"""Bisection: finds the program on the way to the file that loses quality, and the operators where it does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..engine.keys.search import host_capability
from ..engine.runner import NotCached, Runner
from ..explain.stages.bisect import Bisect
from ..explain.stages.bisect_payload import BisectPayload
from ..results.delivered import Failure
from ..results.numerics import LosingPart, Loss, NodeLosses, PayloadLosses, Rung, Rungs, clipped_db, find_loss
from ..results.tables import Table, format_error, format_sqnr, in_html, rungs_of
from ..verify.stages.ladder import RungParams
from .graph import lower_to_ladder
from .model import PlannedModel, params_of
from .quality import Climbed
from .runs import ModelRun, RecipeRun

_MOST = 10  # operators and delegates that are shown


@dataclass(frozen=True, slots=True)
class Bisection:
    """The rung that loses a recipe's quality. `pteforge bisect` prints its text, notebooks show tables."""

    name: str  # ``MODEL/RECIPE``
    ladder: Rungs
    loss: Loss | None  # the first rung that loses quality, if any
    nodes: NodeLosses | None = None  # losses of that rung's operators; None if they cannot be compared
    payload: PayloadLosses | None = None  # losses within the payload, if it is that rung
    not_made: Mapping[str, str] = field(default_factory=dict)  # failed step -> reason; its rungs are missing

    def to_json(self) -> dict[str, Any]:
        loss = self.loss and {
            "rung": self.loss.rung.label,
            "method": self.loss.rung.method,
            "before": self.loss.before.label if self.loss.before else "eager",
            "reason": self.loss.reason,
            "nodes": self.nodes.to_json() if self.nodes else None,
            "payload": self.payload.to_json() if self.payload else None,
        }
        ladder, not_made = [rung.to_json() for rung in self.ladder.rungs], dict(self.not_made)
        return {"name": self.name, "numerics": ladder, "not_made": not_made, "loss": loss}

    def __repr__(self) -> str:
        return "\n".join(map(str, self.parts()))

    def _repr_html_(self) -> str:
        return "".join(map(in_html, self.parts()))

    def parts(self) -> Iterator[Table | str]:
        """Paragraphs and tables, for people."""
        yield rungs_of(self.ladder)
        yield from (f"not made: {step}: {problem}" for step, problem in self.not_made.items())
        if self.loss is None:
            yield f"{self.name} loses no quality on the way."
            return
        method = "" if self.loss.rung.method == "forward" else f", method {self.loss.rung.method},"
        yield f"{self.loss.rung.label}{method} {self.loss.reason}."
        if self.loss.rung.name == "payload":
            yield from _of_payload(self.payload) if self.payload else ()
        elif self.nodes and self.loss.before:
            yield from _of_nodes(self.nodes, self.loss.before.label, self.loss.rung.label)
        else:
            yield "There is no program before it to compare with."


def _of_nodes(nodes: NodeLosses, before: str, after: str) -> Iterator[Table | str]:
    yield f"The operators of {after} that lose most, and what they were made from:"
    numbers = ("own SQNR", "max abs error", "SQNR so far")
    rows = []
    for node in nodes.losing[:_MOST]:
        figures = node.problem, "", ""
        if node.own and node.passed_on:
            figures = format_sqnr(node.own), format_error(node.own.max_abs_error), format_sqnr(node.passed_on)
        rows.append((" + ".join(node.sources), node.operator, *figures, _where(node.module, node.line)))
    yield Table((before, after, *numbers, "where"), tuple(rows), numbers)
    hidden = len(nodes.losing) - _MOST
    more = f", {hidden} more lose something" if hidden > 0 else ""
    compared = f"{len(nodes.nodes)} values compared of {nodes.operators} operators{more}."
    yield f"{compared} Own: with inputs as they are in {before}."


def _of_payload(losses: PayloadLosses) -> Iterator[Table | str]:
    if losses.delegates:
        yield "Delegates, each run by the runtime while torch computes the rest, against the edge program:"
        numbers = ("operators", "own SQNR", "SQNR of outputs")
        rows = []
        for delegate in losses.delegates[:_MOST]:
            figures = (format_sqnr(worst) if worst else "" for worst in (delegate.own, delegate.passed_on))
            outcome = delegate.problem or ("loses" if delegate.loses else "")
            rows.append((str(delegate.position), delegate.backend, str(delegate.operators), *figures, outcome))
        yield Table(("delegate", "backend", *numbers, ""), tuple(rows), numbers)
    yield losses.conclusion
    for where, part in losses.parts:
        yield "\n".join(_of_part(part, where))


def _of_part(part: LosingPart, where: str) -> Iterator[str]:
    yield f"\n{where}, {format_sqnr(part.own) if part.own else part.problem}:"
    for operator in part.operators:
        text = f"  {operator.node} = {operator.operator}({', '.join(operator.inputs)}) -> {operator.output}"
        yield f"{text}  {_where(operator.module, operator.line)}".rstrip()


def _where(module: str, line: str) -> str:
    return ", ".join(filter(None, (module, line.partition(" ")[0])))  # the function is only in the JSON


async def bisect(runner: Runner, model: PlannedModel, drop_db: float) -> Bisection:
    """Finds where the only recipe of a model loses quality; raises PteforgeError if the ladder cannot be made."""
    (recipe,) = model.recipes
    model_run = ModelRun(runner, model)
    try:
        climbed = (await lower_to_ladder(model_run))[recipe.name]
    except Exception as error:  # noqa: BLE001 - raised below, like a recipe's own
        climbed = error
    if isinstance(climbed, NotCached):
        raise climbed
    if isinstance(climbed, Exception):
        raise Failure.of(model_run.step_of(climbed), climbed).error(model.name) from climbed
    run = model_run.recipes[recipe.name]
    ladder = Rungs(Rung.found(run.read_json(climbed.outputs.numerics)))
    loss = find_loss(ladder, recipe.bounds, drop_db)
    bisection = Bisection(f"{model.name}/{recipe.name}", ladder, loss, not_made=run.problems())
    if loss is None:
        return bisection
    if loss.rung.name == "payload":
        return replace(bisection, payload=await _bisect_payload(run, climbed, loss, drop_db))
    if loss.before is None:
        return bisection
    return replace(bisection, nodes=await _bisect_rung(run, climbed, loss.before, loss.rung))


async def _bisect_rung(run: RecipeRun, climbed: Climbed, before: Rung, after: Rung) -> NodeLosses:
    """Compares the operators of a rung that is not a payload with those of the rung before."""
    programs, method = climbed.inputs.rung, after.method
    keys = [RungParams(name=rung.name, specializations=rung.specializations).key(method) for rung in (before, after)]
    exported_again = after.name == "transformed"
    origin = programs[RungParams(name="exported").key(method)]
    if not exported_again:
        origin = programs.get(RungParams(name="transformed").key(method), origin)
    params = Bisect.Params(exported_anew=exported_again, host=host_capability())
    examples = climbed.inputs.examples[method]
    inputs = Bisect.Inputs(before=programs[keys[0]], after=programs[keys[1]], origin=origin, examples=examples)
    payload = "+".join(after.specializations) or after.name
    outputs = await run(Bisect, params, inputs, method=method, payload=payload)
    return NodeLosses.from_json(run.read_json(outputs.nodes))


async def _bisect_payload(run: RecipeRun, climbed: Climbed, loss: Loss, drop_db: float) -> PayloadLosses | None:
    """Finds the delegates and operators of a payload that lose; None for one that was not made."""
    plan, method = run.plan, loss.rung.method
    (spec,) = [spec for spec in plan.specializations if not plan.fat or spec.name in loss.rung.specializations]
    payload = climbed.payloads.get(spec.name)
    if payload is None:
        return None
    params = BisectPayload.Params(
        method=method,
        target=params_of(spec.target_of(method)),
        least_db=clipped_db(loss.before.figures if loss.before else None) - drop_db,
        drop_db=drop_db,
        drawn_inputs=climbed.params.drawn_inputs,
        host=host_capability(),
    )
    inputs = BisectPayload.Inputs(
        program=payload.linked[method],
        payload=payload.compiled.payload,
        examples=climbed.inputs.examples[method],
        data=climbed.inputs.data,
    )
    outputs = await run(BisectPayload, params, inputs, method=method, payload=spec.name)
    return PayloadLosses.from_json(run.read_json(outputs.losses))
