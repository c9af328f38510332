"""Verification: runs every method of a file on the ExecuTorch runtime and compares it with eager."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...artifacts.local_store import LocalStore
from ...artifacts.ref import ArtifactRef
from ...configs.verification import VerifyBounds
from ...errors import VerificationFailed
from ..figures import WHOLE_FILE, Case, Figures, disagreements, summarize, violations, worst_of
from .compare import compare_all
from .inputs import stored_cases
from .running import Runnable, StoredProgram, run_method, run_sequences, runnable_payloads


def verify_file(
    path: Path, examples: Mapping[str, Mapping[str, Any]], bounds: VerifyBounds, data_files: Sequence[Path] = ()
) -> Figures:
    """Runs a `.pte` file, plain or fat, on the examples that `export` stored for its methods.

    Raises:
        VerificationFailed: naming payload, method, case, output and figure of everything outside the bounds.
        InputError: a `.ptd` file is missing or another file's; as FileFormatError where it is damaged.
    """
    cases: list[Case] = []
    not_run: dict[str, str] = {}
    for payload, program in runnable_payloads(path, data_files, not_run):
        cases += _run_program(program, payload, examples, bounds)
    return summarize(cases, not_run)


def verify_programs(
    programs: Mapping[str, ArtifactRef],
    examples: Mapping[str, Mapping[str, Any]],
    bounds: VerifyBounds,
    missing: Sequence[str],
    store: LocalStore,
) -> Figures:
    """Runs the edge programs of a file that needs backends which are `missing` here, in its place.

    Raises:
        VerificationFailed: as `verify_file`.
    """
    cases: list[Case] = []
    for method, stored in examples.items():
        program = StoredProgram(programs[method], store)
        for case in stored_cases(stored, bounds.drawn_inputs):
            outputs = program.run(case.inputs)
            cases += compare_all(outputs, case, method=method, rounding=stored.get("rounding", ""))
    _check(cases, bounds, "the edge program does")
    reason = f"needs {', '.join(missing)}, which this machine's runtime does not have; its edge program ran instead"
    return summarize(cases, {WHOLE_FILE: reason})


def _run_program(
    program: Runnable, payload: str, examples: Mapping[str, Mapping[str, Any]], bounds: VerifyBounds
) -> list[Case]:
    try:
        cases = run_cases(program, examples, bounds)
    except VerificationFailed as error:
        if not payload:
            raise
        raise VerificationFailed(f"payload {payload!r}: {error}") from error
    return [replace(case, payload=payload) for case in cases]


def run_cases(program: Runnable, examples: Mapping[str, Mapping[str, Any]], bounds: VerifyBounds) -> list[Case]:
    """Runs a program on all examples, here or elsewhere; raises VerificationFailed as `verify_file`."""
    drawn = bounds.drawn_inputs
    cases = [case for method, stored in examples.items() for case in run_method(program, method, stored, drawn)]
    rounding = {method: stored.get("rounding", "") for method, stored in examples.items()}
    for stored in examples.values():
        cases += run_sequences(program, stored.get("sequences", ()), rounding)
    _check(cases, bounds, "the file does")
    return cases


def _check(cases: Sequence[Case], bounds: VerifyBounds, what: str) -> None:
    problems = [f"{case.where}: {line}" for case in cases for line in violations(case, bounds)]
    if problems := [*problems, *disagreements(cases, bounds)]:
        worst = worst_of(cases)
        found = "; ".join(problems)
        raise VerificationFailed(
            f"{what} not compute what eager computes: {found} (the recipe's `verify` has the bounds, and the "
            f"largest error is {worst.max_abs_error:.3g}, {worst.max_relative_error:.3g} of the largest value)"
        )
