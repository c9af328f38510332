"""Targets whose backend no device has, for what specializations can do wrong."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from executorch.exir._serialize._named_data_store import NamedDataStore
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from executorch.exir.dialects._ops import ops
from executorch.exir.pass_base import ExportPass
from networks import Function
from pteforge.tasks.targets.base import Target, TargetOptions
from torch.export import ExportedProgram


class AcmeOptions(TargetOptions):
    """Options of the target.

    Attributes:
        fill: what its constants are filled with; all of them are called ``weight``.
        clash: each partition's constant has other bytes.
        program: how the program that it lowers instead differs.
        refuses: its reason to refuse a program.
        edge_passes: passes of its own.
    """

    fill: int = 0
    clash: bool = False
    program: Literal["same", "outputs", "inputs", "shape", "dtype"] = "same"
    refuses: str | None = None
    edge_passes: tuple[Literal["sine", "fails"], ...] = ()


class AcmeNativeTest(BackendDetails):
    """Stores a constant under the key ``weight``."""

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        del edge_program
        store = NamedDataStore()
        store.add_named_data("weight", bytes(compile_specs[0].value) * 512)
        return PreprocessResult(b"acme", data_store_output=store.get_named_data_store_output())


_OTHERS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "outputs": (lambda x: (x + 1, x + 2), (torch.ones(2, 4),)),
    "inputs": (lambda x, y: x + y, (torch.ones(2, 4), torch.ones(2, 4))),
    "shape": (lambda x: torch.cat([x, x + 1]), (torch.ones(2, 4),)),
    "dtype": (lambda x: x.to(torch.float64) + 1, (torch.ones(2, 4),)),
}


class CosineToSine(ExportPass):
    """Computes something else of the same shape."""

    def call_operator(self, op, args, kwargs, meta):
        op = ops.edge.aten.sin.default if op == ops.edge.aten.cos.default else op
        return super().call_operator(op, args, kwargs, meta)


class FailingPass(ExportPass):
    """Fails with a reason."""

    def call(self, graph_module):
        del graph_module
        raise ValueError("too cold for passes")


class AcmePartitioner(Partitioner):
    """Claims each sum by itself."""

    def __init__(self, options: AcmeOptions) -> None:
        super().__init__()
        self._options = options

    def transform_for_pre_decomposition(self, exported_program: ExportedProgram) -> ExportedProgram:
        if self._options.program == "same":
            return exported_program
        compute, inputs = _OTHERS[self._options.program]
        return torch.export.export(Function(compute), inputs)

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        specs = {}
        for node in exported_program.graph.nodes:
            if node.target == ops.edge.aten.add.Tensor:
                fill = self._options.fill + (len(specs) if self._options.clash else 0)
                node.meta["delegation_tag"] = tag = f"acme{len(specs)}"
                specs[tag] = DelegationSpec(AcmeNativeTest.__name__, [CompileSpec("fill", bytes([fill]))])
        return PartitionResult(exported_program, specs)


@dataclass(frozen=True)
class Acme(Target):
    """Lowers programs that run nowhere."""

    options: AcmeOptions

    name: ClassVar[str] = "acme"
    Options: ClassVar[type[TargetOptions]] = AcmeOptions
    backends: ClassVar[tuple[str, ...]] = ("AcmeNativeTest",)

    def partitioners(self) -> Sequence[Partitioner]:
        return [AcmePartitioner(self.options)]

    def edge_passes(self) -> Sequence[ExportPass]:
        passes = {"sine": CosineToSine, "fails": FailingPass}
        return [passes[name]() for name in self.options.edge_passes]

    def refuses(self, program: ExportedProgram) -> str | None:
        del program
        return self.options.refuses


@dataclass(frozen=True)
class Unnamed(Acme):
    """Does not name its backend."""

    name: ClassVar[str] = "unnamed"
    backends: ClassVar[tuple[str, ...]] = ()


@dataclass(frozen=True)
class Absent(Acme):
    """Is never available."""

    name: ClassVar[str] = "absent"

    @classmethod
    def available(cls) -> str | None:
        return "pip install acme-compiler"
