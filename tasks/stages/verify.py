"""verify: runs the produced file on the ExecuTorch runtime and compares every method with eager."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...artifacts.digest import canonical_json
from ...artifacts.nfat.fat_file import is_fat, open_fat
from ...artifacts.programs.values import load_value
from ...artifacts.pte.reader import open_pte
from ...artifacts.ref import ArtifactRef
from ...errors import FileFormatError, VerificationFailed
from ..figures import Case, Figures, summarize, violations
from ..params import VerifyParams
from ..stage import Workspace
from .delivery import write_delivered
from .payload_run import missing_backends, run_method


def run(inputs: Mapping[str, ArtifactRef], params: VerifyParams, work: Workspace) -> Mapping[str, ArtifactRef]:
    """Takes `file` and `examples/<method>` of every method, gives `figures` (report/figures).

    Of a fat file every payload is run whose backends this machine's runtime has; it takes `data` where it has one.

    Raises:
        VerificationFailed: an output is outside the bounds; nothing is recorded, so a repaired run verifies again.
    """
    path, data_files = write_delivered(inputs, work)
    examples = {
        role.partition("/")[2]: load_value(ref, work.store)
        for role, ref in sorted(inputs.items())
        if role.startswith("examples/")
    }
    figures = verify_file(path, examples, params, data_files)
    return {"figures": work.store.put_artifact("report/figures", canonical_json(figures.to_json()))}


def verify_file(
    path: Path, examples: Mapping[str, Mapping[str, Any]], params: VerifyParams, data_files: Sequence[Path] = ()
) -> Figures:
    """Runs a file on examples.

    Args:
        path: a `.pte` file, plain or fat.
        examples: method name to what `export` stored: flat inputs, eager's flat outputs, how many were drawn.
        params: the bounds.
        data_files: the `.ptd` files of a fat file.

    Raises:
        VerificationFailed: naming payload, method, case, output and figure of everything outside the bounds.
    """
    cases: list[Case] = []
    not_run: dict[str, str] = {}
    for payload, program in _payloads(path, data_files, not_run):
        cases += _run_program(program, payload, examples, params)
    return summarize(cases, not_run)


def _payloads(path: Path, data_files: Sequence[Path], not_run: dict[str, str]) -> Iterator[tuple[str, Path | bytes]]:
    """What there is to run: a plain file without a name, or the payloads of a fat one; notes those that cannot."""
    try:
        pte = open_pte(path)
    except FileFormatError as error:
        raise VerificationFailed(str(error)) from error
    if not is_fat(pte):
        if missing := missing_backends(pte.backends):
            raise VerificationFailed(
                f"the file needs {', '.join(missing)}, which this machine's ExecuTorch runtime does not have, "
                "so nothing can be said of what it computes; as a specialization of a recipe with "
                "`output: {form: fat}` it can be delivered together with payloads that are verified"
            )
        yield "", path
        return
    container = open_fat(path, data_files).container
    for payload in container.payloads:
        content = container.rebuild(payload)  # the digest is checked, whether it can be run or not
        if missing := missing_backends(payload.description.backends):
            not_run[payload.name] = f"needs {', '.join(missing)}, which this machine's runtime does not have"
        else:
            yield payload.name, content


def _run_program(
    program: Path | bytes, payload: str, examples: Mapping[str, Mapping[str, Any]], params: VerifyParams
) -> list[Case]:
    try:
        cases = _bounded_cases(program, examples, params)
    except VerificationFailed as error:
        if not payload:
            raise
        raise VerificationFailed(f"payload {payload!r}: {error}") from error
    return [replace(case, payload=payload) for case in cases]


def _bounded_cases(
    program: Path | bytes, examples: Mapping[str, Mapping[str, Any]], params: VerifyParams
) -> list[Case]:
    drawn = params.bounds.drawn_inputs
    cases = [case for method, stored in examples.items() for case in run_method(program, method, stored, drawn)]
    if problems := [f"{case.where}: {line}" for case in cases for line in violations(case, params.bounds)]:
        raise VerificationFailed("the file does not compute what eager computes: " + "; ".join(problems))
    return cases
