"""Cadence's Xtensa DSPs, by ExecuTorch's operators for their kernel libraries."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from .base import Target, TargetOptions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from executorch.exir.backend.partitioner import Partitioner
    from executorch.exir.pass_manager import PassType
    from torch.export import ExportedProgram
    from torch.fx import GraphModule
    from torchao.quantization.pt2e.quantizer import Quantizer


class CadenceOptions(TargetOptions):
    """Options of the target.

    Attributes:
        mode: the passes to run: those that are needed, all that make programs faster, or these and one that chooses
            operators by dtype, so that kernels for others need not be linked.
    """

    mode: Literal["minimal", "default", "size"] = "default"


class CadenceQuantizerOptions(TargetOptions):
    """It has none: convolutions, products of matrices, pooling and ReLU in int8, with one scale for a tensor."""


class Cadence(Target):
    """Inference on an Xtensa DSP, quantized or in floating point; what its libraries lack runs on other kernels."""

    options: CadenceOptions

    name: ClassVar[str] = "cadence"
    Options: ClassVar[type[TargetOptions]] = CadenceOptions
    QuantizerOptions: ClassVar[type[TargetOptions] | None] = CadenceQuantizerOptions
    operators: ClassVar[Mapping[str, tuple[str, ...]]] = MappingProxyType(
        {
            "cadence": (
                "executorch.backends.cadence.aot.ops_registrations",
                "executorch.backends.cadence.aot.ref_implementations",
            )
        }
    )
    keeps_dialect: ClassVar[bool] = False
    skips_dim_order: ClassVar[bool] = True

    @classmethod
    def quantizer(cls, options: Any) -> Quantizer:  # noqa: ARG003 - the base's
        from executorch.backends.cadence.aot.quantizer.quantizer import CadenceDefaultQuantizer

        from ..upstream.cadence import name_sources

        class Quantizer(CadenceDefaultQuantizer):  # type: ignore[misc]  # executorch is untyped here
            def transform_for_annotation(self, model: GraphModule) -> GraphModule:
                name_sources(model)
                transformed: GraphModule = super().transform_for_annotation(model)
                return transformed

        return Quantizer()

    def decomposition_options(self) -> dict[str, Any]:
        return {}

    def partitioners(self) -> Sequence[Partitioner]:
        import torch

        from ..upstream.exir import Keeping

        return [Keeping([torch.ops.aten.rms_norm.default])]

    def pass_options(self) -> dict[str, Any]:
        return self.options.model_dump(mode="json")

    def before_edge(self, program: ExportedProgram) -> ExportedProgram:
        """Fuses what the quantizer has annotated with its quantization, in ATen operators."""
        from ..upstream.cadence import override_of_typing

        override_of_typing()
        from executorch.backends.cadence.aot.compiler import apply_pre_edge_transform_passes

        prepared: ExportedProgram = apply_pre_edge_transform_passes(program, self.quantizer(CadenceQuantizerOptions()))
        return prepared

    def edge_passes(self) -> Sequence[PassType]:
        from executorch.backends.cadence.aot.passes import get_passes

        return [kind() for kind in get_passes(self.options.mode)]
