"""What of a method went to a backend, by operator."""

from __future__ import annotations

from dataclasses import dataclass

from executorch.devtools.backend_debug import get_delegation_info
from torch.export import ExportedProgram


@dataclass(frozen=True, slots=True)
class OperatorCount:
    """How often an operator stands inside and outside of delegates."""

    operator: str
    delegated: int
    not_delegated: int


@dataclass(frozen=True, slots=True)
class Delegation:
    """One method of one specialization.

    Attributes:
        method: its name.
        partitions: how many subgraphs were delegated.
        operators: by name.
    """

    method: str
    partitions: int
    operators: tuple[OperatorCount, ...]

    @property
    def delegated(self) -> int:
        """Calls of operators inside of delegates."""
        return sum(each.delegated for each in self.operators)

    @property
    def not_delegated(self) -> int:
        """Calls of operators that the portable kernels run."""
        return sum(each.not_delegated for each in self.operators)

    def __str__(self) -> str:
        """A table."""
        rows = [(each.operator, each.delegated, each.not_delegated) for each in self.operators]
        rows.append(("total", self.delegated, self.not_delegated))
        width = max(len(name) for name, _, _ in rows)
        head = f"{self.method}: {self.partitions} delegated subgraphs"
        titles = f"{'operator':<{width}}  delegated  not delegated"
        return "\n".join(
            [head, titles, *(f"{name:<{width}}  {inside:>9}  {outside:>13}" for name, inside, outside in rows)]
        )


def delegation_of(method: str, program: ExportedProgram) -> Delegation:
    """Counts a partitioned program; one that nothing was delegated of may come as it left `edge`."""
    found = get_delegation_info(program.graph_module)
    operators = (
        OperatorCount(each.op_type, each.delegated, each.non_delegated)
        for each in found.delegation_by_operator.values()
    )
    return Delegation(method, found.num_delegated_subgraphs, tuple(sorted(operators, key=lambda each: each.operator)))
