"""XNNPACK: optimized CPU kernels for Arm, x86-64 and WebAssembly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import field_validator

from .base import Target, TargetOptions
from .xnnpack_groups import refused_groups

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner
    from torch.export import ExportedProgram
    from torchao.quantization.pt2e.quantizer import Quantizer

Precision = Literal["fp32", "static_quant", "dynamic_quant"]


class XnnpackOptions(TargetOptions):
    """Options of the XNNPACK partitioner.

    Attributes:
        precisions: what it may claim: floating point, statically or dynamically quantized operators. None: all.
        per_operator: one delegate per operator pattern instead of the largest subgraphs (for dynamic quantization).
        force_non_static_weights_for_f32_linear: take the weights of fp32 linear layers as inputs of the delegate.
    """

    precisions: tuple[Precision, ...] | None = None
    per_operator: bool = False
    force_non_static_weights_for_f32_linear: bool = False

    @field_validator("precisions")
    @classmethod
    def _some_precision(cls, value: tuple[Precision, ...] | None) -> tuple[Precision, ...] | None:
        if value is not None and not value:
            raise ValueError("name at least one precision, or leave the field out for all")
        return value


class XnnpackQuantizerOptions(TargetOptions):
    """Options of XNNPACK's quantizer: symmetric int8.

    Attributes:
        per_channel: weights have a scale for each output channel instead of one for all.
        dynamic: scales of activations are computed where the model runs; only linear layers are quantized, and
            convolutions that no ReLU follows.
    """

    per_channel: bool = True
    dynamic: bool = False


@dataclass(frozen=True)
class Xnnpack(Target):
    """CPU inference by XNNPACK; what it does not support runs by the portable kernels."""

    options: XnnpackOptions

    name: ClassVar[str] = "xnnpack"
    Options: ClassVar[type[TargetOptions]] = XnnpackOptions
    QuantizerOptions: ClassVar[type[TargetOptions] | None] = XnnpackQuantizerOptions
    backends: ClassVar[tuple[str, ...]] = ("XnnpackBackend",)

    def preserving(self) -> dict[str, Any]:
        """All but `per_operator`: that decides how matches are grouped, not what matches."""
        return self.options.model_dump(mode="json", exclude={"per_operator"})

    @classmethod
    def quantizer(cls, options: TargetOptions) -> Quantizer:
        """Symmetric int8 for every operator that XNNPACK has in int8."""
        from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (  # noqa: PLC0415 - workers only
            XNNPACKQuantizer,
            get_symmetric_quantization_config,
        )

        given = XnnpackQuantizerOptions.model_validate(options.model_dump())
        quantizer = XNNPACKQuantizer()
        quantizer.set_global(
            get_symmetric_quantization_config(is_per_channel=given.per_channel, is_dynamic=given.dynamic)
        )
        return quantizer

    def refuses(self, program: ExportedProgram) -> str | None:
        """Groups of weights of a size that XNNPACK does not take."""
        return refused_groups(program)

    def partitioners(self) -> Sequence[Partitioner]:
        """One XNNPACK partitioner, which looks into control flow."""
        from executorch.backends.xnnpack.partition.config.xnnpack_config import (  # noqa: PLC0415 - workers only
            ConfigPrecisionType,
        )

        from .xnnpack_branches import XnnpackBranchesPartitioner  # noqa: PLC0415 - workers only
        from .xnnpack_patterns import trace_patterns_where_needed  # noqa: PLC0415 - workers only

        trace_patterns_where_needed()
        options = self.options
        precisions = options.precisions and [ConfigPrecisionType[name.upper()] for name in options.precisions]
        return [
            XnnpackBranchesPartitioner(
                config_precisions=precisions,
                per_op_mode=options.per_operator,
                force_non_static_weights_for_f32_linear=options.force_non_static_weights_for_f32_linear,
            )
        ]
