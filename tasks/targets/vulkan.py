"""Vulkan: GPUs of Android devices, and of desktops whose drivers have Vulkan 1.1; and WebGPU, also in browsers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from ...errors import TargetError
from ..upstream import saves_time
from .base import Target, TargetOptions

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner
    from torchao.quantization.pt2e.quantizer import Quantizer

Extent = Annotated[int, Field(ge=1, le=(1 << 32) - 1)]


class GpuOptions(TargetOptions):
    """Options of the Vulkan partitioner and compiler that WebGPU's runtime takes as well.

    Attributes:
        texture_limits: largest width, height and depth of a 3D texture, in texels. None: 16384 x 16384 x 2048, which
            most phones support.
        small_texture_limits: 2048 in each direction, which every device supports; many desktop GPUs support no more.
            `texture_limits` takes precedence.
        require_dynamic_shapes: claim only operators whose outputs can be resized between runs.
        skip_bool_tensors: leave operators with bool tensors to the CPU; they need 8-bit buffers, which some GPUs lack.
        downcast_64_bit: int64 and float64 tensors become int32 and float32.
        alias_buffer_mutations: operators write state in place instead of to a copy.
        skip_operators: operators to leave to the CPU, such as ``aten.add.Tensor``.
        only_operators: the only operators to claim; all others are left to the CPU. None: all that it can.
        limits: leave calls to the CPU that the runtime of executorch 1.5.1 lacks or computes wrongly, such as
            convolutions with groups.
    """

    texture_limits: tuple[Extent, Extent, Extent] | None = None
    small_texture_limits: bool = False
    require_dynamic_shapes: bool = False
    skip_bool_tensors: bool = False
    downcast_64_bit: bool = True
    alias_buffer_mutations: bool = False
    skip_operators: tuple[str, ...] = ()
    only_operators: tuple[str, ...] | None = None
    limits: bool = True


class VulkanOptions(GpuOptions):
    """Options of the Vulkan partitioner and compiler.

    Attributes:
        force_fp16: keep floating point tensors as fp16 on the GPU; inputs and outputs stay fp32.
    """

    force_fp16: bool = False


class VulkanQuantizerOptions(TargetOptions):
    """Options of Vulkan's quantizer: linear layers, with a scale for each output channel.

    Attributes:
        dynamic: activations become int8 too, with scales that are computed at run time.
        weight_bits: of each weight.
    """

    dynamic: bool = False
    weight_bits: Literal[4, 8] = 8


class Vulkan(Target):
    """Inference on the GPU through Vulkan, on devices only; unsupported operators run on the portable kernels."""

    options: GpuOptions

    name: ClassVar[str] = "vulkan"
    Options: ClassVar[type[TargetOptions]] = VulkanOptions
    QuantizerOptions: ClassVar[type[TargetOptions] | None] = VulkanQuantizerOptions
    knows_linear_only: ClassVar[bool] = True
    backends: ClassVar[tuple[str, ...]] = ("VulkanBackend",)
    leaves_affine: ClassVar[bool] = True

    def decomposition_options(self) -> dict[str, Any]:
        """Whether limits apply: the same operators stay whole in any case, but for GELU, which they write out."""
        return {"limits": self.options.limits}

    @classmethod
    def quantizer(cls, options: Any) -> Quantizer:
        from executorch.backends.vulkan.quantizer.vulkan_quantizer import (
            VulkanQuantizer,
            get_symmetric_quantization_config,
        )

        config = get_symmetric_quantization_config(is_dynamic=options.dynamic, weight_bits=options.weight_bits)
        return VulkanQuantizer().set_global(config)

    def partitioners(self) -> Sequence[Partitioner]:
        from executorch.backends.vulkan.partitioner.vulkan_partitioner import VulkanPartitioner

        from ..upstream.vulkan import LimitedVulkanPartitioner

        return self._partitioners(LimitedVulkanPartitioner if self.options.limits else VulkanPartitioner)

    def _partitioners(self, partitioner: Any) -> list[Partitioner]:
        from ..upstream.vulkan import mend_vulkan, trace_patterns_once

        mend_vulkan()
        if saves_time():
            trace_patterns_once()
        return [partitioner(*_partitioner_arguments(self.options))]


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
        from ..upstream.compat import WebGPUPartitioner
        from ..upstream.vulkan import LimitedWebGpuPartitioner

        return self._partitioners(LimitedWebGpuPartitioner if self.options.limits else WebGPUPartitioner)


def _partitioner_arguments(options: GpuOptions) -> tuple[dict[str, Any], list[Any], list[Any] | None]:
    """Compile options, operators to skip, and the only operators to claim, for upstream's partitioners."""
    only = None if options.only_operators is None else _edge_operators(options.only_operators)
    values = options.model_dump(exclude={"skip_operators", "only_operators", "limits"})
    defaults = VulkanOptions.model_fields  # upstream's: payloads contain no others
    ordered = sorted(values, key=lambda name: name != "force_fp16")  # it comes first in files
    differing = {name: values[name] for name in ordered if values[name] != defaults[name].default}
    return differing, _edge_operators(options.skip_operators), only


def _edge_operators(names: Sequence[str]) -> list[Any]:
    from ..programs.graphs import find_edge_operators

    try:
        return list(find_edge_operators(names))
    except TargetError as error:
        raise TargetError(f"an operator to skip or claim: {error}") from error
