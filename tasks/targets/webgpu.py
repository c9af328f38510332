"""WebGPU: GPUs through WebGPU, in browsers and natively."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from .base import TargetOptions
from .vulkan import Vulkan, VulkanOptions, partitioner_arguments

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner


class WebGpuOptions(VulkanOptions):
    """Options of the WebGPU partitioner: those of Vulkan, whose compiler and format it uses.

    Attributes:
        skip_bool_tensors: as Vulkan's, but what one wants here: WebGPU has no 8-bit buffers.
    """

    skip_bool_tensors: bool = True


@dataclass(frozen=True)
class WebGpu(Vulkan):
    """Inference on the GPU through WebGPU; what it does not support runs by the portable kernels.

    Its payloads are Vulkan's, and its runtime goes by Vulkan's id: a runtime that has the id has one of the two. The
    runtime in ExecuTorch's wheel has neither. WebGPU's has fewer operators than Vulkan's, and upstream's partitioner
    does not know which: where a device refuses a payload, name what it has with `only_operators`.
    """

    options: WebGpuOptions

    name: ClassVar[str] = "webgpu"
    Options: ClassVar[type[TargetOptions]] = WebGpuOptions

    def partitioners(self) -> Sequence[Partitioner]:
        """One WebGPU partitioner."""
        from executorch.backends.webgpu.partitioner.partitioner import WebGPUPartitioner  # noqa: PLC0415 - workers only

        return [WebGPUPartitioner(*partitioner_arguments(self.options))]
