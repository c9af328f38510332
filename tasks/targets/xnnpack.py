"""XNNPACK: optimized CPU kernels for Arm, x86-64 and WebAssembly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

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
        if value == ():
            raise ValueError("name at least one precision, or leave the field out for all")
        return value


class Scales(TargetOptions):
    """Scales of one part of the model.

    Attributes:
        per_channel: weights have a scale for each output channel instead of one for all.
        dynamic: scales of activations are computed at run time; quantizes only linear and recurrent layers, and
            convolutions in one and two dimensions that have several input channels in a group.
        ranges: which range of an activation gets its fixed scale: histogram, the one with the least squared error;
            entropy, the one whose rounded values are distributed most alike; min_max; moving_average, of the minima and
            maxima of samples; or percentile, all but the outermost values.
        percentile: percent of the values that are in the range, for `ranges: percentile`. None: 99.99.
        symmetric: fixed scales of activations have no zero point.
    """

    per_channel: bool = True
    dynamic: bool = False
    ranges: Literal["histogram", "entropy", "min_max", "moving_average", "percentile"] = "histogram"
    percentile: float | None = Field(None, gt=50, le=100)
    symmetric: bool = False

    @model_validator(mode="after")
    def _ranges_are_observed(self) -> Self:
        if self.dynamic and (self.ranges != "histogram" or self.symmetric):
            field = "symmetric" if self.symmetric else "ranges"
            raise ValueError(f"`{field}` is for fixed scales, and `dynamic` computes them at run time; leave one out")
        if self.percentile is not None and self.ranges != "percentile":
            raise ValueError("`percentile` is for `ranges: percentile`")
        return self


class XnnpackRule(Scales):
    """How the operators of some modules, or those of one kind, are quantized, in place of the quantizer's own options.

    Attributes:
        module: name of a module, such as encoder.head.
        module_type: full name of a module's class, such as torch.nn.modules.linear.Linear.
        operator: an operator, such as aten.linear.default, outside of the modules that rules name.
        quantize: false: these stay in floating point.
    """

    module: str | None = None
    module_type: str | None = None
    operator: str | None = None
    quantize: bool = True

    @model_validator(mode="after")
    def _one_choice(self) -> Self:
        if (self.module, self.module_type, self.operator).count(None) != 2:
            raise ValueError("name one of `module`, `module_type` and `operator`")
        if self.module is not None and not self.quantize:
            raise ValueError("to leave a module in floating point, name it in the recipe's `quantize.exclude`")
        return self


class XnnpackQuantizerOptions(Scales):
    """Options of XNNPACK's quantizer: symmetric int8.

    Attributes:
        per_channel: weights have a scale for each output channel instead of one for all.
        dynamic: scales of activations are computed at run time; quantizes only linear and recurrent layers, and
            convolutions in one and two dimensions that have several input channels in a group.
        ranges: which range of an activation gets its fixed scale: histogram, the one with the least squared error;
            entropy, the one whose rounded values are distributed most alike; min_max; moving_average, of the minima and
            maxima of samples; or percentile, all but the outermost values.
        percentile: percent of the values that are in the range, for `ranges: percentile`. None: 99.99.
        symmetric: fixed scales of activations have no zero point.
        rules: other options for some modules or operators. Those of modules by name come first, then those by type.
        only_rules: leave everything that no rule names in floating point.
    """

    rules: tuple[XnnpackRule, ...] = ()
    only_rules: bool = False


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
    def quantizer(cls, options: Any) -> Quantizer:
        from ..upstream.xnnpack import ExtendedXnnpackQuantizer

        quantizer = ExtendedXnnpackQuantizer()
        if not options.only_rules:
            quantizer.set_global(_config(options))
        for rule in options.rules:
            _add_rule(quantizer, rule)
        return quantizer

    def refuses(self, program: ExportedProgram) -> str | None:
        """Names layers that torchao quantized with groups of weights that XNNPACK rejects.

        With one scale per output channel, each row is a group: its size is that of the layer's input. Rows of 4-bit
        weights are taken as groups are, and 8-bit ones are taken with whole rows only.
        """
        names = {**program.graph_signature.inputs_to_parameters, **program.graph_signature.inputs_to_buffers}
        refused = []
        for node in program.graph.nodes:
            if node.op != "call_function" or "linear" not in str(node.target):
                continue
            activation, weight = node.args[:2]
            if not (_is_dequantized(activation) and _is_dequantized(weight)):
                continue
            group, lowest = weight.args[1][-1], weight.args[5]
            if group % _GROUP if lowest == _LOWEST_OF_4_BITS else group != weight.args[0].meta["val"].shape[-1]:
                stored = weight.args[0].name
                layer = names.get(stored, stored).partition("parametrizations.")[0].rstrip(".")
                refused.append(f"{layer!r} ({group})")
        if not refused:
            return None
        return (
            f"XNNPACK takes groups of int4 weights by multiples of {_GROUP}, and int8 weights with a scale per output "
            f"channel, and these layers have other groups: {', '.join(refused)}; a scale per output channel makes one "
            "group of each row; leave the layers out with `exclude`, or give them int8 weights with `otherwise`"
        )

    def partitioners(self) -> Sequence[Partitioner]:
        from executorch.backends.xnnpack.partition.config.xnnpack_config import ConfigPrecisionType

        from ..upstream.xnnpack import ExtendedXnnpackPartitioner
        from ..upstream.xnnpack_passes import mend_xnnpack_passes

        mend_xnnpack_passes()
        options = self.options
        precisions = options.precisions and [ConfigPrecisionType[name.upper()] for name in options.precisions]
        return [
            ExtendedXnnpackPartitioner(
                config_precisions=precisions,
                per_op_mode=options.per_operator,
                force_non_static_weights_for_f32_linear=options.force_non_static_weights_for_f32_linear,
            )
        ]


def _config(scales: Scales) -> Any:
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import get_symmetric_quantization_config

    from ..upstream.xnnpack import with_ranges

    config = get_symmetric_quantization_config(is_per_channel=scales.per_channel, is_dynamic=scales.dynamic)
    if scales.dynamic:
        return config
    return with_ranges(config, scales.ranges, scales.percentile or 99.99, symmetric=scales.symmetric)


def _add_rule(quantizer: Any, rule: XnnpackRule) -> None:
    from ..programs.graphs import find_operators

    config = _config(rule) if rule.quantize else None
    if rule.module is not None:
        quantizer.set_module_name(rule.module, config)
    elif rule.module_type is not None:
        module, _, name = rule.module_type.rpartition(".")
        quantizer.set_module_type(type(name, (), {"__module__": module}), config)  # it reads no more than the names
    else:
        (operator,) = find_operators([str(rule.operator)])
        quantizer.set_operator_type(operator, config)


_GROUP = 32
"""Sizes of groups must be multiples of it (executorch/backends/xnnpack/operators/node_visitor.py, 1.5.1)."""

_LOWEST_OF_4_BITS = -8


def _is_dequantized(node: object) -> bool:
    return "torchao.dequantize_affine" in str(getattr(node, "target", ""))
