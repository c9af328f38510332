"""Partitioners that change one thing about another one."""

from __future__ import annotations

from collections.abc import Callable

import torch
from executorch.exir.backend.partitioner import Partitioner, PartitionResult
from torch.export import ExportedProgram
from torch.fx import Node


class Wrapped(Partitioner):  # type: ignore[misc]  # executorch is untyped here
    """Does what another partitioner does. Subclasses override what they change."""

    def __init__(self, partitioner: Partitioner) -> None:
        super().__init__()
        self._partitioner = partitioner

    def ops_to_not_decompose(
        self, ep: ExportedProgram
    ) -> tuple[list[torch._ops.OpOverload], Callable[[Node], bool] | None]:
        """What the other one keeps whole."""
        kept: tuple[list[torch._ops.OpOverload], Callable[[Node], bool] | None]
        kept = self._partitioner.ops_to_not_decompose(ep)
        return kept

    def transform_for_pre_decomposition(self, exported_program: ExportedProgram) -> ExportedProgram:
        """What the other one makes of the program before it is decomposed."""
        return self._partitioner.transform_for_pre_decomposition(exported_program)

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """What the other one claims."""
        return self._partitioner(exported_program)
