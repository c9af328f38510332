"""GPUs for which AOTInductor compiles kernels, on a machine that has such a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, ClassVar

from .vendors import VendorTarget

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner


@dataclass(frozen=True)
class Cuda(VendorTarget):
    """Nvidia's GPUs. For models with one method."""

    name: ClassVar[str] = "cuda"
    backends: ClassVar[tuple[str, ...]] = ("CudaBackend",)
    distributions: ClassVar[tuple[str, ...]] = ("triton",)
    modules: ClassVar[tuple[str, ...]] = ("triton",)
    programs: ClassVar[tuple[str, ...]] = ("nvcc", "nvidia-smi")
    get: ClassVar[str] = (
        "use a machine with an Nvidia GPU and the CUDA toolkit, and a CUDA build of PyTorch, which brings triton"
    )

    @classmethod
    def available(cls) -> str | None:
        """What is missing, a PyTorch with CUDA included."""
        if reason := super().available():
            return reason
        if "+cpu" in version("torch"):
            return f"PyTorch {version('torch')} has no CUDA; {cls.get}"
        return None

    def partitioners(self) -> Sequence[Partitioner]:
        """One CUDA partitioner."""
        from executorch.backends.cuda.cuda_backend import CudaBackend  # noqa: PLC0415 - workers only
        from executorch.backends.cuda.cuda_partitioner import CudaPartitioner  # noqa: PLC0415 - workers only

        return [CudaPartitioner([CudaBackend.generate_method_name_compile_spec("forward")])]


@dataclass(frozen=True)
class Metal(VendorTarget):
    """Apple's GPUs. For models with one method."""

    name: ClassVar[str] = "metal"
    backends: ClassVar[tuple[str, ...]] = ("MetalBackend",)
    system: ClassVar[str | None] = "darwin"
    programs: ClassVar[tuple[str, ...]] = ("xcrun",)
    get: ClassVar[str] = "lower on a Mac with Apple silicon and Xcode; the targets mlx and coreml lower here"

    def partitioners(self) -> Sequence[Partitioner]:
        """One Metal partitioner."""
        from executorch.backends.apple.metal.metal_backend import MetalBackend  # noqa: PLC0415 - workers only
        from executorch.backends.apple.metal.metal_partitioner import MetalPartitioner  # noqa: PLC0415 - workers only

        return [MetalPartitioner([MetalBackend.generate_method_name_compile_spec("forward")])]
