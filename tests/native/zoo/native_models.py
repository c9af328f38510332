"""Models that the tests of the native backend lower; they import this when they run, since it imports torch."""

from typing import Any

import torch
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import XNNPACKQuantizer, get_symmetric_quantization_config
from networks import FunctionOfLayers
from torch import Tensor
from torch.nn.functional import hardswish
from torchao.quantization import Int8DynamicActivationIntxWeightConfig, quantize_
from torchao.quantization.granularity import PerGroup
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from torchao.utils import unwrap_tensor_subclass


def convolution() -> torch.nn.Module:
    """XNNPACK has its operators, two of which are not core ATen."""
    layers = {"first": torch.nn.Conv2d(3, 8, 3), "second": torch.nn.Linear(288, 64)}
    return FunctionOfLayers(lambda net, x: hardswish(net.second(net.first(x).relu().flatten(1))), **layers).eval()


def quantized(module: torch.nn.Module, example: Tensor, *, dynamic: bool = False) -> torch.nn.Module:
    """Quantizes a module to int8, weights per channel, with XNNPACK's quantizer."""
    exported = torch.export.export(module, (example,)).module()
    config = get_symmetric_quantization_config(is_per_channel=True, is_dynamic=dynamic)
    prepared = prepare_pt2e(exported, XNNPACKQuantizer().set_global(config))
    prepared(example)
    return convert_pt2e(prepared)


def grouped(module: torch.nn.Module) -> torch.nn.Module:
    """Quantizes linear layers with torchao: int4 weights in groups, dynamically quantized inputs."""
    config = Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=PerGroup(32))
    quantize_(module, config)
    return unwrap_tensor_subclass(module)


def branches() -> torch.nn.Module:
    """Two branches with weights and numbers of their own, between layers."""

    def compute(net: Any, x: Tensor) -> Tensor:
        y = net.second(x)
        chosen = torch.cond(
            x.sum() > 0,
            lambda z: net.first(z) * 2.5,
            lambda z: torch.cond(z.sum() < -20, torch.neg, lambda w: net.second(w).sin() + 1, (z,)),
            (x,),
        )
        return chosen.relu() - y

    return FunctionOfLayers(compute, first=torch.nn.Linear(4, 4), second=torch.nn.Linear(4, 4))


class Sizes(torch.nn.Module):
    """Computes with the size of its input, before and behind a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.middle = torch.nn.Linear(8, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        halves = x.erf().view(x.shape[0] * 2, 4)
        whole = self.middle(halves.view(x.shape[0], 8))
        return whole.erf().view(x.shape[0] * 4, 2), halves


def counter() -> torch.nn.Module:
    """Keeps state from call to call, and has an output whose size depends on it."""

    def count(net: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        net.total.add_(net.layer(x).sum(0))
        return net.total * 2, torch.nonzero(net.total > 0)

    return FunctionOfLayers(count, layer=torch.nn.Linear(4, 4), total=torch.zeros(4))


def outside() -> torch.nn.Module:
    """Has a branch with an operator that is not core ATen, and uses a weight in it and elsewhere."""

    def compute(net: Any, x: Tensor) -> Tensor:
        y = net.layer(x)
        z = torch.cond(x.sum() > 0, lambda w: net.layer(w) - w.min(), lambda w: net.layer(w).abs(), (y,))
        return z * y.min()

    return FunctionOfLayers(compute, layer=torch.nn.Linear(4, 4))
