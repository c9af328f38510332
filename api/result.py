"""What `pteforge.export` gives back: the file, and everything that led to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from ..artifacts.pte.pieces import payload_sha256, read_payload, write_payload
from ..artifacts.ref import ArtifactRef
from ..artifacts.runs import StageOutcome
from ..artifacts.store import Store
from ..errors import InputError
from ..runtime.host import LoadedProgram, load
from ..runtime.scratch import scratch_folder
from ..tasks.catalog import StageName
from ..tasks.dataflow import input_refs, why_left_out
from ..tasks.executor import StepResult
from ..tasks.figures import Figures
from ..tasks.model import PlannedRecipe
from ..tasks.params import CompileParams
from .artifacts import Part, find_part, load_artifact, output_of
from .delegation import Delegation, delegation_of
from .live_model import LiveModel
from .run import FinishedRun
from .why import told
from .writing import writing

if TYPE_CHECKING:
    from executorch.exir import EdgeProgramManager, ExecutorchProgramManager


@dataclass(frozen=True)
class Exported:
    """A model that was lowered. Everything is read from the store when it is asked for.

    Attributes:
        model: name of the model.
        recipe: name of the recipe.
        methods: names, the first one first.
        stages: what became of each stage: whether it ran or was cached, and which fields of its key had changed.
        rejected: the file is below its recipe's accuracy bounds; only that of an `AccuracyMissed` is.
    """

    model: str
    recipe: str
    methods: tuple[str, ...]
    stages: tuple[StageOutcome, ...] = field(repr=False)
    rejected: bool = field(repr=False)
    _examples: Mapping[str, Sequence[tuple[Any, ...]]] = field(repr=False)
    _planned: PlannedRecipe = field(repr=False)
    _run: FinishedRun = field(repr=False)
    _store: Store = field(repr=False)

    @classmethod
    def of(cls, model: LiveModel, run: FinishedRun, store: Store) -> Exported:
        """The result of a run."""
        examples = {name: each.example_inputs for name, each in model.source.definition.methods.items()}
        (recipe,) = model.recipes
        return cls(model.name, recipe.name, tuple(examples), run.stages, bool(run.missed), examples, recipe, run, store)

    @property
    def pte(self) -> bytes:
        """The `.pte` file; `save` writes it without holding it in memory."""
        ref = self._file("file")
        assert ref  # noqa: S101 - every report reads one
        return read_payload(ref, self._store.local)

    @property
    def sha256(self) -> str:
        """Of the `.pte` file."""
        ref = self._file("file")
        assert ref  # noqa: S101 - every report reads one
        return payload_sha256(ref, self._store.local)

    def save(self, path: str | Path) -> Path:
        """Writes the `.pte` file, and beside it, with the ending `.ptd`, the weights where the recipe keeps them apart.

        Returns:
            The path.

        Raises:
            StoreUnusable: it cannot be written.
        """
        path = Path(path)
        with writing(path):
            for role, target in (("data", path.with_suffix(".ptd")), ("file", path)):
                if ref := self._file(role):
                    write_payload(ref, self._store.local, target)
        return path

    def load(self, *, prefer: Iterable[str] = (), exclude: Iterable[str] = ()) -> LoadedProgram:
        """Loads the file into ExecuTorch's runtime on this machine; arguments are those of `pteforge.runtime.load`."""
        with scratch_folder() as folder:
            path = self.save(folder / f"{self.recipe}.pte")
            data = [path.with_suffix(".ptd")] if self._file("data") else []
            return load(path, prefer=prefer, exclude=exclude, data_files=data)

    def run_method(self, method: str = "forward", inputs: Sequence[Any] | None = None) -> list[Any]:
        """Runs a method of the file on ExecuTorch's runtime.

        Args:
            method: its name.
            inputs: positional arguments; those of the first example where left out.

        Returns:
            Outputs, flat.
        """
        if inputs is not None and not isinstance(inputs, tuple | list):
            raise InputError(
                f"inputs are a {type(inputs).__name__}; give a tuple of positional arguments, such as (x,)"
            )
        flat = self._first_example(method) if inputs is None else pytree.tree_leaves(tuple(inputs))
        return self.load().run(method, flat)

    def example_inputs(self, method: str = "forward") -> tuple[tuple[Any, ...], ...]:
        """The examples that a method was exported with; the first one traced."""
        self._check_method(method)
        return tuple(self._examples[method])

    def artifact(self, stage: str, *, method: str = "", specialization: str = "", role: str = "") -> Any:
        """What a stage gave, loaded.

        Args:
            stage: name of the stage, such as ``edge``.
            method: the method, where there are several.
            specialization: the payload of a fat file.
            role: which of its outputs; its program or file where left out.

        Returns:
            An ExportedProgram for `export`, `quantize`, `edge` and `partition`, bytes for files, and so on: see
            `pteforge.api.artifacts.load_artifact`. Loaded anew each time, so it may be changed.

        Raises:
            InputError: there is no such stage, or more of the others has to be said.
        """
        return self._load(output_of(self._result(stage, method, specialization), role))

    def exported_program(self, method: str = "forward") -> ExportedProgram:
        """The ATen program of a method."""
        self._check_method(method)
        return self.artifact(StageName.EXPORT.value, method=method)

    def edge_manager(self, specialization: str = "") -> EdgeProgramManager:
        """All methods in the edge dialect, delegates linked in: what is emitted."""
        from ..tasks.stages.linking import linked_manager  # noqa: PLC0415 - takes seconds

        result = self._result(StageName.COMPILE.value, "", specialization)
        params, inputs = result.step.params, self._inputs(result)
        assert isinstance(params, CompileParams)  # noqa: S101 - of a compile step
        return linked_manager(inputs, params, self._store.local)

    def executorch_manager(self, specialization: str = "") -> ExecutorchProgramManager:
        """Exir's own result of emitting a payload, made again: it cannot be stored. Its buffer is the payload."""
        from ..tasks.stages.backend_config import backend_config  # noqa: PLC0415 - takes seconds
        from ..tasks.stages.exir import to_executorch  # noqa: PLC0415 - takes seconds

        params = self._result(StageName.COMPILE.value, "", specialization).step.params
        assert isinstance(params, CompileParams)  # noqa: S101 - of a compile step
        manager = self.edge_manager(specialization)
        return to_executorch(manager, backend_config(params, manager.methods))

    def delegation(self, specialization: str = "") -> tuple[Delegation, ...]:
        """What of each method went to a backend; printed, each is a table."""
        parts = [Part.named(name, self.methods[0]) for name in self._run.plan.recipe_parts[self.recipe]]
        partitioned = {
            part.method
            for part in parts
            if part.stage == StageName.PARTITION.value and part.specialization in ("", specialization)
        }
        stages = {method: StageName.PARTITION if method in partitioned else StageName.EDGE for method in self.methods}
        return tuple(
            delegation_of(method, self.artifact(stage.value, method=method, specialization=specialization))
            for method, stage in stages.items()
        )

    def etrecord(self, path: str | Path, specialization: str = "") -> Path:
        """Writes the ETRecord of a payload, which `executorch.devtools.Inspector` takes.

        Raises:
            InputError: the model was not lowered in debug mode.
            StoreUnusable: it cannot be written.
        """
        path = Path(path)
        content: bytes = self.artifact(StageName.COMPILE.value, specialization=specialization, role="etrecord")
        with writing(path):
            path.write_bytes(content)
        return path

    @property
    def figures(self) -> Figures:
        """How far the file's outputs are from eager's."""
        return Figures.from_json(self.artifact(StageName.VERIFY.value, role="figures"))

    @property
    def provenance(self) -> dict[str, Any]:
        """How the file was made: what the command line writes beside it as JSON."""
        provenance: dict[str, Any] = self.artifact(StageName.REPORT.value, role="provenance")
        return provenance

    @property
    def left_out(self) -> dict[str, str]:
        """Specializations that the file does without: why, by name."""
        names = self.provenance["left_out"]
        return why_left_out(self._run.plan, self._run.progress, self._planned, names)

    def why(self) -> str:
        """A line for each stage: whether it ran, and if so which fields of its key had changed since it last did."""
        return told(self.stages)

    def _first_example(self, method: str) -> list[Any]:
        """Flat, keyword arguments among them; nothing for constant methods."""
        if method not in self.methods:
            return []
        flat: list[Any] = self.artifact(StageName.EXPORT.value, method=method, role="examples")["inputs"][0]
        return flat

    def _check_method(self, method: str) -> None:
        if method not in self.methods:
            raise InputError(f"the model has no method {method!r}; it has {', '.join(map(repr, self.methods))}")

    def _result(self, stage: str, method: str, specialization: str) -> StepResult:
        if method:
            self._check_method(method)
        parts = self._run.plan.recipe_parts[self.recipe]
        step = find_part(parts, self.methods[0], Part(stage, method, specialization))
        progress = self._run.progress
        if step not in progress.results:
            raise InputError(f"{step} was not made: {progress.failures.get(step, 'what it needs failed')}")
        return progress.results[step]

    def _inputs(self, result: StepResult) -> Mapping[str, ArtifactRef]:
        results = {role: self._run.progress.results[output.step] for role, output in result.step.inputs.items()}
        refs = input_refs(result.step, results)
        for ref in refs.values():
            self._store.fetch(ref)
        return refs

    def _file(self, role: str) -> ArtifactRef | None:
        """What the report has read: the verified file, or its data; InputError where the run was cut short."""
        reader = StageName.EVALUATE if self.rejected else StageName.REPORT  # of a rejected file there is no report
        return self._inputs(self._result(reader.value, "", "")).get(role)

    def _load(self, ref: ArtifactRef) -> Any:
        self._store.fetch(ref)
        return load_artifact(ref, self._store.local)
