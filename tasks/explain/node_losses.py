"""Loss of quality at each operator of a program, compared with the matching nodes of the program before it."""

from __future__ import annotations

import math
import operator
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from statistics import fmean
from typing import Any

import torch
from torch.fx import Graph, Node

from ...errors import VerificationFailed
from ..programs.graphs import NodeOrigin, calls_of, module_path
from ..results.figures import Case, worst_of
from ..results.numerics import NodeLoss
from ..upstream.compat import EdgeOpOverload
from ..verify.compare import compare
from ..verify.running import StoredProgram

_PROBES = 4  # random directions in the outputs, for each input
_CODING = ("quantize_per", "dequantize_per", "quantize_affine", "dequantize_affine")


class Comparison:
    """Figures of matched nodes, over several inputs. Nodes go by name: programs with state are loaded again."""

    def __init__(self, before: StoredProgram, after: StoredProgram, matches: Sequence[Match]) -> None:
        self._before = before
        self._after = after
        self._matches = {match.after.name: match for match in matches}
        self._own: dict[str, list[Case]] = defaultdict(list)
        self._passed_on: dict[str, list[Case]] = defaultdict(list)
        self._problems: dict[str, str] = {}
        self._in_outputs: dict[str, list[float]] = defaultdict(list)

    def add(self, flat: Sequence[Any]) -> None:
        """Runs both programs on one input, and the second one again with the first one's values."""
        expected, errors = self._values(flat), dict[str, torch.Tensor]()
        self._after.run(flat, self._compare(expected, self._passed_on))
        self._after.run(flat, self._compare(expected, self._own, errors))
        for name, noise in self._noise_of_outputs(flat, errors).items():
            self._in_outputs[name].append(noise)

    def losses(self, origins: Mapping[str, NodeOrigin]) -> tuple[NodeLoss, ...]:
        """One for each operator, those that lose most first."""
        losses: dict[str, NodeLoss] = {}
        for match in self._matches.values():
            loss = self._loss(match, origins)
            known = losses.setdefault(match.computing.name, loss)  # a value that is dequantized twice is one
            losses[match.computing.name] = min(known, loss, key=attrgetter("order"))
        return tuple(sorted(losses.values(), key=attrgetter("order")))

    def _values(self, flat: Sequence[Any]) -> dict[str, torch.Tensor]:
        wanted, values = {match.before.name for match in self._matches.values()}, {}

        def watch(node: Node, value: Any) -> Any:
            if node.name in wanted:
                values[node.name] = value.clone()  # a later operator may write to it
            return value

        self._before.run(flat, watch)
        return values

    def _noise_of_outputs(self, flat: Sequence[Any], errors: Mapping[str, torch.Tensor]) -> Mapping[str, float]:
        """What each error by itself adds to the outputs: its square over theirs, summed over outputs; to first order.

        Gradients of random sums of the outputs estimate that for all nodes at once. Nodes without a gradient, and those
        of a program that cannot be differentiated, are left out.
        """
        sources = {name: self._matches[name].before.name for name in errors}
        wanted, values, noise = set(sources.values()), dict[str, torch.Tensor](), dict[str, float]()

        def watch(node: Node, value: Any) -> Any:
            if node.op == "output":
                gradients = _gradients(value, values)
                noise.update((name, _noise(errors[name], gradients[source])) for name, source in sources.items())
            elif node.name in wanted and not value._is_view():  # noqa: SLF001 - torch has no public name for it
                values[node.name] = value if value.requires_grad else value.detach().requires_grad_()
                return values[node.name].clone()  # a later operator may write to it
            elif node.name in wanted and value.requires_grad:
                values[node.name] = value
            return value

        with suppress(RuntimeError):  # what an operator without gradients raises
            self._before.run(flat, watch, gradients=True)
        return {name: added for name, added in noise.items() if math.isfinite(added)}

    def _compare(
        self,
        expected: Mapping[str, torch.Tensor],
        figures: dict[str, list[Case]],
        errors: dict[str, torch.Tensor] | None = None,
    ) -> Callable[[Node, Any], Any]:
        """Compares each value; with `errors`, these are kept there, and later operators get the first program's."""

        def watch(node: Node, value: Any) -> Any:
            match = self._matches.get(node.name)
            if match is None:
                return value
            reference = expected[match.before.name]
            output = value.to(reference.dtype)
            try:
                figures[node.name].append(compare(output, reference, method=node.name, label="", output_position=0))
            except VerificationFailed as error:
                self._problems.setdefault(node.name, str(error).rpartition("output 0: ")[2])
            if errors is None:
                return value
            if reference.is_floating_point() and not torch.equal(output, reference):
                errors[node.name] = output - reference
            return reference.to(value.dtype, copy=True)

        return watch

    def _loss(self, match: Match, origins: Mapping[str, NodeOrigin]) -> NodeLoss:
        name = match.after.name
        origin = origins.get(match.sources[0], NodeOrigin())
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
            in_outputs=fmean(self._in_outputs[name]) if self._in_outputs[name] and not problem else None,
        )


def _gradients(outputs: Sequence[Any], values: Mapping[str, torch.Tensor]) -> Mapping[str, list[torch.Tensor]]:
    """The gradients of random sums of outputs of norm 1, by value; none where outputs do not depend on it."""
    tensors = [output for output in outputs if isinstance(output, torch.Tensor) and output.requires_grad]
    norms = [output.detach().float().norm() for output in tensors]
    scaled = [output.float() / norm for output, norm in zip(tensors, norms, strict=True) if norm]
    gradients, generator = defaultdict[str, list[torch.Tensor]](list), torch.Generator().manual_seed(0)
    for _ in range(_PROBES if scaled and values else 0):
        probes = [torch.randn(output.shape, generator=generator) for output in scaled]
        of_values = torch.autograd.grad(scaled, [*values.values()], probes, retain_graph=True, allow_unused=True)
        for name, gradient in zip(values, of_values, strict=True):
            if gradient is not None:
                gradients[name].append(gradient)
    return gradients


def _noise(error: torch.Tensor, gradients: Sequence[torch.Tensor]) -> float:
    """What an error adds to the outputs, see `Comparison`; NaN without gradients."""
    added = [float((error.float() * gradient.float()).sum().square()) for gradient in gradients]
    return fmean(added) if added else math.nan


def operator_name(node: Node) -> str:
    """An operator as people write it, whichever dialect it is of."""
    target = node.target
    return str(target._op if isinstance(target, EdgeOpOverload) else target)  # noqa: SLF001 - no public access


def count_operators(graph: Graph) -> int:
    """The number of nodes that call an operator, and not a function such as ``getitem``."""
    return sum(node.op == "call_function" and hasattr(node.target, "_schema") for node in graph.nodes)


def match_by_module(before: Graph, after: Graph) -> Mapping[str, str]:
    """Names of the nodes of `after` to names in `before`, both exported from one model, by the module that they are of.

    For programs that were exported separately, for example because the model's weights changed in between. If a module
    had a single operator, all operators that it has now stand for that one; otherwise operators of one kind are matched
    in order. Nodes without a counterpart get a unique name.
    """
    labels = {label: name for name, label in _labels(before)}
    modules = Counter(module_path(node) for node in calls_of(before))
    only = {module_path(node): node.name for node in calls_of(before) if modules[module_path(node)] == 1}
    renamed = {name: labels.get(label, f"{name} (new)") for name, label in _labels(after)}
    return renamed | {node.name: only[path] for node in calls_of(after) if (path := module_path(node)) in only}


def _labels(graph: Graph) -> Iterator[tuple[str, tuple[str, str, int]]]:
    """Each operator's name with its module, kind, and number among those."""
    seen: Counter[tuple[str, str]] = Counter()
    for node in calls_of(graph):
        kind = (module_path(node), str(node.target))
        yield node.name, (*kind, seen[kind])
        seen[kind] += 1


@dataclass(frozen=True)
class Match:
    """A node of the program after, and the node of the program before that should have the same value."""

    after: Node
    before: Node
    sources: tuple[str, ...]  # names of the sources that it stands for; the last one is that of the value

    @property
    def computing(self) -> Node:
        """The operator that computes the value; `after` may only quantize it, or take it from a tuple."""
        node = self.after
        while _passes_on(node) and isinstance(node.args[0], Node) and node.args[0].op == "call_function":
            node = node.args[0]
        return node


def root_of(node: Node) -> str:
    """The first node in a node's history: one of the exported program, unless a later stage created the node."""
    name, history = node.name, node.meta.get("from_node")
    while history:
        name, history = history[-1].name, history[-1].from_node
    return str(name)


def match_nodes(before: Graph, after: Graph, renamed: Mapping[str, str]) -> tuple[Match, ...]:
    """Matches the nodes of two programs, whose parameters are attributes, in the order of `after`.

    `renamed` maps sources of `after` to their names in `before`, if it was exported separately.
    """
    old, new = _Groups(before, {}), _Groups(after, renamed)
    new.adopt(_replacements(old, new))
    matches: dict[Node, Match] = {}
    for source, exits in new.exits.items():
        if source not in old.exits:
            continue
        for node, counterpart in _paired(exits, old.exits[source], old, new):
            chain = _merged(counterpart, old, new)
            if comparable := [candidate for candidate in chain if _comparable(node, candidate)]:
                covered = chain[: chain.index(comparable[-1]) + 1]
                names = tuple(dict.fromkeys(old.source[merged] for merged in covered))
                matches[node] = Match(node, comparable[-1], names)
    return tuple(matches[node] for node in after.nodes if node in matches)


class _Groups:
    """The nodes of a graph by source. Attributes, such as parameters, are in no group."""

    def __init__(self, graph: Graph, renamed: Mapping[str, str]) -> None:
        self.source: dict[Node, str] = {}
        for node in graph.nodes:
            if _passes_on(node) and node.args[0] in self.source:
                self.source[node] = self.source[node.args[0]]
            elif node.op in ("placeholder", "call_function"):
                self.source[node] = renamed.get(root_of(node), root_of(node))
        self._find_members()

    def _find_members(self) -> None:
        self.members: dict[str, list[Node]] = defaultdict(list)
        self.exits: dict[str, list[Node]] = defaultdict(list)
        for node, source in self.source.items():
            self.members[source].append(node)
            leaves = any(self.source.get(user) != source for user in node.users)
            if leaves and isinstance(node.meta.get("val"), torch.Tensor):
                self.exits[source].append(node)

    def adopt(self, sources: Mapping[Node, str]) -> None:
        """Gives nodes other sources."""
        self.source |= sources
        self._find_members()

    def users(self, node: Node) -> frozenset[str]:
        """Sources of the users of a node's value outside its group, and its positions among the outputs."""
        sources = set()
        for user in node.users:
            if user.op == "output":
                sources |= {f"output {position}" for position, output in enumerate(user.args[0]) if output is node}
            elif self.source.get(user) not in (None, self.source[node]):
                sources.add(self.source[user])
        return frozenset(sources)

    def ends(self, source: str) -> tuple[frozenset[str], frozenset[str]]:
        """Sources of a group's inputs and of its users."""
        nodes = self.members[source]
        inputs = {self.source[used] for node in nodes for used in node.all_input_nodes if used in self.source}
        return frozenset(inputs - {source}), frozenset(user for node in nodes for user in self.users(node))


def _replacements(old: _Groups, new: _Groups) -> dict[Node, str]:
    """New sources of nodes whose own source is unknown: a vanished one that connected the same sources."""
    gone = defaultdict(list)
    for source in old.members:
        if source not in new.exits:
            gone[old.ends(source)].append(source)
    sources: dict[Node, str] = {}
    for source, nodes in new.members.items():
        candidates = [] if source in old.members else gone.get(new.ends(source), [])
        if len(candidates) == 1:
            sources |= dict.fromkeys(nodes, candidates[0])
    return sources


def _paired(exits: Sequence[Node], counterparts: Sequence[Node], old: _Groups, new: _Groups) -> list[tuple[Node, Node]]:
    if len(counterparts) == 1:
        return [(node, counterparts[0]) for node in exits]
    pairs = []
    for node in exits:
        same_users = [other for other in counterparts if old.users(other) & new.users(node)]
        candidates = same_users or [other for other in counterparts if _comparable(node, other)]
        if len(candidates) == 1:
            pairs.append((node, candidates[0]))
    return pairs


def _merged(node: Node, old: _Groups, new: _Groups) -> list[Node]:
    """A node, and those after it that `new` no longer has and that take nothing else of the graph."""
    chain = [node]
    while True:
        users = old.users(chain[-1])
        (only,) = users if len(users) == 1 else (None,)
        if only is None or only in new.members or only not in old.exits:
            return chain
        exits = old.exits[only]
        if len(exits) != 1 or old.ends(only)[0] != {old.source[chain[-1]]}:
            return chain
        chain.append(exits[0])


def _passes_on(node: Node) -> bool:
    """Whether a node only quantizes, dequantizes or takes from a tuple the value of another one."""
    coding = any(part in str(getattr(node.target, "__name__", "")) for part in _CODING)
    return node.op == "call_function" and (coding or node.target is operator.getitem)


def _comparable(node: Node, other: Node) -> bool:
    """Whether two values can be compared: equal shapes, and equal dtypes or both floating."""
    ours, theirs = node.meta["val"], other.meta["val"]
    kinds = ours.dtype == theirs.dtype or (ours.is_floating_point() and theirs.is_floating_point())
    return bool(kinds and [str(size) for size in ours.shape] == [str(size) for size in theirs.shape])
