"""partition: runs a target's partitioners on one method; each partition becomes an unlinked lowered module."""

from __future__ import annotations

import json
from collections.abc import Mapping

from ...artifacts.programs.codec import load_program, save_program
from ...artifacts.ref import ArtifactRef
from ...errors import TargetError
from ..params import PartitionParams
from ..stage import Workspace
from ..targets.find import find_target
from .by_method import by_method
from .exir import check_preserved_operators_found_delegates, edge_config, to_partitioned_program


def run(inputs: Mapping[str, ArtifactRef], params: PartitionParams, work: Workspace) -> Mapping[str, ArtifactRef]:
    """Takes `program` (program/edge), gives `program` (program/partitioned).

    Where methods share their state it takes `state/<method>` of the others: what they change is no constant here.

    Raises:
        TargetError: the backend would fail on what the partitioners claim.
    """
    program = load_program(inputs["program"], work.store)
    target = find_target(params.target.name, params.target.options)
    if problem := target.refuses(program):
        raise TargetError(f"target {target.name!r} cannot take this program: {problem}")
    partitioners = target.partitioners()
    config = edge_config(params.edge)
    others = by_method(inputs, "state").values()
    state = {name for ref in others for name in json.loads(work.store.read_artifact(ref))}
    partitioned = to_partitioned_program(program, partitioners, state)
    check_preserved_operators_found_delegates(partitioned, partitioners, config)
    return {"program": save_program(partitioned, kind="program/partitioned", store=work.store)}
