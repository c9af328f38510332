"""ladder: runs every program that a model goes through on real inputs, and says how far each is from eager."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
from .payload_run import missing_backends, run_method
from .program_run import StoredProgram


def run(inputs: Mapping[str, ArtifactRef], params: LadderParams, work: Workspace) -> Mapping[str, ArtifactRef]:
    """Takes `examples/<method>` of every method and what there is of the rungs, gives `numerics` (report/numerics).

    A rung that cannot be run says why and fails nothing: the ladder is for finding out what is wrong.
    """
    examples = {method: load_value(inputs[f"examples/{method}"], work.store) for method in params.methods}
    rungs = [
        _rung(inputs[each.role(method)], each, method, examples[method], params.drawn_inputs, work)
        for each in params.rungs
        for method in params.methods
        if each.role(method) in inputs
    ]
    ladder = Ladder(tuple(rungs))
    return {"numerics": work.store.put_artifact("report/numerics", canonical_json(ladder.to_json()))}


def _rung(
    ref: ArtifactRef, rung: RungParams, method: str, stored: Mapping[str, Any], drawn: int, work: Workspace
) -> Rung:
    run_cases = _payload_cases if rung.name == "payload" else _program_cases
    try:
        cases = list(run_cases(ref, method, stored, drawn, work))
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


def _payload_cases(
    ref: ArtifactRef, method: str, stored: Mapping[str, Any], drawn: int, work: Workspace
) -> Iterator[Case]:
    path = work.scratch / f"{ref.identity}.pte"
    if not path.exists():
        write_payload(ref, work.store, path)
    if missing := missing_backends(open_pte(path).backends):
        raise TargetError(f"needs {', '.join(missing)}, which this machine's runtime does not have")
    yield from run_method(path, method, stored, drawn)
