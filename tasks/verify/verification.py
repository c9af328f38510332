"""Verification: runs every method of a file on the ExecuTorch runtime and compares it with eager."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from executorch.runtime import Runtime

from ...artifacts.local_store import LocalStore
from ...artifacts.ref import ArtifactRef
from ...configs.places import HOST
from ...configs.verification import ERROR_BOUNDS, VerifyBounds
from ...errors import VerificationFailed
from ...formats.pte.contents import PteFile, TensorSpec, shape_problem
from ..programs.program import load_program
from ..results.figures import (
    REFERENCE,
    WHOLE_FILE,
    Case,
    Figures,
    disagreements,
    judged,
    lost_parts,
    summarize,
    violations,
    worst_of,
)
from ..results.tables import format_db
from ..upstream.compat import pytree
from ..usercode.inputs import same_shapes, stored_cases
from .adversarial import Found, Judge
from .compare import compare_all, worst_parts
from .running import (
    ByReference,
    EdgePrograms,
    Float64Program,
    Runnable,
    StoredProgram,
    run_in_torch,
    run_method,
    run_sequences,
    runnable_payloads,
)

_SAMPLES = 4  # of calibration that a file is run on


def verify_file(
    path: Path,
    examples: Mapping[str, Mapping[str, Any]],
    bounds: VerifyBounds,
    data_files: Sequence[Path] = (),
    *,
    on_examples: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    edge: EdgePrograms | None = None,
) -> Figures:
    """Runs a `.pte` file, plain or fat, on the examples that `export` stored for its methods.

    Its `edge` programs run in its place if only Python has kernels of its operators here.
    Random inputs of the methods `on_examples` are compared with `as_quantized` of them, and not with eager. Raises
    VerificationFailed, which names everything outside the bounds, and InputError for a `.ptd` that is missing, damaged
    or another file's.
    """
    cases: list[Case] = []
    not_run: dict[str, str] = {}
    by = HOST
    for payload, program in runnable_payloads(path, data_files, not_run, edge):
        by = REFERENCE if isinstance(program, ByReference) else HOST
        try:
            of_payload = run_cases(program, examples, bounds, on_examples)
        except VerificationFailed as error:
            if not payload:
                raise
            raise VerificationFailed(f"payload {payload!r}: {error}") from error
        cases += [replace(case, payload=payload) for case in of_payload]
        if problem := program.own_problem():
            raise VerificationFailed(
                f"payload {payload!r}: {problem}; devices would pass over it: `output: {{self_check: ...}}` in the "
                "recipe needs a larger `tolerance`, or `repeats: 1` where results may vary"
            )
    parts = worst_parts(judged(cases, on_examples), bounds)
    return replace(summarize(cases, not_run, on_examples=on_examples, parts=parts), by=by)


def verify_found(
    path: Path,
    found: Sequence[Found],
    programs: tuple[Mapping[str, ArtifactRef], Mapping[str, ArtifactRef]],
    examples: Mapping[str, Mapping[str, Any]],
    bounds: VerifyBounds,
    store: LocalStore,
    data_files: Sequence[Path] = (),
) -> None:
    """Runs a `.pte` file, plain or fat, on inputs that searches have found; raises VerificationFailed.

    Takes two `programs` of each method: the exported one, and the one that the file has to compute.
    """
    found = [inputs for inputs in found if inputs.method in examples]
    judges = {}
    for name in {inputs.method for inputs in found}:
        judges[name] = Judge(name, StoredProgram(programs[1][name], store), bounds, examples[name].get("rounding", ""))
    exported = {name: load_program(programs[0][name], store) for name in judges}
    for payload, program in runnable_payloads(path, data_files, {}) if found else ():
        for inputs in found:
            if problem := judges[inputs.method].run_again(program, inputs, exported[inputs.method]):
                where = f"payload {payload!r}: " if payload else ""
                raise VerificationFailed(
                    f"{where}on inputs that a search has found, the file does not compute what its program computes: "
                    f"{problem}"
                )


def with_samples(
    stored: Mapping[str, Any], samples: Iterable[Sequence[Any]], exported: ArtifactRef, store: LocalStore
) -> dict[str, Any]:
    """The examples of a method, followed by the first calibration samples of the size that was traced.

    The outputs for the samples are those of the exported program, which computes what eager does.
    """
    program = StoredProgram(exported, store)
    first, real = stored["inputs"][0], len(stored["inputs"]) - stored["drawn"]
    taken = list(islice((flat for flat in samples if same_shapes(flat, first)), _SAMPLES))
    added: dict[str, list[Any]] = {"inputs": taken, "outputs": [program.run(flat) for flat in taken]}
    spliced = {role: [*stored[role][:real], *added[role], *stored[role][real:]] for role in added}
    return {**stored, **spliced, "exact": None, "samples": len(taken)}


_MOST_IN_FLOAT64 = 1 << 32  # bytes of state


def judged_by_eager_error(
    check: Callable[[Mapping[str, Mapping[str, Any]]], Figures],
    examples: Mapping[str, Mapping[str, Any]],
    bounds: VerifyBounds,
    exported: Mapping[str, ArtifactRef],
    store: LocalStore,
) -> Figures:
    """The figures of a check of `examples`, which raises VerificationFailed for outputs that are outside the bounds.

    Then `exported` programs in float32 run in float64, and outputs pass that are as close to that as eager's are; notes
    name them. Only programs count that compute what eager computes while they run in float32.
    """
    try:
        return check(examples)
    except VerificationFailed:
        exact = {name: _in_float64(name, examples[name], bounds, ref, store) for name, ref in exported.items()}
        if not any(exact.values()):
            raise
    figures = check(
        {name: {**stored, "exact": exact.get(name) or stored.get("exact")} for name, stored in examples.items()}
    )
    least = bounds.min_sqnr_db or -math.inf
    passed = [case for case in figures.cases if case.own_error and case.sqnr_db is not None and case.sqnr_db < least]
    worst: dict[tuple[str, str, int], Case] = {}
    for case in sorted(passed, key=lambda case: case.sqnr_db or 0.0):
        worst.setdefault((case.payload, case.method, case.output), case)
    notes = [f"{case.where}: {format_db(case.sqnr_db)} of eager; {case.own_error}" for case in worst.values()]
    return replace(figures, notes=(*figures.notes, *notes))


def _in_float64(
    name: str, stored: Mapping[str, Any], bounds: VerifyBounds, ref: ArtifactRef, store: LocalStore
) -> list[list[Any]] | None:
    """What a program in float32 returns for all examples in float64.

    None if it cannot, is too large, or draws numbers, or if its outputs in float32 are not eager's.
    """
    if stored.get("rounding") or stored.get("random"):
        return None
    program = load_program(ref, store)
    if 2 * sum(value.nbytes for value in program.state_dict.values()) > _MOST_IN_FLOAT64:
        return None
    try:
        plain, wide = StoredProgram(ref, store), Float64Program(lambda: load_program(ref, store))
        for case in stored_cases(stored, bounds.drawn_inputs):
            compared = compare_all(plain.run(case.inputs), case, method=name, rounding="")
            if any(problem for figures in compared for problem in violations(figures, bounds)):
                return None
        return [wide.run(flat) for flat in stored["inputs"]]
    except Exception:  # noqa: BLE001 - of an operator that takes no float64
        return None


def as_quantized(stored: Mapping[str, Any], program: ArtifactRef, drawn: int, store: LocalStore) -> dict[str, Any]:
    """The random inputs of a method, with the outputs of its quantized program in place of eager's."""
    inputs = [case.inputs for case in stored_cases(stored, drawn) if case.label.startswith("drawn")]
    quantized = StoredProgram(program, store)
    outputs = [quantized.run(flat) for flat in inputs]
    return {**stored, "inputs": inputs, "outputs": outputs, "exact": None, "drawn": len(inputs), "sequences": ()}


def same_for_all(examples: Mapping[str, Mapping[str, Any]], bounds: VerifyBounds) -> Iterator[str]:
    """A note on each method whose outputs for one input would pass for those for all others of the same shapes.

    Verification of such a method proves little: a file that ignores its inputs passes, too. Without bounds, because an
    accuracy gate decides, nothing follows from it.
    """
    if all(getattr(bounds, name) is None for name in ERROR_BOUNDS):
        return
    for method, stored in examples.items():
        first, *rest = stored_cases(stored, bounds.drawn_inputs)
        alike = (case for case in rest if same_shapes(case.inputs, first.inputs))
        others = [case for case in alike if not all(map(_equal, case.inputs, first.inputs))]
        try:
            cases = [figures for case in others for figures in compare_all(first.expected, case, method=method)]
        except VerificationFailed:  # numbers in one place, and none in the other
            continue
        outside = any(line for case in cases for line in violations(case, bounds)) or any(disagreements(cases, bounds))
        if cases and not outside:
            sqnr_db = worst_of(cases).sqnr_db
            within = "" if sqnr_db is None else f" within {sqnr_db:.1f} dB"
            yield (
                f"eager's {method!r} returns the same{within} for {len(others) + 1} inputs, so that a file that "
                "ignores its inputs would pass: give it trained weights, or other example inputs"
            )


def check_sizes(pte: PteFile, examples: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises VerificationFailed unless a file takes the sizes that it was run with, and none beyond those it is for."""
    for method in pte.methods:
        stored = examples.get(method.name, {"inputs": ()})
        for position, spec in enumerate(method.inputs):
            if not isinstance(spec, TensorSpec):
                continue
            where = f"method {method.name!r}, input {position}"
            for flat in stored["inputs"]:
                if problem := shape_problem(spec, flat[position].shape):
                    raise VerificationFailed(f"{where}: the file refuses a size that it was run with: it {problem}")
            if stored.get("dynamic") and spec.dynamism == "bound" and not spec.sizes:
                raise VerificationFailed(f"{where}: the file does not say which sizes it takes")
            for sizes in spec.sizes:
                for size in (sizes.least - 1, sizes.most + 1, *[sizes.least + 1] * (sizes.step > 1)):
                    shape = [*spec.shape[: sizes.dimension], size, *spec.shape[sizes.dimension + 1 :]]
                    if shape_problem(spec, shape) is None:
                        raise VerificationFailed(f"{where}: the file takes the shape {shape}, which it is not for")


def check_constants(path: Path, constants: Mapping[str, Any]) -> None:
    """Raises VerificationFailed unless a file, plain or fat, returns its constants as `emitted_constants` does."""
    if not constants:
        return
    program = Runtime.get().load_program(path)
    for name, tree in constants.items():
        try:
            returned = program.load_method(name).execute([])
        except (KeyError, RuntimeError) as error:
            raise VerificationFailed(f"the runtime cannot run the constant method {name!r}: {error}") from error
        wanted = pytree.tree_leaves(tree)
        if len(returned) != len(wanted) or not all(map(_equal, returned, wanted)):
            raise VerificationFailed(f"the constant method {name!r} returns {returned!r}, which should be {wanted!r}")


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        same = one.dtype == other.dtype and one.shape == other.shape
        return bool(same and torch.equal(torch.nan_to_num(one), torch.nan_to_num(other)))
    if isinstance(one, float) and isinstance(other, float) and math.isnan(other):
        return math.isnan(one)
    return type(one) is type(other) and bool(one == other)


def verify_programs(
    programs: Mapping[str, ArtifactRef],
    examples: Mapping[str, Mapping[str, Any]],
    bounds: VerifyBounds,
    missing: str,
    store: LocalStore,
    on_examples: Collection[str] = (),
) -> Figures:
    """Runs the edge programs of a file in its place, since backends are missing here; raises as `verify_file`."""
    cases: list[Case] = []
    for method, stored in examples.items():
        cases += run_in_torch(StoredProgram(programs[method], store), method, stored, bounds.drawn_inputs)
    bounded = judged(cases, on_examples)
    _check(bounded, bounds, "the edge program does")
    instead = {WHOLE_FILE: f"{missing}; its edge program ran instead"}
    return summarize(cases, instead, on_examples=on_examples, parts=worst_parts(bounded, bounds))


def run_cases(
    program: Runnable,
    examples: Mapping[str, Mapping[str, Any]],
    bounds: VerifyBounds,
    on_examples: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> list[Case]:
    """Runs a program on all examples, here or elsewhere; raises VerificationFailed as `verify_file`."""
    drawn = bounds.drawn_inputs
    cases = [case for method, stored in examples.items() for case in run_method(program, method, stored, drawn)]
    rounding = {method: stored.get("rounding", "") for method, stored in examples.items()}
    for stored in examples.values():
        cases += run_sequences(program, stored.get("sequences", ()), rounding)
    _check(judged(cases, on_examples), bounds, "the file does")
    like = [case for method, stored in on_examples.items() for case in run_method(program, method, stored, drawn)]
    _check(like, bounds, "on random inputs, the file does", "its quantized program")
    return cases


def _check(cases: Sequence[Case], bounds: VerifyBounds, what: str, reference: str = "eager") -> None:
    outside = [(case, line) for case in cases for line in violations(case, bounds)]
    shared = [*disagreements(cases, bounds), *lost_parts(worst_parts(cases, bounds), bounds)]
    if problems := [*(f"{case.where}: {line}" for case, line in outside), *shared]:
        worst, passing = worst_of(cases), [case for case in cases if not case.is_drawn]
        if passing and not shared and all(case.is_drawn for case, _ in outside):
            least = worst_of(passing).sqnr_db
            problems.append("its examples pass" if least is None else f"its examples pass with {least:.1f} dB")
        smallest = "" if worst.sqnr_db is None else f"the smallest SQNR is {worst.sqnr_db:.1f} dB, "
        raise VerificationFailed(
            f"{what} not compute what {reference} computes: {'; '.join(problems)} (the recipe's `verify` has the "
            f"bounds, {smallest}and the largest error is {worst.max_abs_error:.3g}, {worst.max_relative_error:.3g} of "
            "the largest value)"
        )
