"""Runs payloads on the ExecuTorch runtime, and stored programs in torch."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any, NamedTuple, Protocol

import torch
from executorch.runtime import Program, Runtime, Verification
from torch.export import ExportedProgram
from torch.fx import GraphModule, Interpreter, Node

from ...artifacts.local_store import LocalStore
from ...artifacts.ref import ArtifactRef
from ...errors import FileFormatError, VerificationFailed, runtime_reasons
from ...formats.nfat.container import is_fat, open_fat
from ...formats.nfat.golden import GoldenCheck
from ...formats.pte.contents import Method, PteFile
from ...formats.pte.ptd import check_external_weights
from ...formats.pte.reader import open_pte
from ..backend import kernels  # noqa: F401 - those of quantized operators, too
from ..programs.program import load_program
from ..programs.restore import installed_targets, operator_modules
from ..programs.weights import weights_on_use
from ..results.figures import Case
from ..upstream.compat import OpOverload, pytree
from ..upstream.reference_kernels import mended_references
from ..usercode.inputs import StoredCase, prepend_mutated_inputs, stored_cases
from .compare import compare_all

# operators without a kernel -> what to write in their place
_INSTEAD = {"aten::sort.values": "torch.topk(values, values.shape[-1], largest=False) sorts the last dimension"}


class ExpectedCall(NamedTuple):
    """A call of a method, and what eager returns for it."""

    method: str
    inputs: Sequence[Any]  # flat
    expected: Sequence[Any]  # flat
    label: str  # for example `example 0`
    exact: Sequence[Any] | None = None  # see `StoredCase`


class Sample(NamedTuple):
    """Seconds of loading a method and of each call after that, and resident bytes at most."""

    load: float
    calls: Sequence[float]
    peak_memory: int


class Runnable(Protocol):
    """A program that can be run, here or elsewhere."""

    def run(self, calls: Sequence[ExpectedCall]) -> Iterator[Sequence[Any]]:
        """Flat outputs of each call. All are made on one loaded program: a method sees the state that others left.

        Raises VerificationFailed if it cannot be loaded or run.
        """


@dataclass(frozen=True, slots=True)
class Loadable:
    """A complete program, for the runtime of this process."""

    program: Path  # the `.pte` file
    data: Path | None = None  # the `.ptd` file with its external weights; None where it has none
    check: GoldenCheck | None = None  # that it carries as a payload of a fat file

    def load(self) -> Program:
        """Loads it with all of ExecuTorch's checks; raises RuntimeError where one fails."""
        for module in open_pte(self.program).kernel_modules:
            importlib.import_module(module)
        data = {"data_path": self.data} if self.data else {}  # ExecuTorch before 1.5 takes none
        return Runtime.get().load_program(self.program, verification=Verification.InternalConsistency, **data)

    def run(self, calls: Sequence[ExpectedCall]) -> Iterator[Sequence[Any]]:
        """Runs like a `Runnable`."""
        yield from map(self.open(call.method for call in calls), calls)

    def open(self, methods: Iterable[str]) -> Callable[[ExpectedCall], Sequence[Any]]:
        """Loads methods, and returns a function that calls them and returns their flat outputs, as `run` does."""
        signatures = self.signatures()
        sharing = [name for name, method in signatures.items() if method.shares_state]
        # ExecuTorch's Python runtime lays out methods of one program in one memory: each overwrites what others keep.
        loaded = _load_methods(self, sharing) if sharing else {}
        for method in dict.fromkeys(methods):
            if method not in loaded:
                loaded |= _load_methods(self, [method])
        return lambda call: _execute(loaded, call._replace(inputs=signatures[call.method].lay_out(call.inputs)))

    def own_problem(self) -> str:
        """How it fails the check that it carries; empty if it passes or carries none."""
        methods = self.signatures().values()
        return self.check.problem(methods, lambda name: self.load().load_method(name).execute) if self.check else ""

    def signatures(self) -> Mapping[str, Method]:
        """The file's methods by name, whose `lay_out` makes inputs what the runtime takes them for."""
        return {method.name: method for method in open_pte(self.program).methods}


@dataclass(frozen=True, slots=True)
class EdgePrograms:
    """Edge programs by method, with the interface of the runtime's programs."""

    programs: Mapping[str, ArtifactRef]
    store: LocalStore

    @property
    def method_names(self) -> set[str]:
        return {*self.programs}

    def load_method(self, name: str) -> _EdgeProgram:
        return _EdgeProgram(self.programs[name], self.store)


@dataclass(frozen=True, slots=True)
class ByReference(Loadable):
    """A program with a target's operators that only Python has kernels for here: its edge programs run in its place."""

    edge: EdgePrograms | None = None

    def load(self) -> Any:
        return self.edge


class _EdgeProgram:
    """An edge program that keeps its state from call to call, as a method does that the runtime has loaded."""

    def __init__(self, ref: ArtifactRef, store: LocalStore) -> None:
        self._module = load_program(ref, store).module(check_guards=False)

    def execute(self, flat: Sequence[Any]) -> list[Any]:
        """Flat outputs, preceded by the inputs that it writes to. `flat` is unchanged."""
        inputs = [value.clone() if isinstance(value, torch.Tensor) else value for value in flat]
        run = Interpreter(self._module).run
        with torch.no_grad(), mended_references():
            outputs = prepend_mutated_inputs(inputs, lambda: list(run(*inputs, enable_io_processing=False)))
        return [value.clone() if isinstance(value, torch.Tensor) else value for value in outputs]


def load_libraries(paths: Iterable[str], env: Mapping[str, str]) -> None:
    """Loads libraries, which register backends, for the life of the process; raises VerificationFailed."""
    os.environ |= env
    for path in paths:
        try:
            ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise VerificationFailed(f"the library cannot be loaded: {error}") from error


def without_device(backends: Iterable[str]) -> list[str]:
    """The backends that this machine's runtime has, and that find no device or driver."""
    registry = Runtime.get().backend_registry
    here = set(backends) & set(registry.registered_backend_names)
    return [name for name in sorted(here) if not (registry.is_available(name) and _loaded(name))]


def _loaded(backend: str) -> bool:
    """Whether the libraries are loaded that a backend opens by name; loads them if they are here."""
    return all(target.load_libraries() for target in installed_targets() if backend in target.backends)


def missing_backends(backends: Iterable[str]) -> str:
    """Which backends a program needs that cannot run on this machine, and why; empty if all can."""
    unregistered = sorted(set(backends) - set(Runtime.get().backend_registry.registered_backend_names))
    reasons = {
        "which this machine's runtime does not have": unregistered,
        "which finds no device or driver on this machine": without_device(backends),
    }
    found = [f"{', '.join(names)}, {reason}" for reason, names in reasons.items() if names]
    return f"needs {', and '.join(found)}" if found else ""


def own_operators(pte: PteFile) -> tuple[str, ...]:
    """Operators of a file that are a target's own, and that this machine's runtime has no kernel for."""
    return tuple(name for name in missing_kernels(pte.methods) if name.partition("::")[0] in operator_modules())


def missing_here(pte: PteFile, backends: Iterable[str] = ()) -> str:
    """Which of a file's backends, or kernels of a target, this machine does not have; empty if it has all."""
    if missing := missing_backends({*pte.backends, *backends}):
        return missing
    owners = dict.fromkeys(name.partition("::")[0] for name in own_operators(pte))
    return f"needs kernels of {', '.join(owners)}, which this machine's runtime does not have" if owners else ""


def missing_kernels(methods: Iterable[Method]) -> tuple[str, ...]:
    """Operators of a file's methods that this machine's runtime has no kernel for, in their order."""
    here = Runtime.get().operator_registry.operator_names
    return tuple(name for method in methods for name in method.operators if name not in here)


def run_method(program: Runnable, method: str, stored: Mapping[str, Any], drawn: int) -> Iterator[Case]:
    """Runs a method on its examples, each from the initial state; raises VerificationFailed if that fails."""
    for case in stored_cases(stored, drawn):
        call = ExpectedCall(method, case.inputs, case.expected, case.label, case.exact)
        yield from _compared(program, [call], {method: stored.get("rounding", "")})


def run_sequences(program: Runnable, sequences: Sequence[Any], rounding: Mapping[str, str]) -> Iterator[Case]:
    """Runs sequences of calls, each from the initial state, like `run_method`; `rounding` is that of the methods."""
    for number, sequence in enumerate(sequences):
        calls = [
            ExpectedCall(method, flat, expected, f"sequence {number}, call {position}")
            for position, (method, flat, expected) in enumerate(sequence)
        ]
        yield from _compared(program, calls, rounding)


def _compared(program: Runnable, calls: Sequence[ExpectedCall], rounding: Mapping[str, str]) -> Iterator[Case]:
    for call, outputs in zip(calls, program.run(calls), strict=True):
        case = StoredCase(call.label, call.inputs, call.expected, call.exact)
        yield from compare_all(outputs, case, method=call.method, rounding=rounding.get(call.method, ""))


def _load_methods(payload: Loadable, methods: Sequence[str]) -> dict[str, Any]:
    """Methods of one program, all loaded before any runs, since loading sets the initial values of shared state."""
    loaded: dict[str, Any] = {}
    program = payload.load()
    for method in methods:
        try:
            loaded[method] = program.load_method(method)
        except (KeyError, RuntimeError) as error:
            reason = _why_not_loaded(payload, method, error)
            raise VerificationFailed(f"the runtime cannot load method {method!r}: {reason}") from error
    return loaded


def _why_not_loaded(payload: Loadable, method: str, error: Exception) -> str:
    """Explains why a program was not loaded: its operators without a kernel, if that is the reason."""
    if missing := missing_kernels(each for each in open_pte(payload.program).methods if each.name == method):
        instead = "".join(f" ({other})" for name, other in _INSTEAD.items() if name in missing)
        advice = f"write the model without that{instead}, or use a backend that computes it"
        return f"it has no kernel for {', '.join(missing)}; {advice}"
    reasons = _reasons(lambda: payload.load().load_method(method))
    return f"{reasons}{error}" if reasons else f"{error}; its log says whether a backend or data is missing"


def _reasons(refused: Callable[[], Any]) -> str:
    """The reasons that the runtime logs when it refuses a call, which is made again to capture them; before its error.

    A log that is always captured would be lost if a kernel ends the process. The runtime's bindings write to Python's
    stderr, which is not always that of the process.
    """
    kept = os.dup(2)
    with TemporaryFile() as log, contextlib.redirect_stderr(io.StringIO()) as written:
        os.dup2(log.fileno(), 2)
        try:
            with contextlib.suppress(Exception):
                refused()
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        log.seek(0)
        reasons = runtime_reasons(log.read().decode(errors="replace") + written.getvalue())
    return f"{'; '.join(reasons)}: " if reasons else ""


def _execute(loaded: Mapping[str, Any], call: ExpectedCall) -> Sequence[Any]:
    """Outputs of one execution; raises VerificationFailed where the runtime fails."""
    try:
        outputs: Sequence[Any] = loaded[call.method].execute(call.inputs)
    except RuntimeError as error:
        shapes = [tuple(value.shape) if hasattr(value, "shape") else value for value in call.inputs]
        reasons = _reasons(lambda: loaded[call.method].execute(call.inputs))
        where = f"method {call.method!r} fails on {call.label}, with inputs of {shapes}"
        raise VerificationFailed(f"{reasons}{where}: {error}") from error
    return outputs


def runnable_payloads(
    path: Path,
    data_files: Sequence[Path],
    not_run: dict[str, str],
    edge: EdgePrograms | None = None,
) -> Iterator[tuple[str, Loadable]]:
    """Name and program of all that can run here: a plain file, whose name is empty, or payloads of a fat file.

    A plain file with operators of a target that have no kernel here is a `ByReference`, where it has `edge` programs.
    Fills `not_run` with the payloads that this machine has no backend for: name to reason. Each payload's file is
    deleted before the next one. Raises VerificationFailed for a damaged file, or a plain one whose backend is not here,
    and InputError for a `.ptd` that is missing, damaged or another file's.
    """
    try:
        pte = open_pte(path)
    except FileFormatError as error:
        raise VerificationFailed(str(error)) from error
    if not is_fat(pte):
        data = next(iter(data_files), None)
        if own_operators(pte) and edge:
            yield "", ByReference(path, data, edge=edge)
            return
        if missing := missing_here(pte):
            raise VerificationFailed(
                f"the file {missing}, so nothing can be said of what it computes; "
                "with `verify: {required: false}` in the recipe it is made all the same, and its edge programs are "
                "compared, and as a specialization of a recipe with `output: {form: fat}` it comes with payloads that "
                "are verified"
            )
        check_external_weights(path, pte, data)
        yield "", Loadable(path, data)
        return
    container = open_fat(path, data_files).container
    with TemporaryDirectory(prefix="pteforge-payload-") as folder:
        rebuilt = Path(folder, "payload.pte")  # the runtime maps a file, but copies bytes
        for payload in container.payloads:
            rebuilt.unlink(missing_ok=True)  # before the next one takes space
            container.write(payload, rebuilt)  # checks the digest, also of payloads that cannot run
            if missing := missing_here(open_pte(rebuilt), payload.description.backends):
                not_run[payload.name] = missing
            else:
                yield payload.name, Loadable(rebuilt, check=container.golden_check(payload))


Watch = Callable[[Node, Any], Any]  # called with each node and its value; returns the value that later nodes get


class TorchProgram:
    """A program that torch runs, from its initial state each time."""

    def __init__(self, load: Callable[[], ExportedProgram]) -> None:
        """Loads nothing yet. What `load` returns may be written to."""
        self._load = load
        self._module: GraphModule | None = None
        self.stateful = False  # whether a run has written to its state

    @property
    def module(self) -> GraphModule:
        """The program with its state as attributes: parameters and buffers are not inputs. Nodes keep their names."""
        if self._module is None:
            self._module = self._load().module(check_guards=False)  # inputs were checked when they were stored
        return self._module

    def run(self, flat: Sequence[Any], watch: Watch | None = None, *, gradients: bool = False) -> list[Any]:
        """Flat outputs, preceded by the inputs that it writes to. `watch` may replace values; `flat` is unchanged.

        With `gradients`, torch records operators, so that `watch` can differentiate what the node `output` gets.
        """
        module = self.module
        buffers = list(module.buffers())
        versions = [buffer._version for buffer in buffers]  # noqa: SLF001 - the only way to see a write
        inputs = [value.clone() if isinstance(value, torch.Tensor) else value for value in flat]
        try:
            with torch.set_grad_enabled(gradients), weights_on_use(), mended_references():
                outputs = prepend_mutated_inputs(
                    inputs, lambda: list(_Watched(module, watch).run(*inputs, enable_io_processing=False))
                )
            outputs = [value.detach().clone() if isinstance(value, torch.Tensor) else value for value in outputs]
        finally:
            if versions != [buffer._version for buffer in buffers] or _writes_unseen(module):  # noqa: SLF001 - as above
                self._module, self.stateful = None, True
        return outputs


def run_in_torch(program: TorchProgram, method: str, stored: Mapping[str, Any], drawn: int) -> Iterator[Case]:
    """Runs a method's program on its examples, like `run_method`."""
    for case in stored_cases(stored, drawn):
        yield from compare_all(program.run(case.inputs), case, method=method, rounding=stored.get("rounding", ""))


class StoredProgram(TorchProgram):
    """A program of the store, which is never written to."""

    def __init__(self, ref: ArtifactRef, store: LocalStore) -> None:
        super().__init__(lambda: load_program(ref, store, on_use=True))


class Float64Program(TorchProgram):
    """A program that computes in float64 what it was to compute in float32."""

    @property
    def module(self) -> GraphModule:
        """The program with wider state, in whose operators float64 takes the place of float32."""
        if self._module is None:
            wide = super().module
            wide._apply(_widened)  # noqa: SLF001 - `double` would convert other dtypes, too
            for part in wide.modules():
                for node in part.graph.nodes if isinstance(part, GraphModule) else ():
                    node.args, node.kwargs = pytree.tree_map(_widened, (node.args, dict(node.kwargs)))
        return super().module

    def run(self, flat: Sequence[Any], watch: Watch | None = None, *, gradients: bool = False) -> list[Any]:
        return super().run([_widened(value) for value in flat], watch, gradients=gradients)


def _widened(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.double() if value.dtype is torch.float32 else value
    return torch.float64 if value is torch.float32 else value


def _writes_unseen(module: GraphModule) -> bool:
    """Whether it has operators that change their inputs and are not torch's: these change no version."""
    overloads = (node.target for node in module.graph.nodes if isinstance(node.target, OpOverload))
    return any(target._schema.is_mutable and target.namespace != "aten" for target in overloads)  # noqa: SLF001 - overloads have no public schema


class _Watched(Interpreter):  # type: ignore[misc]  # torch is untyped here
    def __init__(self, module: GraphModule, watch: Watch | None) -> None:
        super().__init__(module)
        self._watch = watch

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        return value if self._watch is None else self._watch(n, value)
