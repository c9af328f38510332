"""Other backends' partitioners on programs with branches.

Those that do not say for each node whether it stays whole keep operators wherever they stand, and claim them outside of
branches only; ExecuTorch then refuses what is left over (`_sanity_check_graph_for_non_decomp_ops`,
exir/program/_program.py, executorch 1.5.1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from executorch.exir.backend.partitioner import Partitioner
from torch.export import ExportedProgram
from torch.fx import Node

from ..tasks.stages.lowered import graph_modules
from .wrapped import Wrapped


def for_program(partitioners: Sequence[Partitioner], program: ExportedProgram) -> list[Partitioner]:
    """The partitioners; where the program has branches, such that keep operators whole outside of them only."""
    if len(list(graph_modules(program.graph_module))) == 1:
        return list(partitioners)
    return [
        each if each.ops_to_not_decompose(program)[1] is not None else _OutsideBranches(each) for each in partitioners
    ]


class _OutsideBranches(Wrapped):
    """Another partitioner, for which operators in branches are decomposed."""

    def ops_to_not_decompose(
        self, ep: ExportedProgram
    ) -> tuple[list[torch._ops.OpOverload], Callable[[Node], bool] | None]:
        operators, _ = super().ops_to_not_decompose(ep)
        return operators, lambda node: node.graph is ep.graph
