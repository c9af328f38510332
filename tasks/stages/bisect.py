"""bisect: compares the operators of two programs, one made from the other, on the same inputs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from executorch.exir.dialects.edge._ops import EdgeOpOverload
from torch.fx import Graph, Node

from ...artifacts.digest import canonical_json
from ...artifacts.programs.codec import load_program
from ...artifacts.programs.values import load_value
from ...artifacts.ref import ArtifactRef
from ...errors import VerificationFailed
from ..figures import Case, worst_of
from ..numerics import NodeLoss, NodeLosses
from ..numerics_params import BisectParams
from ..stage import Workspace
from .compare import compare
from .labelled import labelled
from .matching import Match, match_nodes
from .node_origin import Origin, origin_of, same_places
from .program_run import StoredProgram


def run(inputs: Mapping[str, ArtifactRef], params: BisectParams, work: Workspace) -> Mapping[str, ArtifactRef]:
    """Takes `before`, `after`, `origin` and `examples` of one method; gives `nodes` (report/nodes).

    `origin` is the program that was exported, in which the others' histories begin and whose nodes know the model's
    code. Where `after` was exported anew, it is `before`.
    """
    before, after = StoredProgram(inputs["before"], work.store), StoredProgram(inputs["after"], work.store)
    renamed = same_places(before.module.graph, after.module.graph) if params.exported_anew else {}
    matches = match_nodes(before.module.graph, after.module.graph, renamed)
    matches = tuple(match for match in matches if match.after.op == "call_function")
    comparison = _Comparison(before, after, matches)
    real = [flat for label, flat, _ in labelled(load_value(inputs["examples"], work.store), drawn=0)]
    for flat in real[: params.inputs]:
        comparison.add(flat)
    origins = {node.name: origin_of(node) for node in load_program(inputs["origin"], work.store).graph.nodes}
    losses = NodeLosses(comparison.losses(origins), operators=_count_operators(after.module.graph))
    return {"nodes": work.store.put_artifact("report/nodes", canonical_json(losses.to_json()))}


class _Comparison:
    """Figures of matched nodes, over several inputs. Nodes go by name: programs with state are loaded again."""

    def __init__(self, before: StoredProgram, after: StoredProgram, matches: Sequence[Match]) -> None:
        self._before = before
        self._after = after
        self._matches = {match.after.name: match for match in matches}
        self._own: dict[str, list[Case]] = defaultdict(list)
        self._passed_on: dict[str, list[Case]] = defaultdict(list)
        self._problems: dict[str, str] = {}

    def add(self, flat: Sequence[Any]) -> None:
        """Runs both programs on one input: the second as it is, and again with each value put right at once."""
        expected = self._values(flat)
        self._after.run(flat, self._compare(expected, self._passed_on))
        self._after.run(flat, self._compare(expected, self._own, put_right=True))

    def losses(self, origins: Mapping[str, Origin]) -> tuple[NodeLoss, ...]:
        """One for each operator, those that lose most first."""
        found: dict[str, NodeLoss] = {}
        for match in self._matches.values():
            loss = self._loss(match, origins)
            known = found.setdefault(match.computing.name, loss)  # what is dequantized twice has one value
            found[match.computing.name] = min(known, loss, key=lambda each: each.order)
        return tuple(sorted(found.values(), key=lambda each: each.order))

    def _values(self, flat: Sequence[Any]) -> dict[str, torch.Tensor]:
        wanted, values = {match.before.name for match in self._matches.values()}, {}

        def watch(node: Node, value: Any) -> Any:
            if node.name in wanted:
                values[node.name] = value.clone()  # a later operator may write to it
            return value

        self._before.run(flat, watch)
        return values

    def _compare(
        self, expected: Mapping[str, torch.Tensor], figures: dict[str, list[Case]], *, put_right: bool = False
    ) -> Callable[[Node, Any], Any]:
        def watch(node: Node, value: Any) -> Any:
            match = self._matches.get(node.name)
            if match is None:
                return value
            reference = expected[match.before.name]
            try:
                figures[node.name].append(
                    compare(value.to(reference.dtype), reference, method=node.name, label="", output_position=0)
                )
            except VerificationFailed as error:
                self._problems.setdefault(node.name, str(error).rpartition("output 0: ")[2])
            return reference.to(value.dtype, copy=True) if put_right else value

        return watch

    def _loss(self, match: Match, origins: Mapping[str, Origin]) -> NodeLoss:
        name = match.after.name
        origin = origins.get(match.sources[0], Origin())
        problem = self._problems.get(name, "")
        return NodeLoss(
            node=match.computing.name,
            operator=_operator(match.computing),
            sources=match.sources,
            module=origin.module,
            line=origin.line,
            own=worst_of(self._own[name]) if self._own[name] and not problem else None,
            passed_on=worst_of(self._passed_on[name]) if self._passed_on[name] and not problem else None,
            problem=problem,
        )


def _operator(node: Node) -> str:
    """An operator as people write it, whichever dialect it is of."""
    target = node.target
    return str(target._op if isinstance(target, EdgeOpOverload) else target)  # noqa: SLF001 - no public access


def _count_operators(graph: Graph) -> int:
    return sum(node.op == "call_function" and hasattr(node.target, "_schema") for node in graph.nodes)
