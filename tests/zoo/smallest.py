"""The smallest case of each patch of torch and ExecuTorch, as a builder with the patch's name.

`CASES` has the recipe with which a model shows the fault.
"""

import torch
from builders import dynamic
from builders import heads as no_idle_decompositions  # noqa: F401 - a case
from builders import tied as constants_once  # noqa: F401 - a case
from networks import Function, FunctionOfLayers
from pteforge.configs.model import MethodDefinition, ModelDefinition
from torch import nn
from torch.export import Dim

PORTABLE = {"specializations": [{"target": "portable"}]}
XNNPACK = {"specializations": [{"target": "xnnpack"}]}
STATIC = {**XNNPACK, "quantize": {"quantizer": "xnnpack"}, "verify": {"min_sqnr_db": 20}}
DYNAMIC = {**XNNPACK, "quantize": {"quantizer": "xnnpack", "options": {"dynamic": True}}, "verify": {"min_sqnr_db": 20}}
CASES = {
    "take_numbers_as_tensors": PORTABLE,
    "no_idle_decompositions": PORTABLE,
    "unrefined_ranges": PORTABLE,
    "functions_of_sizes": PORTABLE,
    "whole_lists": PORTABLE,
    "full_for_empty": PORTABLE,
    "numbers_of_one_type": XNNPACK,
    "one_layout": PORTABLE,
    "copy_results_of_cond": PORTABLE,
    "floor_remainders": PORTABLE,
    "constants_once": XNNPACK,
    "uncompared_masks": PORTABLE,
    "comparable_strides": PORTABLE,
    "whole_dynamic_quantization": DYNAMIC,
    "mend_batch_norms": XNNPACK,
    "mend_dynamic_layouts": DYNAMIC,
    "mend_static_layouts": STATIC,
    "expand_tanh_gelu": XNNPACK,
}


def _of_any_batch(function, x):
    shapes = (({0: Dim("batch", min=1, max=8)},),)  # of a forward method with `*inputs`
    return ModelDefinition({"forward": MethodDefinition(Function(function), [(x,)], shapes)})


def take_numbers_as_tensors():
    return Function(lambda x: 17 % x), (torch.tensor([3, -3, 5]),)


def unrefined_ranges():
    return dynamic(nn.Conv2d(3, 4, 3), torch.randn(2, 3, 8, 8), low=1, high=64)


def functions_of_sizes():
    return _of_any_batch(lambda x: x * torch.sym_max(x.shape[0], 4), torch.randn(2, 3))


def whole_lists():
    return _of_any_batch(lambda x: x.chunk(2, 1)[0].relu(), torch.randn(2, 4))


def full_for_empty():
    return _of_any_batch(lambda x: torch.empty(x.shape[0], 2).fill_(1.0) + x[:, :2], torch.randn(2, 4))


def numbers_of_one_type():
    return nn.Hardsigmoid(), (torch.randn(2, 4),)


def one_layout():
    def shuffled(x):
        return torch.pixel_shuffle(x.permute(0, 3, 1, 2), 2).permute(0, 2, 3, 1)

    return Function(shuffled), (torch.randn(1, 3, 3, 8),)


def copy_results_of_cond():
    def both(x):
        one, other = (torch.cond(x.sum() > 0, lambda v: v.sin(), lambda v: v.cos(), (x * n,)) for n in (1, 2))
        return one + other

    return Function(both), (torch.ones(2, 3),)


def floor_remainders():
    return _of_any_batch(lambda x: x * (-x.shape[0] % 8), torch.randn(3, 2))


def uncompared_masks():
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    return nn.TransformerEncoder(layer, 1), (torch.randn(2, 5, 16), nn.Transformer.generate_square_subsequent_mask(5))


def comparable_strides():
    def joined(net, x):
        both = torch.cat([net.kept, x], dim=2)
        return both[:, :, None].expand(1, 2, 2, both.shape[2], 8).reshape(1, 4, both.shape[2], 8) * 2

    module = FunctionOfLayers(joined, kept=nn.Parameter(torch.randn(1, 2, 6, 8)))
    dims = (({2: Dim("n", min=1, max=24)},),)
    return ModelDefinition({"forward": MethodDefinition(module, [(torch.randn(1, 2, 7, 8),)], dims)})


def whole_dynamic_quantization():
    def summed(net, x):
        return net.of_input(x) + net.of_constant(torch.zeros_like(net.learned))

    layers = {"of_input": nn.Linear(16, 8), "of_constant": nn.Linear(16, 8)}
    return FunctionOfLayers(summed, **layers, learned=nn.Parameter(torch.randn(4, 16))), (torch.randn(4, 16),)


def mend_batch_norms():
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(5)), (torch.randn(2, 5, 4),)


def mend_dynamic_layouts():
    return FunctionOfLayers(lambda net, x: net.conv(nn.functional.pad(x, (1, 1))), conv=nn.Conv2d(4, 4, 3)), (
        torch.randn(1, 4, 6, 6),
    )


def mend_static_layouts():
    def used_twice(net, x):
        y = net.conv(x)
        return nn.functional.avg_pool2d(y, 2), y

    return FunctionOfLayers(used_twice, conv=nn.Conv2d(8, 8, 3, padding=1)), (torch.randn(1, 8, 8, 8),)


def expand_tanh_gelu():
    return nn.GELU("tanh"), (torch.randn(2, 16) * 3,)
