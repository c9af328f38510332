"""verify: runs the produced file on the ExecuTorch runtime and compares every method with eager."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from executorch.runtime import Runtime, Verification

from ...artifacts.digest import canonical_json
from ...artifacts.programs.values import load_value
from ...artifacts.pte.pieces import write_payload
from ...artifacts.ref import ArtifactRef
from ...errors import VerificationFailed
from ..figures import Case, Figures, summarize
from ..params import VerifyParams
from ..stage import Workspace
from .compare import compare, violations


def run(inputs: Mapping[str, ArtifactRef], params: VerifyParams, work: Workspace) -> Mapping[str, ArtifactRef]:
    """Takes `file` and `examples/<method>` of every method, gives `figures` (report/figures).

    Raises:
        VerificationFailed: an output is outside the bounds; nothing is recorded, so a repaired run verifies again.
    """
    path = work.scratch / "model.pte"
    write_payload(inputs["file"], work.store, path)
    examples = {
        role.partition("/")[2]: load_value(ref, work.store)
        for role, ref in sorted(inputs.items())
        if role.startswith("examples/")
    }
    figures = verify_file(path, examples, params)
    return {"figures": work.store.put_artifact("report/figures", canonical_json(figures.to_json()))}


def verify_file(path: Path, examples: Mapping[str, Mapping[str, Any]], params: VerifyParams) -> Figures:
    """Runs a file on examples.

    Args:
        path: a `.pte` file.
        examples: method name to what `export` stored: flat inputs, eager's flat outputs, how many were drawn.
        params: the bounds.

    Raises:
        VerificationFailed: naming method, case, output and figure of everything outside the bounds.
    """
    drawn = params.bounds.drawn_inputs
    cases = [case for method, stored in examples.items() for case in _run_method(path, method, stored, drawn)]
    if problems := [line for case in cases for line in violations(case, params.bounds)]:
        raise VerificationFailed("the file does not compute what eager computes: " + "; ".join(problems))
    return summarize(cases)


def _run_method(path: Path, method: str, stored: Mapping[str, Any], drawn: int) -> Iterator[Case]:
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


def _execute(path: Path, method: str, flat: Sequence[Any], label: str) -> Sequence[Any]:
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
