"""Loss of quality at each operator of a program, against the program that it was made from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from executorch.exir.dialects.edge._ops import EdgeOpOverload
from torch.fx import Graph, Node

from ...errors import VerificationFailed
from ..lower.matching import Match, Origin
from ..results.figures import Case, worst_of
from ..results.numerics import NodeLoss
from ..verify.compare import compare
from ..verify.running import StoredProgram


class Comparison:
    """Figures of matched nodes, over several inputs. Nodes go by name: programs with state are loaded again."""

    def __init__(self, before: StoredProgram, after: StoredProgram, matches: Sequence[Match]) -> None:
        self._before = before
        self._after = after
        self._matches = {match.after.name: match for match in matches}
        self._own: dict[str, list[Case]] = defaultdict(list)
        self._passed_on: dict[str, list[Case]] = defaultdict(list)
        self._problems: dict[str, str] = {}

    def add(self, flat: Sequence[Any]) -> None:
        """Runs both programs on one input: the second one as it is, and again with each value corrected at once."""
        expected = self._values(flat)
        self._after.run(flat, self._compare(expected, self._passed_on))
        self._after.run(flat, self._compare(expected, self._own, corrected=True))

    def losses(self, origins: Mapping[str, Origin]) -> tuple[NodeLoss, ...]:
        """One for each operator, those that lose most first."""
        found: dict[str, NodeLoss] = {}
        for match in self._matches.values():
            loss = self._loss(match, origins)
            known = found.setdefault(match.computing.name, loss)  # a value that is dequantized twice is one
            found[match.computing.name] = min(known, loss, key=lambda found: found.order)
        return tuple(sorted(found.values(), key=lambda loss: loss.order))

    def _values(self, flat: Sequence[Any]) -> dict[str, torch.Tensor]:
        wanted, values = {match.before.name for match in self._matches.values()}, {}

        def watch(node: Node, value: Any) -> Any:
            if node.name in wanted:
                values[node.name] = value.clone()  # a later operator may write to it
            return value

        self._before.run(flat, watch)
        return values

    def _compare(
        self, expected: Mapping[str, torch.Tensor], figures: dict[str, list[Case]], *, corrected: bool = False
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
            return reference.to(value.dtype, copy=True) if corrected else value

        return watch

    def _loss(self, match: Match, origins: Mapping[str, Origin]) -> NodeLoss:
        name = match.after.name
        origin = origins.get(match.sources[0], Origin())
        problem = self._problems.get(name, "")
        return NodeLoss(
            node=match.computing.name,
            operator=operator_name(match.computing),
            sources=match.sources,
            module=origin.module,
            line=origin.line,
            own=worst_of(self._own[name]) if self._own[name] and not problem else None,
            passed_on=worst_of(self._passed_on[name]) if self._passed_on[name] and not problem else None,
            problem=problem,
        )


def operator_name(node: Node) -> str:
    """An operator as people write it, whichever dialect it is of."""
    target = node.target
    return str(target._op if isinstance(target, EdgeOpOverload) else target)  # noqa: SLF001 - no public access


def count_operators(graph: Graph) -> int:
    """How many nodes call an operator, and not a function such as ``getitem``."""
    return sum(node.op == "call_function" and hasattr(node.target, "_schema") for node in graph.nodes)
