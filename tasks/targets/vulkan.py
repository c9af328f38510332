"""Vulkan: GPUs of Android devices, and of desktops whose drivers have Vulkan 1.1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from ...errors import TargetError
from .base import Target, TargetOptions

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner
    from torchao.quantization.pt2e.quantizer import Quantizer

Extent = Annotated[int, Field(ge=1, le=(1 << 32) - 1)]


class VulkanOptions(TargetOptions):
    """Options of the Vulkan partitioner and compiler.

    Attributes:
        force_fp16: keep floating point tensors as fp16 on the GPU; inputs and outputs stay fp32.
        texture_limits: largest width, height and depth of a 3D texture, in texels. None: 16384 x 16384 x 2048, which
            most phones have.
        small_texture_limits: 2048 in each direction, which is what every device has, many desktop GPUs no more.
            `texture_limits` outranks it.
        require_dynamic_shapes: claim only operators whose outputs can be resized between two runs.
        skip_bool_tensors: leave operators with bool tensors to the CPU; they need 8-bit buffers, which some GPUs lack.
        downcast_64_bit: int64 and float64 tensors become int32 and float32.
        alias_buffer_mutations: operators write state in place instead of to a copy.
        skip_operators: operators to leave to the CPU, such as ``aten.add.Tensor``.
        only_operators: operators to claim, where it may claim them; all others are left to the CPU. None: all.
    """

    force_fp16: bool = False
    texture_limits: tuple[Extent, Extent, Extent] | None = None
    small_texture_limits: bool = False
    require_dynamic_shapes: bool = False
    skip_bool_tensors: bool = False
    downcast_64_bit: bool = True
    alias_buffer_mutations: bool = False
    skip_operators: tuple[str, ...] = ()
    only_operators: tuple[str, ...] | None = None


class VulkanQuantizerOptions(TargetOptions):
    """Options of Vulkan's quantizer: linear layers, with a scale for each output channel.

    Attributes:
        dynamic: activations become int8 as well, with scales that are computed where the model runs.
        weight_bits: of each weight.
    """

    dynamic: bool = False
    weight_bits: Literal[4, 8] = 8


@dataclass(frozen=True)
class Vulkan(Target):
    """Inference on the GPU through Vulkan; what it does not support runs by the portable kernels.

    The runtime in ExecuTorch's wheel has no Vulkan: payloads are made here and run on devices.
    """

    options: VulkanOptions

    name: ClassVar[str] = "vulkan"
    Options: ClassVar[type[TargetOptions]] = VulkanOptions
    QuantizerOptions: ClassVar[type[TargetOptions] | None] = VulkanQuantizerOptions
    backends: ClassVar[tuple[str, ...]] = ("VulkanBackend",)

    def preserving(self) -> dict[str, Any]:
        """No option: the same operators stay whole whatever the options are."""
        return {}

    @classmethod
    def quantizer(cls, options: TargetOptions) -> Quantizer:
        """Vulkan's own."""
        from executorch.backends.vulkan.quantizer.vulkan_quantizer import (  # noqa: PLC0415 - workers only
            VulkanQuantizer,
            get_symmetric_quantization_config,
        )

        given = VulkanQuantizerOptions.model_validate(options.model_dump())
        config = get_symmetric_quantization_config(is_dynamic=given.dynamic, weight_bits=given.weight_bits)
        return VulkanQuantizer().set_global(config)

    def partitioners(self) -> Sequence[Partitioner]:
        """One Vulkan partitioner."""
        from executorch.backends.vulkan.partitioner.vulkan_partitioner import (  # noqa: PLC0415 - workers only
            VulkanPartitioner,
        )

        return [VulkanPartitioner(*partitioner_arguments(self.options))]


def partitioner_arguments(options: VulkanOptions) -> tuple[dict[str, Any], list[Any], list[Any] | None]:
    """Compile options, operators to skip, and the only operators to claim, as upstream's partitioners take them."""
    only = None if options.only_operators is None else _edge_operators(options.only_operators)
    return _compile_options(options), _edge_operators(options.skip_operators), only


def _compile_options(options: VulkanOptions) -> dict[str, Any]:
    """Only what differs from upstream's defaults, so that payloads say no more than that."""
    given = options.model_dump(exclude={"skip_operators", "only_operators"})
    return {name: value for name, value in given.items() if value != VulkanOptions.model_fields[name].default}


def _edge_operators(names: Sequence[str]) -> list[Any]:
    """Operators of the edge dialect by names such as ``aten.add.Tensor``.

    Raises:
        TargetError: there is none of that name.
    """
    return [_edge_operator(name) for name in names]


def _edge_operator(name: str) -> Any:
    from executorch.exir.dialects._ops import ops  # noqa: PLC0415 - workers only

    namespace, _, rest = name.partition(".")
    operator, _, overload = rest.partition(".")
    try:
        return getattr(getattr(getattr(ops.edge, namespace), operator), overload or "default")
    except (AttributeError, RuntimeError) as error:
        raise TargetError(
            f"unknown operator {name!r} to skip or claim; write it as namespace.operator.overload, for example "
            "aten.add.Tensor"
        ) from error
