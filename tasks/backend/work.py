"""Counts the arithmetic of partitioned programs, inside of delegates and outside of them."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from ..programs.graphs import calls_of, graph_modules, lowered_modules
from ..results.delegation import NOT_TAKEN
from ..upstream.exir import KEPT

_PRODUCTS = re.compile(r"(?:\b|_)(addmm|baddbmm|mm|bmm|matmul|linear\w*)\b")


def own_calls(program: ExportedProgram, namespaces: Collection[str]) -> Iterator[Node]:
    """The calls of operators of a target, by their namespaces."""
    calls = (node for module in graph_modules(program.graph_module) for node in calls_of(module.graph))
    return (node for node in calls if getattr(node.target, "namespace", "") in namespaces)


def work_of(program: ExportedProgram, reasons: Mapping[str, str], namespaces: Collection[str] = ()) -> dict[str, Any]:
    """A `MethodWork` without payload and method, as JSON; removes the reasons that partitioners left in the program.

    Operators of the target's own, by their `namespaces`, count as delegated.
    """
    graphs = [module.original_module.graph for _, _, module in lowered_modules(program)]
    own = {*own_calls(program, namespaces)}
    delegated = sum(_operations(node) for node in (*own, *(node for graph in graphs for node in calls_of(graph))))
    not_taken = f"no operator of {' and '.join(namespaces)} computes it" if namespaces else NOT_TAKEN
    counts: dict[tuple[str, str, bool], list[int]] = {}
    for module in graph_modules(program.graph_module):
        for node in calls_of(module.graph):
            kept = node.meta.pop(KEPT, "")
            # others take results apart, or compute sizes
            if node not in own and hasattr(node.target, "_schema") and (kept or [*_tensors([node])]):
                why = kept or reasons.get(node.name) or not_taken
                count = counts.setdefault((str(node.target.name()).replace("::", "."), why, bool(kept)), [0, 0])
                count[0] += 1
                count[1] += _operations(node)
    by_operations = sorted(counts.items(), key=lambda item: (-item[1][1], item[0]))
    outside = [
        {"operator": operator, "why": why, "calls": calls, "operations": operations, "kept_on_cpu": kept}
        for (operator, why, kept), (calls, operations) in by_operations
    ]
    return {"delegated": delegated, "outside": outside}


def _operations(node: Node) -> int:
    """See `MethodWork`."""
    outputs, inputs = [*_tensors([node])], [*_tensors(node.all_input_nodes)]
    if not hasattr(node.target, "_schema") or not outputs:
        return 0
    name: str = node.target.name()
    if "conv" in name and len(inputs) > 1:
        weight, transposed = inputs[1], "transpose" in name or (len(node.args) > 6 and node.args[6] is True)
        positions = inputs[0] if transposed else outputs[0]
        channels = weight.shape[-1 if "depthwise" in name else 0]  # CMSIS-NN has those of depthwise weights last
        return 2 * _elements(positions) * _elements(weight) // max(_size(channels), 1)
    if _PRODUCTS.search(name) and len(inputs) > 1:
        left = inputs[1] if "addmm" in name and len(inputs) > 2 else inputs[0]
        return 2 * _elements(outputs[0]) * (_size(left.shape[-1]) if left.dim() else 1)
    return max(map(_elements, (*outputs, *inputs)))


def _tensors(nodes: Iterable[Node]) -> Iterator[torch.Tensor]:
    for node in nodes:
        value = node.meta.get("val")
        yield from (each for each in (value if isinstance(value, tuple | list) else [value]) if torch.is_tensor(each))


def _elements(tensor: torch.Tensor) -> int:
    return math.prod(map(_size, tensor.shape))


def _size(size: Any) -> int:
    """The size of a dimension; for a dynamic one that of the example, where it is known."""
    hint = size if isinstance(size, int) else getattr(size.node, "hint", None)
    return int(hint) if isinstance(hint, int) else 1
