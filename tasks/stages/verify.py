"""verify: runs the produced file on the ExecuTorch runtime and compares every method with eager."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...artifacts.digest import canonical_json
from ...artifacts.programs.values import load_value
from ...artifacts.ref import ArtifactRef
from ...errors import VerificationFailed
from ..figures import Case, Figures, summarize, violations
from ..params import VerifyParams
from ..stage import Workspace
from .by_method import by_method
from .constants import check_constants
from .delivery import write_delivered
from .loadable import Loadable
from .payload_run import run_method, run_sequences
from .runnable import runnable_payloads


def run(inputs: Mapping[str, ArtifactRef], params: VerifyParams, work: Workspace) -> Mapping[str, ArtifactRef]:
    """Takes `file`, `constants` and `examples/<method>` of every method, gives `figures` (report/figures).

    It takes `data` where the file has one. Of a fat file every payload is run whose backends this machine has.

    Raises:
        VerificationFailed: an output is outside the bounds; nothing is recorded, so a repaired run verifies again.
    """
    path, data_files = write_delivered(inputs, work)
    examples = {method: load_value(ref, work.store) for method, ref in by_method(inputs, "examples").items()}
    figures = verify_file(path, examples, params, data_files)
    check_constants(path, load_value(inputs["constants"], work.store))
    return {"figures": work.store.put_artifact("report/figures", canonical_json(figures.to_json()))}


def verify_file(
    path: Path, examples: Mapping[str, Mapping[str, Any]], params: VerifyParams, data_files: Sequence[Path] = ()
) -> Figures:
    """Runs a file on examples.

    Args:
        path: a `.pte` file, plain or fat.
        examples: method name to what `export` stored: flat inputs, eager's flat outputs, how many were drawn, and
            sequences of calls.
        params: the bounds.
        data_files: its `.ptd` files.

    Raises:
        VerificationFailed: naming payload, method, case, output and figure of everything outside the bounds.
        InputError: a `.ptd` file is missing or another file's; as FileFormatError where it is damaged.
    """
    cases: list[Case] = []
    not_run: dict[str, str] = {}
    for payload, program in runnable_payloads(path, data_files, not_run):
        cases += _run_program(program, payload, examples, params)
    return summarize(cases, not_run)


def _run_program(
    program: Loadable, payload: str, examples: Mapping[str, Mapping[str, Any]], params: VerifyParams
) -> list[Case]:
    try:
        cases = _bounded_cases(program, examples, params)
    except VerificationFailed as error:
        if not payload:
            raise
        raise VerificationFailed(f"payload {payload!r}: {error}") from error
    return [replace(case, payload=payload) for case in cases]


def _bounded_cases(program: Loadable, examples: Mapping[str, Mapping[str, Any]], params: VerifyParams) -> list[Case]:
    drawn = params.bounds.drawn_inputs
    cases = [case for method, stored in examples.items() for case in run_method(program, method, stored, drawn)]
    cases += [case for stored in examples.values() for case in run_sequences(program, stored.get("sequences", ()))]
    if problems := [f"{case.where}: {line}" for case in cases for line in violations(case, params.bounds)]:
        found = "; ".join(problems)
        raise VerificationFailed(
            f"the file does not compute what eager computes: {found} (the recipe's `verify` has the bounds)"
        )
    return cases
