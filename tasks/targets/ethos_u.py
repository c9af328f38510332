"""Ethos-U: Arm's NPUs for microcontrollers and embedded systems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from .base import Target, TargetOptions
from .packages import missing_packages

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
        accelerator: the NPU and how many multiplications it does per cycle.
        system_config: name of a system configuration in Vela's own `vela.ini`. None: the usual one of the accelerator.
        memory_mode: name of a memory mode there, likewise.
        extra_flags: further flags for Vela's command line.
    """

    accelerator: Accelerator = "ethos-u55-128"
    system_config: str | None = None
    memory_mode: str | None = None
    extra_flags: tuple[str, ...] = ()


class EthosUQuantizerOptions(TargetOptions):
    """Options of the quantizer for Ethos-U: int8, weights symmetric.

    Attributes:
        accelerator: as the target's: families of them support different operators.
        per_channel: weights have a scale for each output channel instead of one for all.
    """

    accelerator: Accelerator = "ethos-u55-128"
    per_channel: bool = True


@dataclass(frozen=True)
class EthosU(Target):
    """Inference on an Ethos-U NPU; what it does not support, all of floating point included, runs by other kernels."""

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
        """Looks for Vela and for the serializer of its input format."""
        return missing_packages("ethosu", "tosa_serializer", extra="ethos-u")

    def preserving(self) -> dict[str, Any]:
        """The accelerator: families of them support different operators."""
        return self.options.model_dump(mode="json", include={"accelerator"})

    @classmethod
    def quantizer(cls, options: TargetOptions) -> Quantizer:
        """Arm's, for every operator that the accelerator has."""
        from executorch.backends.arm.ethosu import EthosUCompileSpec  # noqa: PLC0415 - workers only
        from executorch.backends.arm.quantizer import (  # noqa: PLC0415 - workers only
            EthosUQuantizer,
            get_symmetric_quantization_config,
        )

        given = EthosUQuantizerOptions.model_validate(options.model_dump())
        quantizer = EthosUQuantizer(EthosUCompileSpec(given.accelerator))
        return quantizer.set_global(get_symmetric_quantization_config(is_per_channel=given.per_channel))

    def partitioners(self) -> Sequence[Partitioner]:
        """One Ethos-U partitioner."""
        from executorch.backends.arm.ethosu import EthosUCompileSpec, EthosUPartitioner  # noqa: PLC0415 - workers only

        options = self.options
        spec = EthosUCompileSpec(
            options.accelerator,
            system_config=options.system_config,
            memory_mode=options.memory_mode,
            extra_flags=list(options.extra_flags),
        )
        return [EthosUPartitioner(spec)]
