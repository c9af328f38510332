"""What `pteforge.export` returns: the file, and everything that led to it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from executorch.devtools.backend_debug import get_delegation_info
from torch.export import ExportedProgram

from ..artifacts.files import replace_file
from ..artifacts.local_store import LocalStore
from ..artifacts.ref import ArtifactRef
from ..artifacts.runs import StageOutcome
from ..artifacts.store import Store
from ..errors import InputError, StoreUnusable, convert_os_errors
from ..runtime.generation import Generated, GenerationOptions, generate
from ..runtime.host import LoadedProgram, load
from ..runtime.quiet import quiet
from ..runtime.selection import scratch_folder
from ..tasks.backend.stages.compile import Compile, emit, linked_manager
from ..tasks.backend.stages.edge import Edge
from ..tasks.backend.stages.partition import Partition
from ..tasks.engine.runner import Done, StageId
from ..tasks.engine.stage import from_roles
from ..tasks.export.stages.export import Export
from ..tasks.file.stages.report import Report
from ..tasks.file.stages.serialize import Serialize
from ..tasks.lowering.bisection import Bisection, bisect
from ..tasks.lowering.graph import check_stage
from ..tasks.lowering.runs import RecipeRun, run_without_loop
from ..tasks.programs.delegates import load_delegates
from ..tasks.programs.payload import load_assets, payload_sha256, read_payload, write_payload
from ..tasks.programs.program import load_program
from ..tasks.programs.values import load_value, load_values
from ..tasks.results.delivered import Delivered
from ..tasks.results.figures import Figures
from ..tasks.results.numerics import DROP_DB
from ..tasks.results.quantization import Quantization
from ..tasks.results.tables import Table, in_html
from ..tasks.upstream.compat import pytree
from ..tasks.verify.stages.verify import Verify
from .source import LiveSource

if TYPE_CHECKING:
    from executorch.exir import EdgeProgramManager, ExecutorchProgramManager

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class OperatorCount:
    """How many calls of an operator are inside and outside of delegates."""

    operator: str
    delegated: int
    not_delegated: int


@dataclass(frozen=True, slots=True)
class Delegation:
    """One method of one specialization: its number of delegated subgraphs, and its operators sorted by name."""

    method: str
    partitions: int
    operators: tuple[OperatorCount, ...]

    @property
    def delegated(self) -> int:
        return sum(operator.delegated for operator in self.operators)

    @property
    def not_delegated(self) -> int:
        """Operator calls that the portable kernels run."""
        return sum(operator.not_delegated for operator in self.operators)

    @property
    def table(self) -> Table:
        counts = [astuple(operator) for operator in self.operators]
        rows = [tuple(map(str, row)) for row in (*counts, ("total", self.delegated, self.not_delegated))]
        numbers, caption = ("delegated", "not delegated"), f"{self.method}: {self.partitions} delegated subgraphs"
        return Table(("operator", *numbers), tuple(rows), numbers, caption)

    def __str__(self) -> str:
        return str(self.table)

    def _repr_html_(self) -> str:
        return in_html(self.table)


def delegation_of(method: str, program: ExportedProgram) -> Delegation:
    """Counts the operators of a partitioned program, or of an Edge program that nothing was delegated from."""
    info = get_delegation_info(program.graph_module)
    counts = sorted(info.delegation_by_operator.values(), key=lambda count: count.op_type)
    operators = tuple(OperatorCount(count.op_type, count.delegated, count.non_delegated) for count in counts)
    return Delegation(method, info.num_delegated_subgraphs, operators)


class Shown(tuple[T, ...]):  # noqa: SLOT001 - a tuple with attributes can have none
    """Records that show themselves as tables, in a notebook as HTML."""

    tables: tuple[Table, ...]

    @classmethod
    def of(cls, records: Iterable[T], *tables: Table) -> Self:
        shown = cls(records)
        shown.tables = tables
        return shown

    def __repr__(self) -> str:
        return "\n\n".join(map(str, self.tables))

    def _repr_html_(self) -> str:
        return "".join(map(in_html, self.tables))


_lock = threading.RLock()


@contextmanager
def alone() -> Iterator[None]:
    """One thread at a time: torch and ExecuTorch cannot trace or lower in two. Drops the output of libraries."""
    with _lock, quiet():
        yield


@dataclass(frozen=True)
class Exported:
    """A lowered model. Everything is read from the store on access.

    Attributes:
        methods: names, in the model's order.
        stages: for each stage, whether it ran or was cached, and which fields of its key had changed.
        rejected: the file is below its recipe's accuracy bounds; see `AccuracyMissed`.
    """

    model: str
    recipe: str
    methods: tuple[str, ...]
    stages: tuple[StageOutcome, ...] = field(repr=False)
    rejected: bool = field(repr=False)
    _examples: Mapping[str, Sequence[tuple[Any, ...]]] = field(repr=False)
    _run: RecipeRun = field(repr=False)

    @classmethod
    def of(cls, run: RecipeRun, source: LiveSource, stages: tuple[StageOutcome, ...], *, rejected: bool) -> Exported:
        examples = {name: method.example_inputs for name, method in source.definition.methods.items()}
        methods = tuple(run.model.methods_in_file([*examples]))
        return cls(run.model.name, run.plan.name, methods, stages, rejected, examples, run)

    @property
    def _store(self) -> Store:
        return self._run.store

    @property
    def pte(self) -> bytes:
        """The `.pte` file; `save` writes it without holding it in memory."""
        return read_payload(self._main_file, self._store.local)

    @property
    def sha256(self) -> str:
        """SHA-256 of the `.pte` file."""
        return payload_sha256(self._main_file, self._store.local)

    def save(self, path: str | Path) -> Path:
        """Writes the `.pte` file; next to it external weights, as a `.ptd`, and the model's assets. Returns the path.

        Raises StoreUnusable if a file cannot be written.
        """
        path = Path(path)
        with convert_os_errors(StoreUnusable, f"cannot write {path}"):
            for role, target in (("data", path.with_suffix(".ptd")), ("file", path)):
                if ref := self._file(role):
                    write_payload(ref, self._store.local, target)
            for name, content in self.assets.items():
                replace_file(path.with_name(name), content, path.parent)
        return path

    @property
    def assets(self) -> dict[str, bytes]:
        """Files that are delivered with the model, by name; empty for a run that stopped earlier."""
        ref = self._file("assets") if not self.rejected else None
        return load_assets(ref, self._store.local) if ref else {}

    def load(self, *, prefer: Iterable[str] = (), exclude: Iterable[str] = ()) -> LoadedProgram:
        """Loads the file into ExecuTorch's runtime; arguments are those of `pteforge.runtime.load`."""
        with scratch_folder() as folder:
            path = self.save(folder / f"{self.recipe}.pte")
            data = [path.with_suffix(".ptd")] if self._file("data") else []
            return load(path, prefer=prefer, exclude=exclude, data_files=data)

    def run_method(self, method: str = "forward", inputs: Sequence[Any] | None = None) -> list[Any]:
        """Runs a method of the file on ExecuTorch's runtime; returns its flat outputs.

        The positional arguments `inputs` default to the first example's.
        """
        if inputs is None:
            called = self._run.model.methods_in_file([method])[0]
            # including keyword arguments; a constant method takes none
            flat = self._flat_examples(called)[0] if called in self.methods else []
        elif isinstance(inputs, tuple | list):
            flat = pytree.tree_leaves(tuple(inputs))
        else:
            kind = type(inputs).__name__
            raise InputError(f"inputs are a {kind}; give a tuple of positional arguments, such as (x,)")
        return self.load().run(method, flat)

    def run(self, *inputs: Any, method: str = "forward") -> Any:
        """Runs a method as `run_method` does; returns what the model returns: a tensor, a tuple, a dict with its names.

        State of inputs that the method writes to is left out.
        """
        called = self._run.model.methods_in_file([method])[0]
        structure = self.exported_program(called).call_spec.out_spec
        outputs = self.run_method(method, inputs or None)
        return pytree.tree_unflatten(outputs[len(outputs) - structure.num_leaves :], structure)

    def generate(
        self, prompt: str = "", *, stream: Callable[[str], None] | None = None, **options: Unpack[GenerationOptions]
    ) -> Generated:
        """Generates text with the file, in a process of its own; arguments are those of `pteforge.runtime.generate`."""
        with scratch_folder() as folder:
            file = self.save(folder / f"{self.recipe}.pte")
            data = file.with_suffix(".ptd") if self._file("data") else None
            return generate(file, prompt, data=data, stream=stream, **options)

    def example_inputs(self, method: str = "forward") -> tuple[tuple[Any, ...], ...]:
        """The examples that a method was exported with; the first one was traced."""
        self._check_method(method)
        if self._run.model.bucket(method):
            return tuple(map(tuple, self._flat_examples(method)))
        return tuple(self._examples[method])

    def _flat_examples(self, method: str) -> list[Sequence[Any]]:
        stored = self.artifact(Export.name, method=method, role="examples")
        examples: list[Sequence[Any]] = stored["inputs"][: len(stored["inputs"]) - stored["drawn"]]
        return examples

    def artifact(self, stage: str, *, method: str = "", specialization: str = "", role: str = "") -> Any:
        """Loads an output of a stage.

        Args:
            stage: name of the stage, such as ``edge``.
            method: the method, if there are several.
            specialization: the payload of a fat file.
            role: name of the output; by default its program or file.

        Returns:
            An ExportedProgram for `export`, `quantize`, `edge` and `partition`, bytes for files, and so on: see
            `load_artifact`. Each call loads a new copy, so you may change it.

        Raises:
            InputError: there is no such output, or the arguments are ambiguous.
        """
        ref = output_of(self._result(stage, method, specialization), role)
        self._store.fetch(ref)
        return load_artifact(ref, self._store.local)

    def exported_program(self, method: str = "forward") -> ExportedProgram:
        """The ATen program of a method."""
        self._check_method(method)
        return self.artifact(Export.name, method=method)

    def edge_manager(self, specialization: str = "") -> EdgeProgramManager:
        """All methods in the Edge dialect with their delegates, as they are emitted."""
        call = self._result(Compile.name, specialization=specialization).call
        for ref in call.inputs.values():
            self._store.fetch(ref)
        return linked_manager(from_roles(Compile.Inputs, call.inputs), call.params, self._store.local)

    def executorch_manager(self, specialization: str = "") -> ExecutorchProgramManager:
        """Exir's own manager of a payload; emits it again, as it cannot be stored. Its buffer is the payload."""
        params = self._result(Compile.name, specialization=specialization).call.params
        return emit(self.edge_manager(specialization), params)

    def delegation(self, specialization: str = "") -> Shown[Delegation]:
        """Which operators of each method were delegated: shows itself as tables."""
        partitions = [step for step in self._run.done if step.stage == Partition.name]
        partitioned = {step.method for step in partitions if step.payload in ("", specialization)}
        stages = {method: Partition.name if method in partitioned else Edge.name for method in self.methods}
        delegations = [
            delegation_of(method, self.artifact(stage, method=method, specialization=specialization))
            for method, stage in stages.items()
        ]
        return Shown.of(delegations, *(delegation.table for delegation in delegations))

    def etrecord(self, path: str | Path, specialization: str = "") -> Path:
        """Writes the ETRecord of a payload for `executorch.devtools.Inspector`; returns the path.

        Raises InputError if the model was not lowered in debug mode; StoreUnusable if the file cannot be written.
        """
        path = Path(path)
        content: bytes = self.artifact(Compile.name, specialization=specialization, role="etrecord")
        with convert_os_errors(StoreUnusable, f"cannot write {path}"):
            path.write_bytes(content)
        return path

    @property
    def figures(self) -> Figures:
        """How far the file's outputs are from eager's."""
        return Figures.from_json(self.artifact(Verify.name, role="figures"))

    @property
    def provenance(self) -> dict[str, Any]:
        """How the file was made; the command line writes this as JSON next to the file."""
        provenance: dict[str, Any] = self.artifact(Report.name, role="provenance")
        return provenance

    @property
    def delivered(self) -> Delivered:
        """What came out, in one record: digests, sizes, findings and what was left out."""
        delivered = Delivered.of_provenance(self.provenance)
        left_out = self._run.why_left_out(delivered.left_out)
        return replace(delivered, left_out=left_out, findings=(*delivered.findings, *self._run.found_since()))

    @property
    def quantization(self) -> dict[str, Quantization]:
        """How much of each PT2E-quantized method's weights became integers, and which did not."""
        return {reached.method: reached for reached in self.delivered.every(Quantization)}

    @property
    def left_out(self) -> dict[str, str]:
        """Name of a specialization that the file lacks -> reason."""
        return dict(self.delivered.left_out)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What to know about the file, as the command line prints it; `pteforge.export` warns about it."""
        return tuple(fact.note for fact in self.delivered.notes if fact.telling and not fact.listed)

    def why(self) -> Shown[StageOutcome]:
        """Whether each stage ran, and which fields of its key had changed since: shows itself as a table."""
        return Shown.of(self.stages, Table(("stage", "status", "s", "why"), tuple(map(_row, self.stages)), ("s",)))

    @alone()
    def bisect(self, drop_db: float = DROP_DB) -> Bisection:
        """Finds where the file loses quality: in which program on the way to it, and at which of its operators.

        A program loses quality if its SQNR is more than `drop_db` below that of the one before. Runs what is not
        cached. Raises PteforgeError if the comparison fails.
        """
        model = replace(self._run.model, recipes=(replace(self._run.plan, until=None),))
        return run_without_loop(bisect(self._run.runner, model, drop_db))

    def __str__(self) -> str:
        return str(Table(("", ""), tuple(self._facts()), caption=f"{self.model}/{self.recipe}"))

    def _repr_html_(self) -> str:
        return in_html(Table(("", ""), tuple(self._facts()), caption=f"{self.model}/{self.recipe}"))

    def _facts(self) -> Iterator[tuple[str, str]]:
        """Rows of the table, name and text; those about the file are missing if the run stopped earlier."""
        yield "methods", ", ".join(self.methods)
        ran = [stage for stage in self.stages if stage.status == "ran"]
        seconds = sum(stage.seconds for stage in ran)
        yield "stages", f"{len(ran)} run in {seconds:.1f} s, {len(self.stages) - len(ran)} cached"
        if self.rejected:
            yield "rejected", "the file is outside of its recipe's bounds"
        try:
            delivered = self.delivered
        except InputError:
            return
        yield "backends", ", ".join(delivered.backends) or "portable kernels only"
        for fact in delivered.facts():
            if fact.name and (fact.column or fact.area == "file"):
                yield fact.name, fact.text
        for fact in delivered.notes:
            yield "warning" if fact.telling and not fact.listed else fact.area, fact.note

    def _check_method(self, method: str) -> None:
        if method not in self.methods:
            raise InputError(f"the model has no method {method!r}; it has {', '.join(map(repr, self.methods))}")

    def _result(self, stage: str, method: str = "", specialization: str = "") -> Done:
        """The result of the one stage call that fits (empty fits all); InputError for none, several or a failed one."""
        if method:
            self._check_method(method)
        check_stage(stage)
        steps = [*self._run.done, *self._run.failed]
        of_stage = [step for step in steps if step.stage == stage]
        if not of_stage:
            stages = dict.fromkeys(step.stage for step in steps)
            raise InputError(f"there is no stage {stage!r} in this run; it has {', '.join(stages)}")
        of_method = [step for step in of_stage if method in ("", self._method_of(step))]
        matching = [step for step in of_method if specialization in ("", step.payload)]
        if len(matching) != 1:
            problem = "say which" if matching else "there is no such call"
            raise InputError(f"stage {stage!r}: {problem}; there are {', '.join(map(self._arguments_of, of_stage))}")
        (step,) = matching
        if step in self._run.failed:
            raise InputError(f"{step} was not made: {self._run.failed[step]}")
        return self._run.done[step]

    def _method_of(self, step: StageId) -> str:
        return self.methods[0] if step.stage == Export.name and not step.method else step.method

    def _arguments_of(self, step: StageId) -> str:
        """What to give for a stage call."""
        named = {"method": self._method_of(step), "specialization": step.payload}
        return " ".join(f"{key}={value!r}" for key, value in named.items() if value) or "one for all"

    @property
    def _main_file(self) -> ArtifactRef:
        ref = self._file("file")
        assert ref  # noqa: S101 - every report reads one
        return ref

    def _file(self, role: str) -> ArtifactRef | None:
        """The verified file, or its external weights; raises InputError if the run stopped earlier."""
        if self.rejected:  # it has no report
            return self._result(Serialize.name).roles.get(role)
        return self._result(Report.name).call.inputs.get(role)


def _row(stage: StageOutcome) -> tuple[str, ...]:
    changed = ", ".join(change.field for change in stage.telling)
    return stage.step, stage.status, f"{stage.seconds:.2f}", f"changed: {changed}" if changed else stage.message


def output_of(result: Done, role: str) -> ArtifactRef:
    """One output of a stage; for an empty role its program or file, or the only one. Raises InputError."""
    outputs = result.roles
    mains = [main for main in ("program", "file", "payload") if main in outputs]
    only = next(iter(outputs)) if len(outputs) == 1 else ""
    chosen = role or next(iter(mains), only)
    if chosen not in outputs:
        raise InputError(f"stage {result.call.stage.name!r} returns {', '.join(outputs)}; name one of them as `role`")
    return outputs[chosen]


def load_artifact(ref: ArtifactRef, store: LocalStore) -> Any:
    """Loads an artifact by its kind.

    Returns an ExportedProgram for programs; `Delegates`; a tree of tensors and plain values for examples and constants,
    an iterator of them for samples; bytes by name for assets; the value of JSON for reports; bytes for everything else.
    """
    load = _LOADERS.get(ref.kind) or _LOADERS.get(ref.kind.partition("/")[0])
    return load(ref, store) if load else store.read_artifact(ref)


def _load_json(ref: ArtifactRef, store: LocalStore) -> Any:
    return json.loads(store.read_artifact(ref))


_LOADERS: dict[str, Callable[[ArtifactRef, LocalStore], Any]] = {
    "program": load_program,
    "delegates": load_delegates,
    "payload": read_payload,
    "examples": load_value,
    "model/constants": load_value,
    "model/assets": load_assets,
    "samples": load_values,
    "debug/etrecord": lambda ref, store: store.read_artifact(ref),
    **dict.fromkeys(("program/state", "model", "report", "finding", "debug"), _load_json),
}
