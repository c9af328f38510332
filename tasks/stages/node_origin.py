"""Where in a model's code an operator comes from: its module's path and the line that called it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath

from torch.fx import Graph, Node

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_TORCH = re.compile(r"[/\\]torch[/\\]")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an operator comes from.

    Attributes:
        module: path of the module that calls it, empty for the model itself.
        line: ``file.py:12 in forward``, the innermost line that is not torch's own; empty where it is not known.
    """

    module: str = ""
    line: str = ""


def origin_of(node: Node) -> Origin:
    """Where a node of an exported program comes from."""
    frames = [frame for frame in _FRAME.findall(node.meta.get("stack_trace") or "") if not _TORCH.search(frame[0])]
    if not frames:
        return Origin(_module_path(node))
    file, line, function = frames[-1]
    return Origin(_module_path(node), f"{PurePath(file).name}:{line} in {function}")


def same_places(before: Graph, after: Graph) -> Mapping[str, str]:
    """Names of nodes of one exported program to names in another one of the same model, by where they come from.

    The programs were exported each by itself, as where the model's weights were changed in between. What became of the
    only operator of a module is all that is in that module now; of several, operators of one kind follow each other.
    Nodes that have no counterpart get a name that nothing else has.
    """
    labels = {label: name for name, label in _labels(before)}
    modules = Counter(_module_path(node) for node in _operators(before))
    only = {_module_path(node): node.name for node in _operators(before) if modules[_module_path(node)] == 1}
    renamed = {name: labels.get(label, f"{name} (new)") for name, label in _labels(after)}
    return renamed | {node.name: only[path] for node in _operators(after) if (path := _module_path(node)) in only}


def _operators(graph: Graph) -> Iterator[Node]:
    return (node for node in graph.nodes if node.op == "call_function")


def _labels(graph: Graph) -> Iterator[tuple[str, tuple[str, str, int]]]:
    """Each operator's name with its module, kind, and number among those."""
    seen: Counter[tuple[str, str]] = Counter()
    for node in _operators(graph):
        kind = (_module_path(node), str(node.target))
        yield node.name, (*kind, seen[kind])
        seen[kind] += 1


def _module_path(node: Node) -> str:
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return str(stack[-1][0]) if stack else ""
