"""verify: runs the produced file on the ExecuTorch runtime and compares every method with eager."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import executorch.kernels.quantized  # noqa: F401 - kernels of quantized operators
from executorch.runtime import Runtime, Verification

from ...artifacts.digest import canonical_json
from ...artifacts.nfat.fat_file import is_fat, open_fat
from ...artifacts.programs.values import load_value
from ...artifacts.pte.reader import open_pte
from ...artifacts.ref import ArtifactRef
from ...errors import FileFormatError, VerificationFailed
from ..figures import Case, Figures, summarize
from ..params import VerifyParams
from ..stage import Workspace
from .compare import compare, violations
from .delivery import write_delivered


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
    registered = set(Runtime.get().backend_registry.registered_backend_names)
    if not is_fat(pte):
        if missing := set(pte.backends) - registered:
            raise VerificationFailed(
                f"the file needs {', '.join(sorted(missing))}, which this machine's ExecuTorch runtime does not have, "
                "so nothing can be said of what it computes; as a specialization of a recipe with "
                "`output: {form: fat}` it can be delivered together with payloads that are verified"
            )
        yield "", path
        return
    container = open_fat(path, data_files).container
    for payload in container.payloads:
        content = container.rebuild(payload)  # the digest is checked, whether it can be run or not
        if missing := set(payload.description.backends) - registered:
            not_run[payload.name] = f"needs {', '.join(sorted(missing))}, which this machine's runtime does not have"
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
    cases = [case for method, stored in examples.items() for case in _run_method(program, method, stored, drawn)]
    if problems := [line for case in cases for line in violations(case, params.bounds)]:
        raise VerificationFailed("the file does not compute what eager computes: " + "; ".join(problems))
    return cases


def _run_method(path: Path | bytes, method: str, stored: Mapping[str, Any], drawn: int) -> Iterator[Case]:
    real = len(stored["inputs"]) - stored["drawn"]
    cases = list(zip(stored["inputs"], stored["outputs"], strict=True))[: real + drawn]
    for number, (flat, expected) in enumerate(cases):
        label = f"example {number}" if number < real else f"drawn {number - real}"
        outputs = _execute(path, method, flat, label)
        if len(outputs) != len(expected):
            raise VerificationFailed(
                f"method {method!r} gives {len(outputs)} outputs on {label}, eager gives {len(expected)}"
            )
        for position, (output, reference) in enumerate(zip(outputs, expected, strict=True)):
            yield compare(output, reference, method=method, label=label, output_position=position)


def _execute(path: Path | bytes, method: str, flat: Sequence[Any], label: str) -> Sequence[Any]:
    """Outputs of one execution. Everything is loaded anew, so that no state of an earlier one is seen."""
    try:
        program = Runtime.get().load_program(path, verification=Verification.InternalConsistency)
        loaded = program.load_method(method)
    except (KeyError, RuntimeError) as error:
        raise VerificationFailed(
            f"the runtime cannot load method {method!r}: {error}; "
            "its log says whether an operator or a backend is missing"
        ) from error
    try:
        outputs: Sequence[Any] = loaded.execute(flat)
    except RuntimeError as error:
        raise VerificationFailed(f"method {method!r} fails on {label}: {error}") from error
    return outputs
