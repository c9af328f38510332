"""Core ML: CPU, GPU and Neural Engine of Apple's devices."""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import field_validator

from .base import Target, TargetOptions, this_system

if TYPE_CHECKING:
    from executorch.exir.backend.compile_spec_schema import CompileSpec
    from executorch.exir.backend.partitioner import Partitioner
    from torchao.quantization.pt2e.quantizer import Quantizer

ComputeUnit = Literal["all", "cpu_and_gpu", "cpu_only", "cpu_and_ne"]
DeploymentTarget = Literal[
    "iOS15", "iOS16", "iOS17", "iOS18", "iOS26", "macOS12", "macOS13", "macOS14", "macOS15", "macOS26"
]


class CoreMlOptions(TargetOptions):
    """Options of the Core ML partitioner and converter.

    Attributes:
        minimum_deployment_target: oldest system for the model. None: the oldest that has all of its operators.
        compute_unit: the processors that it may use; ``ne`` is the Neural Engine.
        compute_precision: of floating point operators within the delegate; inputs and outputs stay as they are.
        model_type: the device compiles a ``model`` when it first loads the file; a ``compiled_model`` is compiled ahead
            of time, which only a Mac can do.
        lower_full_graph: fail on unsupported operators instead of leaving them to the CPU.
        take_over_mutable_buffers: keep a model's state in Core ML, where `minimum_deployment_target` is iOS18, macOS15
            or later. Otherwise delegates take the state as an input and return what it becomes.
        share_weights: methods with equally many partitions share their weights. Otherwise each has its own.
        skip_operators: operators to leave to the CPU, such as ``aten.add.Tensor``.
    """

    minimum_deployment_target: DeploymentTarget | None = None
    compute_unit: ComputeUnit = "all"
    compute_precision: Literal["float16", "float32"] = "float16"
    model_type: Literal["model", "compiled_model"] = "model"
    lower_full_graph: bool = False
    take_over_mutable_buffers: bool = True
    share_weights: bool = True
    skip_operators: tuple[str, ...] = ()

    @field_validator("model_type")
    @classmethod
    def _can_compile(cls, value: str) -> str:
        if value == "compiled_model" and sys.platform != "darwin":
            raise ValueError("only a Mac can compile models; use 'model' here, and the device compiles it")
        return value


class CoreMlQuantizerOptions(TargetOptions):
    """Options of Core ML's quantizer: int8 weights and uint8 activations, for which a device needs iOS17 or macOS14.

    Attributes:
        weight_only: activations stay floating point; nothing is calibrated.
        per_channel: weights have a scale for each output channel instead of one for all.
        scheme: ``affine`` lets the zero point of weights and activations be anywhere.
    """

    weight_only: bool = False
    per_channel: bool = True
    scheme: Literal["symmetric", "affine"] = "symmetric"


class CoreMl(Target):
    """Inference by Core ML; unsupported operators run on the portable kernels.

    Payloads can be compiled on Macs and on Linux for x86-64, with Python up to 3.13. Each has a random identifier, so
    no two are equal: the store keeps a payload and uses it again.
    """

    options: CoreMlOptions

    name: ClassVar[str] = "coreml"
    Options: ClassVar[type[TargetOptions]] = CoreMlOptions
    QuantizerOptions: ClassVar[type[TargetOptions] | None] = CoreMlQuantizerOptions
    backends: ClassVar[tuple[str, ...]] = ("CoreMLBackend",)
    distributions: ClassVar[tuple[str, ...]] = ("coremltools",)
    reproducible: ClassVar[bool] = False

    @classmethod
    def available(cls) -> str | None:
        if find_spec("coremltools"):
            return None
        linux = platform.system() == "Linux" and platform.machine() == "x86_64"
        if sys.version_info < (3, 14) and (linux or platform.system() == "Darwin"):
            return "coremltools is not installed, which ExecuTorch brings here: pip install coremltools==9.0"
        return (
            "coremltools 9.0 has wheels for Python up to 3.13, on macOS and on Linux for x86-64, and this is "
            f"{this_system()}; lower for Core ML on one of those"
        )

    def decomposition_options(self) -> dict[str, Any]:
        return self.options.model_dump(mode="json", include={"skip_operators"})

    @classmethod
    def quantizer(cls, options: Any) -> Quantizer:
        import torch
        from coremltools.optimize.torch.quantization import LinearQuantizerConfig, ModuleLinearQuantizerConfig
        from executorch.backends.apple.coreml.quantizer import CoreMLQuantizer

        from ..upstream.coreml import prune_coreml_patterns

        prune_coreml_patterns()
        config = ModuleLinearQuantizerConfig(
            quantization_scheme=options.scheme,
            activation_dtype=torch.float32 if options.weight_only else torch.quint8,
            weight_dtype=torch.qint8,
            weight_per_channel=options.per_channel,
        )
        return CoreMLQuantizer(LinearQuantizerConfig(global_config=config))

    def partitioners(self) -> Sequence[Partitioner]:
        from executorch.backends.apple.coreml.partition.coreml_partitioner import CoreMLPartitioner

        from ..upstream.coreml import decompose_circular_padding, remove_coreml_temporary_files

        decompose_circular_padding()
        remove_coreml_temporary_files()
        options = self.options
        # on the oldest system; a graph that must be lowered whole cannot go without
        keeps_state = options.lower_full_graph or options.minimum_deployment_target in _WITH_STATE
        return [
            CoreMLPartitioner(
                skip_ops_for_coreml_delegation=[name for skipped in options.skip_operators for name in _names(skipped)],
                compile_specs=_compile_specs(options),
                take_over_mutable_buffer=options.take_over_mutable_buffers and keeps_state,
                lower_full_graph=options.lower_full_graph,
            )
        ]


_WITH_STATE = ("iOS18", "iOS26", "macOS15", "macOS26")  # systems on which Core ML can keep state


def _compile_specs(options: CoreMlOptions) -> list[CompileSpec]:
    import coremltools
    from executorch.backends.apple.coreml.compiler.coreml_preprocess import MULTIMETHOD_WEIGHT_SHARING_STRATEGY

    from ..upstream.compat import CoreMLBackend

    oldest = options.minimum_deployment_target
    specs: list[CompileSpec] = CoreMLBackend.generate_compile_specs(
        compute_unit=coremltools.ComputeUnit[options.compute_unit.upper()],
        minimum_deployment_target=oldest and coremltools.target[oldest],
        compute_precision=coremltools.precision(options.compute_precision),
        model_type=CoreMLBackend.MODEL_TYPE(options.model_type),
    )
    if not options.share_weights:
        strategy = MULTIMETHOD_WEIGHT_SHARING_STRATEGY.DISABLED
        specs.append(CoreMLBackend.generate_multimethod_weight_sharing_strategy_compile_spec(strategy))
    return specs


def _names(operator: str) -> tuple[str, str]:
    """Names as the partitioner compares them, in lower case: of the edge dialect, and of ATen before that."""
    name = operator.lower() if operator.count(".") > 1 else f"{operator.lower()}.default"
    return name, name.partition(".")[2]
