"""Other backends' partitioners, wrapped so that they refuse what their target refuses and keep out of branches."""

from __future__ import annotations

from collections.abc import Callable

import torch
from executorch.exir.backend.partitioner import Partitioner, PartitionResult
from torch.export import ExportedProgram
from torch.fx import Node

from ..errors import TargetError
from ..tasks.lower.graphs import graph_modules
from ..tasks.targets.base import Target

_Kept = tuple[list[torch._ops.OpOverload], Callable[[Node], bool] | None]  # noqa: SLF001 - torch has no public name


def wrap_partitioners(target: Target, program: ExportedProgram) -> list[Partitioner]:
    """The target's partitioners.

    The first one raises TargetError for a program that the target refuses. If the program has branches, none of them
    keeps operators whole inside branches.
    """
    partitioners: list[Partitioner] = list(target.partitioners())
    if partitioners:
        partitioners[0] = _Refusing(partitioners[0], target)
    if len(list(graph_modules(program.graph_module))) == 1:
        return partitioners
    return [
        partitioner if partitioner.ops_to_not_decompose(program)[1] is not None else _OutsideBranches(partitioner)
        for partitioner in partitioners
    ]


class _Wrapped(Partitioner):  # type: ignore[misc]  # executorch is untyped here
    """Does the same as another partitioner; subclasses override the rest."""

    def __init__(self, partitioner: Partitioner) -> None:
        super().__init__()
        self._partitioner = partitioner

    def ops_to_not_decompose(self, ep: ExportedProgram) -> _Kept:
        kept: _Kept = self._partitioner.ops_to_not_decompose(ep)
        return kept

    def transform_for_pre_decomposition(self, exported_program: ExportedProgram) -> ExportedProgram:
        return self._partitioner.transform_for_pre_decomposition(exported_program)

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        return self._partitioner(exported_program)


class _Refusing(_Wrapped):
    """Raises TargetError for programs that a target refuses."""

    def __init__(self, partitioner: Partitioner, target: Target) -> None:
        super().__init__(partitioner)
        self._target = target

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        if problem := self._target.refuses(exported_program):
            raise TargetError(problem)
        return super().partition(exported_program)


class _OutsideBranches(_Wrapped):
    """Lets operators in branches be decomposed."""

    def ops_to_not_decompose(self, ep: ExportedProgram) -> _Kept:
        operators, _ = super().ops_to_not_decompose(ep)
        return operators, lambda node: node.graph is ep.graph
