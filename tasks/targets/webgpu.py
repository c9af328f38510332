"""WebGPU: GPUs through WebGPU, in browsers and natively."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from ..upstream import saves_time
from .base import TargetOptions
from .vulkan import GpuOptions, Vulkan, partitioner_arguments

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner


class WebGpuOptions(GpuOptions):
    """Options of the WebGPU partitioner: those of Vulkan, whose compiler and format it uses, but for `force_fp16`.

    WebGPU's runtime refuses files with 16-bit tensors.

    Attributes:
        skip_bool_tensors: as Vulkan's, but on by default: WebGPU has no 8-bit buffers.
    """

    skip_bool_tensors: bool = True


class WebGpu(Vulkan):
    """Inference on the GPU through WebGPU; unsupported operators run on the portable kernels.

    Its payloads are Vulkan's, and its runtime registers Vulkan's id: a runtime with that id has one of the two. The
    runtime in ExecuTorch's wheel has neither. WebGPU's supports fewer operators than Vulkan's, and upstream's
    partitioner does not know which: if a device rejects a payload, list the operators that it has in `only_operators`.
    """

    options: WebGpuOptions

    name: ClassVar[str] = "webgpu"
    Options: ClassVar[type[TargetOptions]] = WebGpuOptions

    def partitioners(self) -> Sequence[Partitioner]:
        from executorch.backends.webgpu.partitioner.partitioner import WebGPUPartitioner

        from ..upstream.vulkan import LimitedWebGpuPartitioner, mend_vulkan, trace_patterns_once

        mend_vulkan()
        if saves_time():
            trace_patterns_once()
        partitioner = LimitedWebGpuPartitioner if self.options.limits else WebGPUPartitioner
        return [partitioner(*partitioner_arguments(self.options))]
