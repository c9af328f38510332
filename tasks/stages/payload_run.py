"""Running a payload, a complete `.pte` file, on the ExecuTorch runtime."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import executorch.kernels.quantized  # noqa: F401 - kernels of quantized operators
from executorch.runtime import Runtime

from ...artifacts.pte.reader import open_pte, read_pte
from ...errors import VerificationFailed
from ..figures import Case
from .compare import compare_all
from .labelled import labelled
from .loadable import Loadable


def missing_backends(backends: Iterable[str]) -> tuple[str, ...]:
    """Those of the backends that this machine's runtime does not have, sorted."""
    return tuple(sorted(set(backends) - set(Runtime.get().backend_registry.registered_backend_names)))


def run_method(payload: Loadable, method: str, stored: Mapping[str, Any], drawn: int) -> Iterator[Case]:
    """Runs a method of a `.pte` file on its examples.

    Args:
        payload: the file, or its content.
        method: name of the method.
        stored: what `export` stored: flat inputs, eager's flat outputs, how many were drawn.
        drawn: how many of the drawn ones to run, besides the examples.

    Raises:
        VerificationFailed: the runtime cannot run it, or outputs are of another kind than eager's.
    """
    stateful = _sharing_state(payload)
    for label, flat, expected in labelled(stored, drawn):
        # Everything is loaded anew, so that no state of an earlier execution is seen.
        loaded = load_methods(payload, (*stateful, method))
        yield from compare_all(execute(loaded, method, flat, label), expected, method=method, label=label)


def run_sequences(payload: Loadable, sequences: Sequence[Any]) -> Iterator[Case]:
    """Runs sequences of calls, the calls of each on one loaded program: a method sees the state that others left.

    Args:
        payload: the file, or its content.
        sequences: what `export` stored: for each call of each sequence its method, flat inputs, eager's flat outputs.

    Raises:
        VerificationFailed: see `run_method`.
    """
    for number, calls in enumerate(sequences):
        loaded = load_methods(payload, (*_sharing_state(payload), *(method for method, _, _ in calls)))
        for position, (method, flat, expected) in enumerate(calls):
            label = f"sequence {number}, call {position}"
            yield from compare_all(execute(loaded, method, flat, label), expected, method=method, label=label)


def load_methods(payload: Loadable, methods: Sequence[str]) -> Mapping[str, Any]:
    """A file's methods, all loaded before any runs: what loading says of shared state undoes nothing.

    Raises:
        VerificationFailed: the runtime cannot load one.
    """
    loaded: dict[str, Any] = {}
    program = payload.load()
    for method in methods:
        try:
            loaded[method] = program.load_method(method)
        except (KeyError, RuntimeError) as error:
            raise VerificationFailed(
                f"the runtime cannot load method {method!r}: {error}; "
                "its log says whether an operator, a backend or data is missing"
            ) from error
    return loaded


def execute(loaded: Mapping[str, Any], method: str, flat: Sequence[Any], label: str) -> Sequence[Any]:
    """Outputs of one execution; raises VerificationFailed where the runtime fails."""
    try:
        outputs: Sequence[Any] = loaded[method].execute(flat)
    except RuntimeError as error:
        shapes = [tuple(value.shape) if hasattr(value, "shape") else value for value in flat]
        raise VerificationFailed(f"method {method!r} fails on {label}, with inputs of {shapes}: {error}") from error
    return outputs


def _sharing_state(payload: Loadable) -> tuple[str, ...]:
    """Methods of a file that share their state: memory planning gives it an arena of its own."""
    program = payload.program
    pte = read_pte(program) if isinstance(program, bytes) else open_pte(program)
    return tuple(method.name for method in pte.methods if len(method.planned_memory) > 1)
