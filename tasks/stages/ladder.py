"""ladder: runs every program that a model goes through on real inputs, and says how far each is from eager."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ...artifacts.digest import canonical_json
from ...artifacts.programs.values import load_value
from ...artifacts.pte.pieces import write_payload
from ...artifacts.pte.reader import open_pte
from ...artifacts.ref import ArtifactRef
from ...errors import TargetError
from ..figures import Case, worst_of
from ..numerics import Ladder, Rung
from ..numerics_params import LadderParams, RungParams
from ..stage import Workspace
from .compare import compare_all
from .labelled import labelled
from .loadable import Loadable
from .payload_run import missing_backends, run_method
from .program_run import StoredProgram


def run(inputs: Mapping[str, ArtifactRef], params: LadderParams, work: Workspace) -> Mapping[str, ArtifactRef]:
    """Takes `examples/<method>` of every method and what there is of the rungs, gives `numerics` (report/numerics).

    Where payloads keep their weights outside, it also takes `data`, which has them.
    A rung that cannot be run says why and fails nothing: the ladder is for finding out what is wrong.
    """
    examples = {method: load_value(inputs[f"examples/{method}"], work.store) for method in params.methods}
    rungs = [
        _rung(inputs, each, method, examples[method], params.drawn_inputs, work)
        for each in params.rungs
        for method in params.methods
        if each.role(method) in inputs
    ]
    ladder = Ladder(tuple(rungs))
    return {"numerics": work.store.put_artifact("report/numerics", canonical_json(ladder.to_json()))}


def _rung(
    inputs: Mapping[str, ArtifactRef],
    rung: RungParams,
    method: str,
    stored: Mapping[str, Any],
    drawn: int,
    work: Workspace,
) -> Rung:
    ref = inputs[rung.role(method)]
    try:
        if rung.name == "payload":
            cases = list(run_method(_payload(ref, inputs.get("data"), work), method, stored, drawn))
        else:
            cases = list(_program_cases(ref, method, stored, drawn, work))
    except Exception as error:  # noqa: BLE001 - whatever an operator raises is what there is to say of the rung
        problem = (str(error).strip() or type(error).__name__).splitlines()[0]
        return Rung(rung.name, rung.specializations, method, None, problem)
    if not cases:
        return Rung(rung.name, rung.specializations, method, None, "has no outputs to compare")
    return Rung(rung.name, rung.specializations, method, worst_of(cases))


def _program_cases(
    ref: ArtifactRef, method: str, stored: Mapping[str, Any], drawn: int, work: Workspace
) -> Iterator[Case]:
    program = StoredProgram(ref, work.store)
    for label, flat, expected in labelled(stored, drawn):
        yield from compare_all(program.run(flat), expected, method=method, label=label)


def _payload(ref: ArtifactRef, data: ArtifactRef | None, work: Workspace) -> Loadable:
    path = _written(ref, ".pte", work)
    if missing := missing_backends(open_pte(path).backends):
        raise TargetError(f"needs {', '.join(missing)}, which this machine's runtime does not have")
    return Loadable(path, _written(data, ".ptd", work) if data else None)


def _written(ref: ArtifactRef, suffix: str, work: Workspace) -> Path:
    path = work.scratch / f"{ref.identity}{suffix}"
    if not path.exists():
        write_payload(ref, work.store, path)
    return path
