"""Two backends for multiplications by weights: one looks at all methods at once, the other at each partition alone."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from executorch.exir._serialize._named_data_store import NamedDataStore
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from executorch.exir.backend.utils import tag_constant_data
from executorch.exir.dialects._ops import ops
from pteforge.artifacts.digest import digest_bytes
from pteforge.tasks.targets import Target, TargetOptions


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
        """One partition."""
        del compile_specs
        return _delegate(edge_program, ())


class MulPartitioner(Partitioner):
    """One partition for each multiplication, with its weight."""

    def __init__(self, backend: str) -> None:
        """Takes the backend's name."""
        super().__init__()
        self._spec = DelegationSpec(backend, [])

    def partition(self, exported_program: Any) -> PartitionResult:
        """Tags nodes one by one, then the weights that they use."""
        nodes = [each for each in exported_program.graph.nodes if each.target is ops.edge.aten.mul.Tensor]
        tags = {f"mul{number}": self._spec for number in range(len(nodes))}
        for node, tag in zip(nodes, tags, strict=True):
            node.meta["delegation_tag"] = tag
        tag_constant_data(exported_program)
        return PartitionResult(tagged_exported_program=exported_program, partition_tags=tags)


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
        """One."""
        return [MulPartitioner(self.options.backend)]
