"""Ethos-U: Arm's NPUs for microcontrollers and embedded systems."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from .base import Target, TargetOptions, missing_packages

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner
    from torchao.quantization.pt2e.quantizer import Quantizer

Accelerator = Literal[
    "ethos-u55-32",
    "ethos-u55-64",
    "ethos-u55-128",
    "ethos-u55-256",
    "ethos-u65-256",
    "ethos-u65-512",
    "ethos-u85-128",
    "ethos-u85-256",
    "ethos-u85-512",
    "ethos-u85-1024",
    "ethos-u85-2048",
]


class EthosUOptions(TargetOptions):
    """Options of Vela, the compiler for Ethos-U.

    Attributes:
        accelerator: the NPU and its number of multiplications per cycle.
        system_config: name of a system configuration in Vela's own `vela.ini`. None: the accelerator's default.
        memory_mode: name of a memory mode there. None: the accelerator's default.
        extra_flags: further flags for Vela's command line.
    """

    accelerator: Accelerator = "ethos-u55-128"
    system_config: str | None = None
    memory_mode: str | None = None
    extra_flags: tuple[str, ...] = ()


class EthosUQuantizerOptions(TargetOptions):
    """Options of the quantizer for Ethos-U: int8, weights symmetric.

    Attributes:
        accelerator: as the target's, since families of them support different operators.
        per_channel: weights have a scale for each output channel instead of one for all.
    """

    accelerator: Accelerator = "ethos-u55-128"
    per_channel: bool = True


class EthosU(Target):
    """Inference on an Ethos-U NPU; unsupported operators, and all in floating point, run on other kernels."""

    options: EthosUOptions

    name: ClassVar[str] = "ethos_u"
    Options: ClassVar[type[TargetOptions]] = EthosUOptions
    QuantizerOptions: ClassVar[type[TargetOptions] | None] = EthosUQuantizerOptions
    backends: ClassVar[tuple[str, ...]] = ("EthosUBackend",)
    extra: ClassVar[str | None] = "ethos-u"
    distributions: ClassVar[tuple[str, ...]] = ("ethos-u-vela", "tosa-tools")
    quantized_only: ClassVar[bool] = True

    @classmethod
    def available(cls) -> str | None:
        return missing_packages("ethosu", "tosa_serializer", extra="ethos-u")

    def decomposition_options(self) -> dict[str, Any]:
        return self.options.model_dump(mode="json", include={"accelerator"})

    @classmethod
    def quantizer(cls, options: Any) -> Quantizer:
        from executorch.backends.arm.ethosu import EthosUCompileSpec
        from executorch.backends.arm.quantizer import EthosUQuantizer, get_symmetric_quantization_config

        quantizer = EthosUQuantizer(EthosUCompileSpec(options.accelerator))
        return quantizer.set_global(get_symmetric_quantization_config(is_per_channel=options.per_channel))

    def partitioners(self) -> Sequence[Partitioner]:
        from executorch.backends.arm.ethosu import EthosUCompileSpec, EthosUPartitioner

        options = self.options
        spec = EthosUCompileSpec(
            options.accelerator,
            system_config=options.system_config,
            memory_mode=options.memory_mode,
            extra_flags=list(options.extra_flags),
        )
        return [EthosUPartitioner(spec)]
