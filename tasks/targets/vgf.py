"""VGF: Arm's GPUs and others that run the ML extensions for Vulkan."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any, ClassVar

from .base import Target, TargetOptions, missing_packages

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner
    from torchao.quantization.pt2e.quantizer import Quantizer

_CONVERTER = "model-converter"
_GLIBC = (2, 38)
"""The version that the converter of ai_ml_sdk_model_converter 0.10.0 is linked against."""


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
        from executorch.backends.arm.quantizer import VgfQuantizer, get_symmetric_quantization_config
        from executorch.backends.arm.vgf import VgfCompileSpec

        quantizer = VgfQuantizer(VgfCompileSpec(options.tosa_spec))
        return quantizer.set_global(get_symmetric_quantization_config(is_per_channel=options.per_channel))

    def partitioners(self) -> Sequence[Partitioner]:
        from executorch.backends.arm.vgf import VgfCompileSpec, VgfPartitioner

        converter = Path(sys.executable).with_name(_CONVERTER)  # of a virtual environment that was not activated
        if not which(_CONVERTER) and converter.exists():
            os.environ.setdefault("MODEL_CONVERTER_PATH", str(converter))
        options = self.options
        return [VgfPartitioner(VgfCompileSpec(options.tosa_spec, list(options.compiler_flags)))]
