"""GPUs for which AOTInductor compiles kernels, on a machine with that GPU."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, ClassVar

from .vendors import VendorTarget

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner


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
        if reason := super().available():
            return reason
        if "+cpu" in version("torch"):
            return f"PyTorch {version('torch')} has no CUDA; {cls.get}"
        return None

    def partitioners(self) -> Sequence[Partitioner]:
        from executorch.backends.cuda.cuda_backend import CudaBackend
        from executorch.backends.cuda.cuda_partitioner import CudaPartitioner

        return [CudaPartitioner([CudaBackend.generate_method_name_compile_spec("forward")])]


class Metal(VendorTarget):
    """Apple's GPUs. For models with one method."""

    name: ClassVar[str] = "metal"
    backends: ClassVar[tuple[str, ...]] = ("MetalBackend",)
    system: ClassVar[str | None] = "darwin"
    programs: ClassVar[tuple[str, ...]] = ("xcrun",)
    get: ClassVar[str] = "lower on a Mac with Apple silicon and Xcode; the targets mlx and coreml lower here"

    def partitioners(self) -> Sequence[Partitioner]:
        from executorch.backends.apple.metal.metal_backend import MetalBackend
        from executorch.backends.apple.metal.metal_partitioner import MetalPartitioner

        return [MetalPartitioner([MetalBackend.generate_method_name_compile_spec("forward")])]
