"""The part that workers load: a partitioner for dense layers, and a compiler with random output."""

from __future__ import annotations

import secrets

from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from executorch.exir.backend.utils import tag_constant_data
from executorch.exir.dialects._ops import ops
from torch.export import ExportedProgram
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase


class AcmeBackend(BackendDetails):
    """Compiles to a few random bytes and the clock rate."""

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        del edge_program
        return PreprocessResult(b"ACME" + compile_specs[0].value + secrets.token_bytes(16))


class _Support(OperatorSupportBase):
    def is_node_supported(self, submodules, node) -> bool:
        del submodules
        return node.target in {ops.edge.aten.addmm.default, ops.edge.aten.relu.default}


class AcmePartitioner(Partitioner):
    """Claims the operators of a dense layer."""

    def __init__(self, clock_rate: int) -> None:
        super().__init__()
        self.delegation_spec = DelegationSpec(
            AcmeBackend.__name__, [CompileSpec("clock_rate", str(clock_rate).encode())]
        )

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        partitions = CapabilityBasedPartitioner(
            exported_program.graph_module, _Support(), allows_single_node_partition=True
        ).propose_partitions()
        for claimed in partitions:
            for node in claimed.nodes:
                node.meta["delegation_tag"] = f"acme{claimed.id}"
        tag_constant_data(exported_program)
        return PartitionResult(exported_program, {f"acme{claimed.id}": self.delegation_spec for claimed in partitions})
