"""Targets with backends that exist only here: one records its calls, two differ in what delegates share."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from executorch.exir._serialize._named_data_store import NamedDataStore
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from executorch.exir.backend.utils import tag_constant_data
from executorch.exir.dialects._ops import ops
from executorch.exir.graph_module import get_control_flow_submodules
from pteforge.artifacts.digest import digest_bytes
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
        raise NotImplementedError

    @classmethod
    def preprocess_multimethod(cls, edge_programs: Any, compile_specs: Any) -> Any:
        """Drops the last partition of each method."""
        del compile_specs
        return {method: [PreprocessResult(b"")] * (len(programs) - 1) for method, programs in edge_programs.items()}


class OperatorPartitioner(Partitioner):
    """One partition for each call of an operator, branches included, with its weight."""

    def __init__(self, backend: str, operator: Any, mark: bytes) -> None:
        super().__init__()
        self._backend = backend
        self._operator = operator
        self._mark = mark

    def partition(self, exported_program: Any) -> PartitionResult:
        tags = {}
        for node in _nodes(exported_program.graph_module):
            if node.op == "call_function" and node.target is self._operator:
                tag = f"{self._backend}{self._mark.decode()}{len(tags)}"
                node.meta["delegation_tag"] = tag
                tags[tag] = DelegationSpec(
                    self._backend, [CompileSpec("number", str(len(tags)).encode()), CompileSpec("mark", self._mark)]
                )
        tag_constant_data(exported_program)
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
        made = [OperatorPartitioner(self.options.backend, ops.edge.aten.sin.default, b"sin")]
        if self.options.cosines:
            made.append(OperatorPartitioner(self.options.backend, ops.edge.aten.cos.default, b"cos"))
        return made


def _weights(program: Any) -> dict[str, bytes]:
    """Bytes of each weight of a partition, by the digest that they are shared under."""
    tensors = [program.state_dict[name] for name in program.graph_signature.inputs_to_parameters.values()]
    contents = [tensor.detach().numpy().tobytes() for tensor in tensors]
    return {digest_bytes(content): content for content in contents}


def _delegate(program: Any, shared: Iterable[str]) -> PreprocessResult:
    """A delegate that has its own weights in its bytes, and those it shares in the named data store.

    Its bytes begin with the shape it is for: ExecuTorch stores delegates of equal bytes once.
    """
    weights = _weights(program)
    (output,) = program.graph.output_node().args[0]
    store, named = NamedDataStore(), sorted(set(shared) & set(weights))
    for key in named:
        store.add_named_data(key, weights[key], alignment=16)
    own = b"".join(content for key, content in weights.items() if key not in named)
    head = json.dumps({"shape": list(output.meta["val"].shape), "shared": named})
    return PreprocessResult(head.encode() + own, {}, store.get_named_data_store_output())


class FactoringBackend(BackendDetails):
    """What several partitions of any methods need goes to the named data store, the rest stays with its delegate."""

    @staticmethod
    def preprocess(edge_program: Any, compile_specs: list[CompileSpec]) -> PreprocessResult:
        """Not called: a single partition says nothing of what is shared."""
        raise NotImplementedError

    @staticmethod
    def preprocess_multimethod(edge_programs: Any, compile_specs: Any) -> Any:
        """All partitions of all methods. A static method, as Qualcomm's; others have class methods."""
        del compile_specs
        uses = Counter(key for programs in edge_programs.values() for program in programs for key in _weights(program))
        shared = [key for key, count in uses.items() if count > 1]
        return {
            method: [_delegate(program, shared) for program in programs] for method, programs in edge_programs.items()
        }


class AloneBackend(BackendDetails):
    """The same without `preprocess_multimethod`: every delegate has all that it needs."""

    @staticmethod
    def preprocess(edge_program: Any, compile_specs: list[CompileSpec]) -> PreprocessResult:
        del compile_specs
        return _delegate(edge_program, ())


class SharingOptions(TargetOptions):
    """Which backend."""

    backend: str = "FactoringBackend"


@dataclass(frozen=True)
class Sharing(Target):
    """Multiplications to one of the backends."""

    options: SharingOptions

    name: ClassVar[str] = "sharing"
    Options: ClassVar[type[TargetOptions]] = SharingOptions
    backends: ClassVar[tuple[str, ...]] = ("FactoringBackend", "AloneBackend")

    def partitioners(self) -> Sequence[Partitioner]:
        return [OperatorPartitioner(self.options.backend, ops.edge.aten.mul.Tensor, b"mul")]
