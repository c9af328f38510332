"""A backend that notes how it was called and shares data between delegates, and targets that use it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from executorch.exir._serialize._named_data_store import NamedDataStore
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from executorch.exir.dialects._ops import ops
from executorch.exir.graph_module import get_control_flow_submodules
from pteforge.tasks.targets import Target, TargetOptions

SHARED = bytes(range(256)) * 16

CALLS: list[dict[str, list[tuple[list[str], dict[str, bytes]]]]] = []
"""For each call: method to partitions, a partition being the names of its operators and its compile specs."""


def _operators(program: Any) -> list[str]:
    return [node.target.__name__ for node in program.graph.nodes if node.op == "call_function"]


class RecordingBackend(BackendDetails):
    """Each delegate's payload is its operators' names; all of them need the same named data."""

    @staticmethod
    def preprocess(edge_program: Any, compile_specs: list[CompileSpec]) -> PreprocessResult:
        """One partition."""
        store = NamedDataStore()
        store.add_named_data("shared", SHARED, alignment=64)
        handles = {
            number: (node.meta["debug_handle"],)
            for number, node in enumerate(edge_program.graph.nodes)
            if "debug_handle" in node.meta
        }
        content = ",".join(_operators(edge_program)) + str([(spec.key, spec.value) for spec in compile_specs])
        return PreprocessResult(content.encode(), handles, store.get_named_data_store_output(), {"delegate": content})

    @classmethod
    def preprocess_multimethod(cls, edge_programs: Any, compile_specs: Any) -> Any:
        """Notes the call."""
        CALLS.append(
            {
                method: [
                    (_operators(program), {spec.key: spec.value for spec in specs})
                    for program, specs in zip(programs, compile_specs[method], strict=True)
                ]
                for method, programs in edge_programs.items()
            }
        )
        return super().preprocess_multimethod(edge_programs, compile_specs)


class ForgetfulBackend(BackendDetails):
    """Gives one delegate too few."""

    @staticmethod
    def preprocess(edge_program: Any, compile_specs: list[CompileSpec]) -> PreprocessResult:
        """Not called."""
        raise NotImplementedError

    @classmethod
    def preprocess_multimethod(cls, edge_programs: Any, compile_specs: Any) -> Any:
        """Drops the last partition of each method."""
        del compile_specs
        return {method: [PreprocessResult(b"")] * (len(programs) - 1) for method, programs in edge_programs.items()}


class SinPartitioner(Partitioner):
    """One partition for each call of an operator, branches included."""

    def __init__(self, backend: str, operator: Any = ops.edge.aten.sin.default, mark: bytes = b"") -> None:
        """Takes the nodes of one operator."""
        super().__init__()
        self._backend = backend
        self._operator = operator
        self._mark = mark

    def partition(self, exported_program: Any) -> PartitionResult:
        """Tags nodes one by one."""
        tags = {}
        for node in _nodes(exported_program.graph_module):
            if node.op == "call_function" and node.target is self._operator:
                tag = f"{self._backend}{self._mark.decode()}{len(tags)}"
                node.meta["delegation_tag"] = tag
                tags[tag] = DelegationSpec(
                    self._backend, [CompileSpec("number", str(len(tags)).encode()), CompileSpec("mark", self._mark)]
                )
        return PartitionResult(tagged_exported_program=exported_program, partition_tags=tags)


def _nodes(graph_module: Any) -> Iterator[Any]:
    yield from list(graph_module.graph.nodes)
    for _, branch, _ in get_control_flow_submodules(graph_module):
        yield from _nodes(branch)


class RecordingOptions(TargetOptions):
    """Which backend, and whether cosines go too."""

    backend: str = "RecordingBackend"
    cosines: bool = False


@dataclass(frozen=True)
class Recording(Target):
    """Sines, and where asked cosines, to a backend."""

    options: RecordingOptions

    name: ClassVar[str] = "recording"
    Options: ClassVar[type[TargetOptions]] = RecordingOptions
    backends: ClassVar[tuple[str, ...]] = ("RecordingBackend",)

    def partitioners(self) -> Sequence[Partitioner]:
        """One partitioner, or two."""
        made = [SinPartitioner(self.options.backend, mark=b"sin")]
        if self.options.cosines:
            made.append(SinPartitioner(self.options.backend, ops.edge.aten.cos.default, b"cos"))
        return made
