"""ExecuTorch's kernels in Python for operators of backends; in the keys of stages that run programs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch

from .patches import mends


@mends(
    "torch has no convolution of integers with a dilation, which the kernels for Cortex-M call",
    "torch.nn.functional.conv2d",
)
def convolutions_of_integers() -> AbstractContextManager[object]:
    """Has torch convolve integers in float64 while the context is open, which is exact for sums below 2 ** 53.

    For torch 2.13, where `slow_conv_dilated` has no integers ("not implemented for 'Int'"), and the references of
    `cortex_m::quantized_conv2d` and others add up in int32 (backends/cortex_m/ops/operators.py of executorch 1.5.1).
    """
    whole = torch.nn.functional.conv2d

    def conv2d(values: torch.Tensor, weight: torch.Tensor, bias: Any = None, *others: Any, **options: Any) -> Any:
        if values.is_floating_point() or values.is_complex():
            return whole(values, weight, bias, *others, **options)
        sums = whole(values.double(), weight.double(), None if bias is None else bias.double(), *others, **options)
        return sums.to(values.dtype)

    return patch.object(torch.nn.functional, "conv2d", conv2d)


_CADENCE = "executorch.backends.cadence.aot.ref_implementations"


@mends("the kernels in Python for Cadence's DSPs negate products and ReLU in int8", releases="<=1.5.1")
def positive_scales() -> AbstractContextManager[object]:
    """Has Cadence's references quantize with positive scales while the context is open.

    `quantized_linear_common` and others divide by ``-out_multiplier * (1 / (1 << 31))``, like the kernels in C++, where
    ``1 << 31`` is negative. No scale is. Delete once the references drop the sign.
    """
    module = sys.modules.get(_CADENCE)
    if module is None:
        return nullcontext()
    whole = module.quantize_per_tensor
    return patch.object(module, "quantize_per_tensor", lambda values, scale, *more: whole(values, abs(scale), *more))


@contextmanager
def mended_references() -> Iterator[None]:
    """Runs programs with what both of the above mend."""
    with convolutions_of_integers(), positive_scales():
        yield
