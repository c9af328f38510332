"""Which node of a program stands for which node of the program that it was made from.

torch keeps for each node the nodes that it was made from (`from_node`), through decomposition and quantization; the
first of them is a node of the exported program, here the *source*. Operators that one source became are a group, and
what leaves the group is its value. Quantize and dequantize operators belong to what they quantize.

Three things need more. What has several values (an LSTM, a split) is matched by who uses them. Operators that a pass
made without saying from what are matched by what they connect. And an operator that is gone was merged into the one
before it, as a batch norm into a convolution, whose value then is that of both.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.fx import Graph, Node

_CODING = ("quantize_per", "dequantize_per", "quantize_affine", "dequantize_affine")


@dataclass(frozen=True)
class Match:
    """A node of the program after, for nodes of the program before.

    Attributes:
        after: the node.
        before: the node whose value it has.
        sources: names of the sources that it stands for, the one whose value it has last.
    """

    after: Node
    before: Node
    sources: tuple[str, ...]

    @property
    def computing(self) -> Node:
        """The operator that computes the value, which `after` may only have quantized, or taken from a tuple."""
        node = self.after
        while _passes_on(node) and isinstance(node.args[0], Node) and node.args[0].op == "call_function":
            node = node.args[0]
        return node


def root_of(node: Node) -> str:
    """The first in a node's history: a node of the exported program, unless a later stage made it of nothing."""
    name, history = node.name, node.meta.get("from_node")
    while history:
        name, history = history[-1].name, history[-1].from_node
    return str(name)


def match_nodes(before: Graph, after: Graph, renamed: Mapping[str, str]) -> tuple[Match, ...]:
    """Matches the nodes of two programs, in the order of `after`.

    Args:
        before: graph of the program before, parameters as attributes.
        after: likewise, of the program after.
        renamed: sources of `after` that have another name in `before`, where its history begins anew.
    """
    old, new = _Groups(before, {}), _Groups(after, renamed)
    new.adopt(_strangers(old, new))
    matches: dict[Node, Match] = {}
    for source, exits in new.exits.items():
        if source not in old.exits:
            continue
        for node, counterpart in _paired(exits, old.exits[source], old, new):
            chain = _merged(counterpart, old, new)
            fitting = [each for each in chain if _alike(node, each)]
            if fitting:
                covered = chain[: chain.index(fitting[-1]) + 1]
                names = tuple(dict.fromkeys(old.source[each] for each in covered))
                matches[node] = Match(node, fitting[-1], names)
    return tuple(matches[node] for node in after.nodes if node in matches)


class _Groups:
    """The nodes of a graph by source. Attributes, parameters among them, are in no group."""

    def __init__(self, graph: Graph, renamed: Mapping[str, str]) -> None:
        self.source: dict[Node, str] = {}
        for node in graph.nodes:
            if node.op in ("placeholder", "call_function"):
                self.source[node] = self._source(node, renamed)
        self._find_members()

    def _source(self, node: Node, renamed: Mapping[str, str]) -> str:
        if _passes_on(node) and node.args[0] in self.source:
            return self.source[node.args[0]]
        return renamed.get(root_of(node), root_of(node))

    def _find_members(self) -> None:
        self.members: dict[str, list[Node]] = defaultdict(list)
        self.exits: dict[str, list[Node]] = defaultdict(list)
        for node, source in self.source.items():
            self.members[source].append(node)
            if any(self.source.get(user) != source for user in node.users) and _is_tensor(node):
                self.exits[source].append(node)

    def adopt(self, sources: Mapping[Node, str]) -> None:
        """Gives nodes other sources."""
        self.source |= sources
        self._find_members()

    def users(self, node: Node) -> frozenset[str]:
        """Sources of what uses a node's value outside of its group; positions where it is an output."""
        found = set()
        for user in node.users:
            if user.op == "output":
                found |= {f"output {position}" for position, each in enumerate(user.args[0]) if each is node}
            elif self.source.get(user) not in (None, self.source[node]):
                found.add(self.source[user])
        return frozenset(found)

    def ends(self, source: str) -> tuple[frozenset[str], frozenset[str]]:
        """Sources of what a group takes, and of what uses it."""
        nodes = self.members[source]
        takes = {self.source[each] for node in nodes for each in node.all_input_nodes if each in self.source}
        used = {user for node in nodes for user in self.users(node)}
        return frozenset(takes - {source}), frozenset(used)


def _strangers(old: _Groups, new: _Groups) -> dict[Node, str]:
    """Nodes of unknown source that connect the same sources as one that is gone."""
    gone = defaultdict(list)
    for source in old.members:
        if source not in new.exits:
            gone[old.ends(source)].append(source)
    found: dict[Node, str] = {}
    for source, nodes in new.members.items():
        if source not in old.members:
            candidates = gone.get(new.ends(source), [])
            if len(candidates) == 1:
                found |= dict.fromkeys(nodes, candidates[0])
    return found


def _paired(exits: Sequence[Node], counterparts: Sequence[Node], old: _Groups, new: _Groups) -> list[tuple[Node, Node]]:
    if len(counterparts) == 1:
        return [(node, counterparts[0]) for node in exits]
    pairs = []
    for node in exits:
        same_users = [each for each in counterparts if old.users(each) & new.users(node)]
        candidates = same_users or [each for each in counterparts if _alike(node, each)]
        if len(candidates) == 1:
            pairs.append((node, candidates[0]))
    return pairs


def _merged(node: Node, old: _Groups, new: _Groups) -> list[Node]:
    """A node, and those after it that are gone and take nothing else of the graph."""
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
    """Whether a node quantizes, dequantizes or takes from a tuple what another one computes."""
    coding = any(part in str(getattr(node.target, "__name__", "")) for part in _CODING)
    return node.op == "call_function" and (coding or node.target is operator.getitem)


def _is_tensor(node: Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _alike(node: Node, other: Node) -> bool:
    """Whether values can be compared: same shape, and both of floating types or of the same type."""
    ours, theirs = node.meta["val"], other.meta["val"]
    kinds = ours.dtype == theirs.dtype or (ours.is_floating_point() and theirs.is_floating_point())
    return bool(kinds and [str(size) for size in ours.shape] == [str(size) for size in theirs.shape])
