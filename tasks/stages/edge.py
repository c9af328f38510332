"""edge: one method from ATen to the edge dialect, decomposed except for what the target keeps, after its passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ...artifacts.digest import canonical_json
from ...artifacts.programs.codec import load_program, save_program
from ...artifacts.ref import ArtifactRef
from ..params import EdgeParams
from ..stage import Workspace
from ..targets.find import find_target
from .affine import decompose_affine
from .exir import edge_config, to_edge_program
from .recipe_passes import recipe_passes
from .state import state_names

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner
    from executorch.exir.pass_base import ExportedProgramPassBase
    from executorch.exir.pass_manager import PassType


def run(inputs: Mapping[str, ArtifactRef], params: EdgeParams, work: Workspace) -> Mapping[str, ArtifactRef]:
    """Takes `program` (program/aten), gives `program` (program/edge) and `state`: names of the buffers it changes."""
    program = load_program(inputs["program"], work.store)
    if params.decompose_affine:
        program = decompose_affine(program)
    config = edge_config(params)
    edge = to_edge_program(
        program, _keeping(params), config, [*_passes(params), *recipe_passes(params.passes, program)]
    )
    return {
        "program": save_program(edge, kind="program/edge", store=work.store),
        "state": work.store.put_artifact("program/state", canonical_json(sorted(state_names(edge)))),
    }


def _keeping(params: EdgeParams) -> Sequence[Partitioner]:
    keeper = params.preserve_for
    return find_target(keeper.name, keeper.options).partitioners() if keeper else ()


def _passes(params: EdgeParams) -> Sequence[PassType | ExportedProgramPassBase]:
    given = params.passes_of
    return find_target(given.name, given.options).edge_passes() if given else ()
