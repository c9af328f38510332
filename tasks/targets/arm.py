"""Arm's Ethos-U NPUs for microcontrollers and embedded systems, and VGF: GPUs with the ML extensions for Vulkan."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from .base import Target, TargetOptions, missing_packages

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner
    from torchao.quantization.pt2e.quantizer import Quantizer

U55 = Literal["ethos-u55-32", "ethos-u55-64", "ethos-u55-128", "ethos-u55-256"]
U65 = Literal["ethos-u65-256", "ethos-u65-512"]
U85 = Literal["ethos-u85-128", "ethos-u85-256", "ethos-u85-512", "ethos-u85-1024", "ethos-u85-2048"]
Accelerator = Literal[U55, U65, U85]

_CONVERTER = "model-converter"
_GLIBC = (2, 38)  # the version that the converter of ai_ml_sdk_model_converter 0.10.0 is linked against


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
        from executorch.backends.arm.quantizer import EthosUQuantizer

        return _symmetric(EthosUQuantizer(EthosUCompileSpec(options.accelerator)), options)

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


class VgfOptions(TargetOptions):
    """Options of the VGF compiler.

    Attributes:
        tosa_spec: the device's version and extensions of TOSA. None: all that the compiler knows.
        compiler_flags: flags for the model converter's command line.
    """

    tosa_spec: str | None = None
    compiler_flags: tuple[str, ...] = ()


class VgfQuantizerOptions(TargetOptions):
    """Options of the quantizer for VGF: int8, weights symmetric.

    Attributes:
        tosa_spec: as the target's.
        per_channel: weights have a scale for each output channel instead of one for all.
    """

    tosa_spec: str | None = None
    per_channel: bool = True


class Vgf(Target):
    """Inference by the ML extensions for Vulkan; unsupported operators run on the portable kernels."""

    options: VgfOptions

    name: ClassVar[str] = "vgf"
    Options: ClassVar[type[TargetOptions]] = VgfOptions
    QuantizerOptions: ClassVar[type[TargetOptions] | None] = VgfQuantizerOptions
    backends: ClassVar[tuple[str, ...]] = ("VgfBackend",)
    extra: ClassVar[str | None] = "vgf"
    distributions: ClassVar[tuple[str, ...]] = ("ai-ml-sdk-model-converter", "tosa-tools")

    @classmethod
    def available(cls) -> str | None:
        if reason := missing_packages("tosa_serializer", "model_converter", extra="vgf"):
            return reason
        library, version = platform.libc_ver()
        if library == "glibc" and tuple(map(int, version.split(".")[:2])) < _GLIBC:
            needed = ".".join(map(str, _GLIBC))
            return f"Arm's model converter needs glibc {needed} or newer, this system has {version}; use a newer system"
        return None

    def decomposition_options(self) -> dict[str, Any]:
        return self.options.model_dump(mode="json", include={"tosa_spec"})

    @classmethod
    def quantizer(cls, options: Any) -> Quantizer:
        from executorch.backends.arm.quantizer import VgfQuantizer
        from executorch.backends.arm.vgf import VgfCompileSpec

        return _symmetric(VgfQuantizer(VgfCompileSpec(options.tosa_spec)), options)

    def partitioners(self) -> Sequence[Partitioner]:
        from executorch.backends.arm.vgf import VgfCompileSpec, VgfPartitioner

        converter = Path(sys.executable).with_name(_CONVERTER)  # of a virtual environment that was not activated
        if not which(_CONVERTER) and converter.exists():
            os.environ.setdefault("MODEL_CONVERTER_PATH", str(converter))
        options = self.options
        return [VgfPartitioner(VgfCompileSpec(options.tosa_spec, list(options.compiler_flags)))]


def _symmetric(quantizer: Any, options: Any) -> Quantizer:
    from executorch.backends.arm.quantizer import get_symmetric_quantization_config

    return quantizer.set_global(get_symmetric_quantization_config(is_per_channel=options.per_channel))
