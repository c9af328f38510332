"""VGF: Arm's GPUs and others that run the ML extensions for Vulkan."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any, ClassVar

from .base import Target, TargetOptions
from .packages import missing_packages

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner

_CONVERTER = "model-converter"
_GLIBC = (2, 38)
"""What the converter of ai_ml_sdk_model_converter 0.10.0 is linked against."""


class VgfOptions(TargetOptions):
    """Options of the VGF compiler.

    Attributes:
        tosa_spec: version and extensions of TOSA that the device has. None: all that the compiler knows.
        compiler_flags: flags for the model converter's command line.
    """

    tosa_spec: str | None = None
    compiler_flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Vgf(Target):
    """Inference by the ML extensions for Vulkan; what they do not support runs by the portable kernels."""

    options: VgfOptions

    name: ClassVar[str] = "vgf"
    Options: ClassVar[type[TargetOptions]] = VgfOptions
    backends: ClassVar[tuple[str, ...]] = ("VgfBackend",)
    extra: ClassVar[str | None] = "vgf"
    distributions: ClassVar[tuple[str, ...]] = ("ai-ml-sdk-model-converter", "tosa-tools")

    @classmethod
    def available(cls) -> str | None:
        """Looks for the packages, and at the C library that the converter needs."""
        if reason := missing_packages("tosa_serializer", "model_converter", extra="vgf"):
            return reason
        library, version = platform.libc_ver()
        if library == "glibc" and tuple(map(int, version.split(".")[:2])) < _GLIBC:
            needed = ".".join(map(str, _GLIBC))
            return f"Arm's model converter needs glibc {needed} or newer, this system has {version}; use a newer system"
        return None

    def preserving(self) -> dict[str, Any]:
        """The version of TOSA decides what is supported."""
        return self.options.model_dump(mode="json", include={"tosa_spec"})

    def partitioners(self) -> Sequence[Partitioner]:
        """One VGF partitioner."""
        from executorch.backends.arm.vgf import VgfCompileSpec, VgfPartitioner  # noqa: PLC0415 - workers only

        beside = Path(sys.executable).with_name(_CONVERTER)  # of a virtual environment that nobody activated
        if not which(_CONVERTER) and beside.exists():
            os.environ.setdefault("MODEL_CONVERTER_PATH", str(beside))
        options = self.options
        return [VgfPartitioner(VgfCompileSpec(options.tosa_spec, list(options.compiler_flags)))]
