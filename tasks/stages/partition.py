"""partition: runs a target's partitioners on one method; each partition becomes an unlinked lowered module."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field

from ...errors import TargetError
from .. import kinds, stage
from ..upstream.lean import lean_lowering
from .edge import Edge


class Partition(stage.Stage, name="partition"):
    """Methods whose target delegates nothing go from `edge` to `compile` as they are."""

    class Params(stage.Params):
        target: stage.TargetParams  # whose partitioners run
        edge: Edge.Params  # params of the `edge` stage, to check that every preserved operator was delegated

        def target_names(self) -> tuple[str, ...]:
            return (self.target.name,)

    class Inputs(stage.Roles):
        program: kinds.EdgeProgram  # of `edge`
        # of the other methods, by method, where methods share their state: it is no constant here
        state: Mapping[str, kinds.State] = field(default_factory=dict)

    class Outputs(stage.Roles):
        program: kinds.PartitionedProgram

    @classmethod
    def shares_process(cls, params: Params) -> bool:  # noqa: ARG003 - the base's
        return True

    @staticmethod
    @lean_lowering()
    def run(inputs: Inputs, params: Params, work: stage.Workspace) -> Outputs:
        """Runs the partitioners; raises TargetError if the backend would fail on a partition."""
        from ..codecs.program import load_program, save_program
        from ..programs.exir import check_preserved_operators_found_delegates, edge_config, to_partitioned_program
        from ..targets.find import find_target

        program = load_program(inputs.program, work.store)
        target = find_target(params.target.name, params.target.options)
        if problem := target.refuses(program):
            raise TargetError(f"target {target.name!r} cannot take this program: {problem}")
        partitioners = target.partitioners()
        config = edge_config(params.edge)
        state = {name for ref in inputs.state.values() for name in json.loads(work.store.read_artifact(ref))}
        partitioned = to_partitioned_program(program, partitioners, state)
        check_preserved_operators_found_delegates(partitioned, partitioners, config)
        return Partition.Outputs(program=save_program(partitioned, kind="program/partitioned", store=work.store))
