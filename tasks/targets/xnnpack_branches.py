"""XNNPACK's partitioner of executorch 1.5.1 looks at a method's own graph only; this one into control flow too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir.backend.partitioner import PartitionResult
from executorch.exir.graph_module import get_control_flow_submodules
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature

from .xnnpack_copies import leave_copies_outside


class XnnpackBranchesPartitioner(XnnpackPartitioner):  # type: ignore[misc]  # executorch is untyped here
    """The same, which also partitions the branches of ``cond`` and the bodies of ``map`` and ``scan``.

    Weights come to a branch as its inputs, and so are no constants there: linear layers and convolutions inside of one
    are decomposed for the portable kernels, unless weights may be inputs of the delegate.
    """

    def ops_to_not_decompose(self, ep: ExportedProgram) -> tuple[list[Any], Callable[[torch.fx.Node], bool]]:
        """What to keep whole: in a branch, what can be delegated there.

        The check by the method's program alone would take a branch's input for the method's weight of the same name.
        """
        operators, supported = super().ops_to_not_decompose(ep)

        def check(node: torch.fx.Node) -> bool:
            if node.graph is ep.graph_module.graph:
                return bool(supported(node))
            return bool(super(XnnpackBranchesPartitioner, self).ops_to_not_decompose(_Branch.of(node))[1](node))

        return operators, check

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Tags the method's own graph, then each branch, by tags that tell them apart. Surplus copies are left out."""
        result = super().partition(exported_program)
        tags = dict(result.partition_tags)
        for number, branch in enumerate(_branches(exported_program.graph_module)):
            found = super().partition(_Branch(branch))
            for node in branch.graph.nodes:
                if tag := node.meta.get("delegation_tag"):
                    node.meta["delegation_tag"] = f"branch{number}_{tag}"
            tags |= {f"branch{number}_{tag}": spec for tag, spec in found.partition_tags.items()}
        for module in (exported_program.graph_module, *_branches(exported_program.graph_module)):
            leave_copies_outside(module.graph)
        return PartitionResult(tagged_exported_program=exported_program, partition_tags=tags)


@dataclass(frozen=True)
class _Branch:
    """A nested graph, as what partitioners ask an `ExportedProgram` for: all that comes in is an input."""

    graph_module: torch.fx.GraphModule
    graph_signature: ExportGraphSignature = field(default_factory=lambda: ExportGraphSignature([], []))
    state_dict: dict[str, torch.Tensor] = field(default_factory=dict)
    constants: dict[str, torch.Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, node: torch.fx.Node) -> _Branch:
        """The one that has this node."""
        return cls(node.graph.owning_module)

    @property
    def graph(self) -> torch.fx.Graph:
        return self.graph_module.graph


def _branches(module: torch.fx.GraphModule) -> Iterator[torch.fx.GraphModule]:
    for _, branch, _ in get_control_flow_submodules(module):
        yield branch
        yield from _branches(branch)
