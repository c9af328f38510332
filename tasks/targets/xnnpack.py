"""XNNPACK: optimized CPU kernels for Arm, x86-64 and WebAssembly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import field_validator

from .base import Target, TargetOptions

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner
    from torch.export import ExportedProgram
    from torchao.quantization.pt2e.quantizer import Quantizer


Precision = Literal["fp32", "static_quant", "dynamic_quant"]


class XnnpackOptions(TargetOptions):
    """Options of the XNNPACK partitioner.

    Attributes:
        precisions: operators that it may claim: floating point, statically or dynamically quantized. None: all.
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
        dynamic: scales of activations are computed at run time; quantizes only linear layers, and convolutions that no
            ReLU follows.
    """

    per_channel: bool = True
    dynamic: bool = False


class Xnnpack(Target):
    """CPU inference by XNNPACK; unsupported operators run on the portable kernels."""

    options: XnnpackOptions

    name: ClassVar[str] = "xnnpack"
    Options: ClassVar[type[TargetOptions]] = XnnpackOptions
    QuantizerOptions: ClassVar[type[TargetOptions] | None] = XnnpackQuantizerOptions
    knows_linear_only: ClassVar[bool] = True
    backends: ClassVar[tuple[str, ...]] = ("XnnpackBackend",)

    def decomposition_options(self) -> dict[str, Any]:
        """All but `per_operator`, which decides how matches are grouped, not which operators match."""
        return self.options.model_dump(mode="json", exclude={"per_operator"})

    @classmethod
    def quantizer(cls, options: TargetOptions) -> Quantizer:
        from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import get_symmetric_quantization_config

        from ..upstream.xnnpack_quantizer import ExtendedXnnpackQuantizer

        given = XnnpackQuantizerOptions.model_validate(options.model_dump())
        config = get_symmetric_quantization_config(is_per_channel=given.per_channel, is_dynamic=given.dynamic)
        return ExtendedXnnpackQuantizer().set_global(config)

    def refuses(self, program: ExportedProgram) -> str | None:
        return _refused_groups(program)

    def partitioners(self) -> Sequence[Partitioner]:
        from executorch.backends.xnnpack.partition.config.xnnpack_config import ConfigPrecisionType

        from ..upstream.xnnpack_gelu import expand_tanh_gelu
        from ..upstream.xnnpack_layouts import mend_dynamic_layouts
        from ..upstream.xnnpack_partitioner import ExtendedXnnpackPartitioner
        from ..upstream.xnnpack_patterns import prune_xnnpack_patterns
        from ..upstream.xnnpack_sharing import separate_products
        from ..upstream.xnnpack_static_layouts import mend_static_layouts

        prune_xnnpack_patterns()
        mend_dynamic_layouts()
        separate_products()
        mend_static_layouts()
        expand_tanh_gelu()
        options = self.options
        precisions = options.precisions and [ConfigPrecisionType[name.upper()] for name in options.precisions]
        return [
            ExtendedXnnpackPartitioner(
                config_precisions=precisions,
                per_op_mode=options.per_operator,
                force_non_static_weights_for_f32_linear=options.force_non_static_weights_for_f32_linear,
            )
        ]


_GROUP = 32
"""Sizes of groups must be multiples of it (executorch/backends/xnnpack/operators/node_visitor.py, 1.5.1)."""


def _refused_groups(program: ExportedProgram) -> str | None:
    """The layers quantized by torchao with groups of weights that XNNPACK rejects; None if there are none.

    With one scale per output channel, each row is a group: its size is that of the layer's input.
    """
    names = {**program.graph_signature.inputs_to_parameters, **program.graph_signature.inputs_to_buffers}
    refused = []
    for node in program.graph.nodes:
        if node.op != "call_function" or "linear" not in str(node.target):
            continue
        activation, weight = node.args[:2]
        if _is_dequantized(activation) and _is_dequantized(weight) and weight.args[1][-1] % _GROUP:
            stored = weight.args[0].name
            layer = names.get(stored, stored).partition("parametrizations.")[0].rstrip(".")
            refused.append(f"{layer!r} ({weight.args[1][-1]})")
    if not refused:
        return None
    return (
        f"XNNPACK takes groups of weights by multiples of {_GROUP}, and these layers have other ones: "
        f"{', '.join(refused)}; a scale per output channel makes one group of each row; "
        "leave the layers out with `exclude`"
    )


def _is_dequantized(node: object) -> bool:
    return "torchao.dequantize_affine" in str(getattr(node, "target", ""))
