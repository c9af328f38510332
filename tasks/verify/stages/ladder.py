"""ladder: runs every program on the way from eager to the file, and compares each with eager.

A rung is one of those programs: exported, transformed, quantized, edge, payload.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....artifacts.ref import ArtifactRef
from ....errors import TargetError
from ....formats.pte.reader import open_pte
from ...engine import kinds, stage
from ...programs.payload import write_payload
from ...results.figures import worst_of
from ...results.numerics import Rung, RungName, rung_label

if TYPE_CHECKING:
    from ..running import Loadable


class RungParams(stage.Params):
    """A rung of the ladder."""

    name: RungName
    specializations: tuple[str, ...] = ()  # of a fat file, that it belongs to; empty for all

    def key(self, method: str) -> str:
        """Its key in the inputs: a program of a method, or a payload with all methods."""
        label = rung_label(self.name, self.specializations)
        return label if self.name == "payload" else f"{label}/{method}"


class Ladder(stage.Stage, name="ladder"):
    """A rung that cannot be run is recorded with the reason and fails nothing: the ladder is a diagnosis."""

    class Params(stage.Params):
        rungs: tuple[RungParams, ...]  # in the order in which a model goes through them
        methods: tuple[str, ...]
        drawn_inputs: int  # how many random inputs to run, in addition to the examples
        host: str = ""  # CPU capability of the machine that all of them run on

    class Inputs(stage.Roles):
        examples: Mapping[str, kinds.Examples]  # by method, of `export`
        rung: Mapping[str, kinds.ToClimb]  # see `RungParams.key`
        data: kinds.PtdFile | None = None  # the weights of payloads that keep them in a file of their own

    class Outputs(stage.Roles):
        numerics: kinds.Finding

    @staticmethod
    def run(inputs: Inputs, params: Params, work: stage.Workspace) -> Outputs:
        """Runs rung after rung."""
        from ...programs.values import load_value

        examples = {method: load_value(inputs.examples[method], work.store) for method in params.methods}
        rungs = [
            _measured(inputs, rung, method, examples[method], params.drawn_inputs, work).to_json()
            for rung in params.rungs
            for method in params.methods
            if rung.key(method) in inputs.rung
        ]
        return Ladder.Outputs(numerics=work.store.put_json("finding", rungs))


def _measured(
    inputs: Ladder.Inputs, rung: RungParams, method: str, stored: Mapping[str, Any], drawn: int, work: stage.Workspace
) -> Rung:
    from ..running import StoredProgram, run_in_torch, run_method

    ref = inputs.rung[rung.key(method)]
    figures, problem = None, "has no outputs to compare"
    try:
        if rung.name == "payload":
            cases = list(run_method(_payload(ref, inputs.data, work), method, stored, drawn))
        else:
            cases = list(run_in_torch(StoredProgram(ref, work.store), method, stored, drawn))
        if cases:
            figures, problem = worst_of(cases), ""
    except Exception as error:  # noqa: BLE001 - recorded as the rung's problem, whatever an operator raises
        problem = (str(error).strip() or type(error).__name__).splitlines()[0]
    return Rung(rung.name, rung.specializations, method, figures, problem)


def _payload(ref: ArtifactRef, data: ArtifactRef | None, work: stage.Workspace) -> Loadable:
    from ..running import Loadable, missing_here

    path = _written(ref, ".pte", work)
    if missing := missing_here(open_pte(path)):
        raise TargetError(missing)
    return Loadable(path, _written(data, ".ptd", work) if data else None)


def _written(ref: ArtifactRef, suffix: str, work: stage.Workspace) -> Path:
    path = work.scratch / f"{ref.identity}{suffix}"
    if not path.exists():
        write_payload(ref, work.store, path)
    return path
