"""What a target says that it cannot take, asked before its partitioners run."""

from __future__ import annotations

from collections.abc import Sequence

from executorch.exir.backend.partitioner import Partitioner, PartitionResult
from torch.export import ExportedProgram

from ..errors import TargetError
from ..tasks.targets.base import Target
from .wrapped import Wrapped


def refusing(partitioners: Sequence[Partitioner], target: Target) -> list[Partitioner]:
    """The target's partitioners; the first one raises TargetError for a program that the target refuses."""
    return [_Refusing(each, target) if position == 0 else each for position, each in enumerate(partitioners)]


class _Refusing(Wrapped):
    """Another partitioner, for programs that its target does not refuse."""

    def __init__(self, partitioner: Partitioner, target: Target) -> None:
        super().__init__(partitioner)
        self._target = target

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        if problem := self._target.refuses(exported_program):
            raise TargetError(problem)
        return super().partition(exported_program)
