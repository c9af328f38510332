"""How many operators of a method were delegated to a backend."""

from __future__ import annotations

from dataclasses import astuple, dataclass

from executorch.devtools.backend_debug import get_delegation_info
from torch.export import ExportedProgram


@dataclass(frozen=True, slots=True)
class OperatorCount:
    """How many calls of an operator are inside and outside of delegates."""

    operator: str
    delegated: int
    not_delegated: int


@dataclass(frozen=True, slots=True)
class Delegation:
    """One method of one specialization: its number of delegated subgraphs, and its operators sorted by name."""

    method: str
    partitions: int
    operators: tuple[OperatorCount, ...]

    @property
    def delegated(self) -> int:
        return sum(operator.delegated for operator in self.operators)

    @property
    def not_delegated(self) -> int:
        """Operator calls that the portable kernels run."""
        return sum(operator.not_delegated for operator in self.operators)

    def __str__(self) -> str:
        rows = [astuple(operator) for operator in self.operators]
        rows.append(("total", self.delegated, self.not_delegated))
        width = max(len(name) for name, _, _ in rows)
        head = f"{self.method}: {self.partitions} delegated subgraphs"
        titles = f"{'operator':<{width}}  delegated  not delegated"
        return "\n".join(
            [head, titles, *(f"{name:<{width}}  {inside:>9}  {outside:>13}" for name, inside, outside in rows)]
        )


def delegation_of(method: str, program: ExportedProgram) -> Delegation:
    """Counts the operators of a partitioned program, or of an Edge program that nothing was delegated from."""
    found = get_delegation_info(program.graph_module)
    counts = sorted(found.delegation_by_operator.values(), key=lambda count: count.op_type)
    operators = tuple(OperatorCount(count.op_type, count.delegated, count.non_delegated) for count in counts)
    return Delegation(method, found.num_delegated_subgraphs, operators)
