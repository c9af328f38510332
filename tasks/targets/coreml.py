"""Core ML: CPU, GPU and Neural Engine of Apple's devices."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import wraps
from importlib.util import find_spec
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import field_validator

from .base import Target, TargetOptions

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
        minimum_deployment_target: oldest system that the model is to run on. None: the oldest that has all of its
            operators.
        compute_unit: what it may run on; ``ne`` is the Neural Engine.
        compute_precision: of floating point operators within the delegate; inputs and outputs stay as they are.
        model_type: ``model`` is compiled by the device when it loads the file first, ``compiled_model`` was compiled
            before, which only a Mac can do.
        lower_full_graph: fail where an operator is not supported, instead of leaving it to the CPU.
        take_over_mutable_buffers: keep a model's state in Core ML; needs iOS18 or macOS15.
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


@dataclass(frozen=True)
class CoreMl(Target):
    """Inference by Core ML; what it does not support runs by the portable kernels.

    Payloads are made on Macs and on Linux for x86-64. Each has an identifier drawn at random, so no two are equal: once
    made, a payload is kept and used again.
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
        """Looks for the converter."""
        if find_spec("coremltools"):
            return None
        return (
            "coremltools is not installed; ExecuTorch brings it on macOS and on Linux for x86-64, the systems that can "
            "make Core ML models: pip install coremltools==9.0"
        )

    def preserving(self) -> dict[str, Any]:
        """The operators to skip: all others that Core ML supports stay whole."""
        return self.options.model_dump(mode="json", include={"skip_operators"})

    @classmethod
    def quantizer(cls, options: TargetOptions) -> Quantizer:
        """Core ML's own."""
        import torch  # noqa: PLC0415 - workers only
        from coremltools.optimize.torch.quantization import (  # noqa: PLC0415 - workers only
            LinearQuantizerConfig,
            ModuleLinearQuantizerConfig,
        )
        from executorch.backends.apple.coreml.quantizer import CoreMLQuantizer  # noqa: PLC0415 - workers only

        from .coreml_patterns import trace_patterns_where_needed  # noqa: PLC0415 - workers only

        trace_patterns_where_needed()
        given = CoreMlQuantizerOptions.model_validate(options.model_dump())
        config = ModuleLinearQuantizerConfig(
            quantization_scheme=given.scheme,
            activation_dtype=torch.float32 if given.weight_only else torch.quint8,
            weight_dtype=torch.qint8,
            weight_per_channel=given.per_channel,
        )
        return CoreMLQuantizer(LinearQuantizerConfig(global_config=config))

    def partitioners(self) -> Sequence[Partitioner]:
        """One Core ML partitioner."""
        from executorch.backends.apple.coreml.partition.coreml_partitioner import (  # noqa: PLC0415 - workers only
            CoreMLPartitioner,
        )

        _keep_no_temporary_files()
        options = self.options
        return [
            CoreMLPartitioner(
                skip_ops_for_coreml_delegation=[name for each in options.skip_operators for name in _names(each)],
                compile_specs=_compile_specs(options),
                take_over_mutable_buffer=options.take_over_mutable_buffers,
                lower_full_graph=options.lower_full_graph,
            )
        ]


def _keep_no_temporary_files() -> None:
    """Makes the backend remove its temporary files when it has compiled, not when the process ends.

    coremltools leaves copies of the model, weights included, to functions that are called at exit. Stage processes end
    without.
    """
    from executorch.backends.apple.coreml.compiler import CoreMLBackend  # noqa: PLC0415 - workers only

    preprocess = CoreMLBackend.preprocess_multimethod
    if hasattr(preprocess, "__wrapped__"):
        return

    @wraps(preprocess)
    def call(edge_programs: Any, compile_specs: Any) -> Any:
        before = tempfile.tempdir
        with TemporaryDirectory(prefix="pteforge-coreml-", ignore_cleanup_errors=True) as folder:
            tempfile.tempdir = folder
            try:
                return preprocess(edge_programs, compile_specs)
            finally:
                tempfile.tempdir = before

    CoreMLBackend.preprocess_multimethod = staticmethod(call)


def _compile_specs(options: CoreMlOptions) -> list[CompileSpec]:
    import coremltools  # noqa: PLC0415 - workers only
    from executorch.backends.apple.coreml.compiler import CoreMLBackend  # noqa: PLC0415 - workers only
    from executorch.backends.apple.coreml.compiler.coreml_preprocess import (  # noqa: PLC0415 - workers only
        MULTIMETHOD_WEIGHT_SHARING_STRATEGY,
    )

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
    """The partitioner compares names in small letters: those of the edge dialect, and before that those of ATen."""
    name = operator.lower() if operator.count(".") > 1 else f"{operator.lower()}.default"
    return name, name.partition(".")[2]
