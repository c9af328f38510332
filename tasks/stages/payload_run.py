"""Running a payload, a complete `.pte` file, on the ExecuTorch runtime."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import executorch.kernels.quantized  # noqa: F401 - kernels of quantized operators
from executorch.runtime import Runtime, Verification

from ...errors import VerificationFailed
from ..figures import Case
from .compare import compare_all
from .labelled import labelled


def missing_backends(backends: Iterable[str]) -> tuple[str, ...]:
    """Those of the backends that this machine's runtime does not have, sorted."""
    return tuple(sorted(set(backends) - set(Runtime.get().backend_registry.registered_backend_names)))


def run_method(path: Path | bytes, method: str, stored: Mapping[str, Any], drawn: int) -> Iterator[Case]:
    """Runs a method of a `.pte` file on its examples.

    Args:
        path: the file, or its content.
        method: name of the method.
        stored: what `export` stored: flat inputs, eager's flat outputs, how many were drawn.
        drawn: how many of the drawn ones to run, besides the examples.

    Raises:
        VerificationFailed: the runtime cannot run it, or outputs are of another kind than eager's.
    """
    for label, flat, expected in labelled(stored, drawn):
        yield from compare_all(_execute(path, method, flat, label), expected, method=method, label=label)


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
