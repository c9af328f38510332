"""partition: runs a target's partitioners on one method; each partition becomes an unlinked lowered module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any

from ....errors import TargetError
from ...engine import kinds, stage
from ...programs.binding import ON_GRAPHS
from ...targets import TargetParams
from ...targets.find import target_classes
from ...upstream import lean_lowering
from .edge import Edge

if TYPE_CHECKING:
    from torch.export import ExportedProgram


class Partition(stage.Stage, name="partition"):
    """Methods whose target delegates nothing go from `edge` to `compile` as they are."""

    class Params(stage.Params):
        target: TargetParams  # whose partitioners run
        edge: Edge.Params  # params of the `edge` stage, to check that every preserved operator was delegated
        # why the stage takes the weights, and runs again with each change of them; empty where it takes the graph
        takes_weights: str = ""

        def plugins(self) -> tuple[type[stage.Plugin], ...]:
            return target_classes([self.target.name])

    class Inputs(stage.Roles):
        program: kinds.ToPartition  # of `edge`
        # of the other methods, by method, where methods share their state: it is no constant here
        state: Mapping[str, kinds.State] = field(default_factory=dict)

    class Outputs(stage.Roles):
        program: kinds.MadePartitioned
        delegated: kinds.Delegated | None = None  # unless nothing is
        delegation: kinds.Finding

    @classmethod
    def takes_weights(cls, params: Params) -> str:
        """Why the stage cannot take graphs; empty if it can."""
        return "" if params.target.name in ON_GRAPHS else f"target {params.target.name!r} may read weights"

    @classmethod
    def shares_process(cls, params: Params) -> bool:  # noqa: ARG003 - the base's
        return True

    @staticmethod
    @lean_lowering()
    def run(inputs: Inputs, params: Params, work: stage.Workspace) -> Outputs:
        """Runs the partitioners; raises TargetError if the backend would fail on a partition."""
        from ...programs.graphs import lowered_modules
        from ...targets.find import find_target
        from ...upstream.exir import reasons_of_partitioners
        from ..exir import apply_to_stored, check_preserved_operators_found_delegates, to_partitioned_program
        from ..work import own_calls, work_of

        work_done: dict[str, Any] = {}
        parts = 0

        def partition(program: ExportedProgram) -> ExportedProgram:
            nonlocal parts
            target = find_target(params.target.name, params.target.options)
            if problem := target.refuses(program):
                raise TargetError(f"target {target.name!r} cannot take this program: {problem}")
            partitioners = target.partitioners()
            state = {name for ref in inputs.state.values() for name in work.store.read_json(ref)}
            with reasons_of_partitioners() as reasons:
                partitioned = to_partitioned_program(program, partitioners, state)
            work_done.update(work_of(partitioned, reasons, target.operators))
            parts = len([*lowered_modules(partitioned)]) or len([*own_calls(partitioned, target.operators)])
            check_preserved_operators_found_delegates(partitioned, partitioners, params.edge.config())
            return partitioned

        _, ref = apply_to_stored(inputs.program, partition, kind="program/partitioned", store=work.store)
        return Partition.Outputs(
            program=ref,
            delegated=work.store.put_json("report/delegated", parts) if parts else None,
            delegation=work.store.put_json("finding", [work_done]),
        )
