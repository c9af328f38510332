"""Builders of models that lower. A test names one as a zoo file does: `builders:NAME`."""

import copy
import os
import random
import threading
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import networks
import numpy as np
import torch
from networks import Function, FunctionOfLayers
from pteforge.configs.model import MethodCall, MethodDefinition, ModelDefinition
from torch import nn
from torch.export import Dim

POSITIVE, LARGE, NEGATIVE = (torch.ones(2, 4),), (torch.full((2, 4), 9.0),), (-torch.ones(2, 4),)
"""An example for each way that control flow can go."""


def dynamic(module, *examples, low: int = 1, high: int = 8):
    """A model of one method whose first input's first dimension varies between bounds."""
    shapes = ({0: Dim("batch", min=low, max=high)},)
    return ModelDefinition({"forward": MethodDefinition(module, [(example,) for example in examples], shapes)})


def methods(*inputs, **modules):
    """A model of methods that take the same inputs."""
    return ModelDefinition({name: MethodDefinition(module, [inputs]) for name, module in modules.items()})


def named_layers(**layers):
    """A sequence of layers with names."""
    module = nn.Sequential()
    for name, layer in layers.items():
        module.add_module(name, layer)
    return module


# Keyword inputs.


def keywords():
    return networks.Keywords(), (torch.ones(2),), {"shift": torch.full((2,), 1.0), "factor": torch.full((2,), 3.0)}


def only_keywords():
    return networks.Attention(), {"memory": torch.randn(1, 5, 8), "hidden": torch.randn(1, 3, 8)}


class EagerKeywords:
    """With the method of ExecuTorch's EagerModelBase for keywords."""

    def get_eager_model(self):
        return networks.Keywords()

    def get_example_inputs(self):
        return (torch.ones(2),)

    def get_example_kwarg_inputs(self):
        return {"shift": torch.full((2,), 1.0), "factor": torch.full((2,), 3.0)}

    def get_dynamic_shapes(self):
        size = Dim("size", min=1, max=9)
        return {"values": {0: size}, "shift": {0: size}, "factor": {0: size}}


def two_methods_with_keywords():
    """Methods that share a module, several examples of each, and sequences of calls."""
    net, words = networks.Attention(), Dim("words", min=2, max=16)
    hidden, memory, mask = torch.randn(1, 3, 8), torch.randn(1, 5, 8), torch.tensor([[1.0, 1, 1, 1, 0]])
    masked = [{"memory": memory, "mask": mask}, {"mask": mask * 0.5, "memory": memory * 2}]
    shapes = {"hidden": None, "memory": {1: words}, "mask": {1: words}}
    return ModelDefinition(
        {
            "cross": MethodDefinition(net, [(hidden,), (hidden + 1,)], shapes, masked),
            "own": MethodDefinition(net, example_kwarg_inputs=[{"hidden": hidden, "scale": 0.5}]),
        },
        sequences=[
            [MethodCall("own", (), {"hidden": hidden, "scale": 0.5}), MethodCall("cross", (hidden,), masked[1])]
        ],
    )


# Modules that `copy.deepcopy` refuses.


def weight_norm():
    """The old function, whose weight is the result of a computation."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.utils.weight_norm(nn.Linear(4, 3)), (torch.randn(2, 4),)


def ran_before():
    """A cache that an earlier call has written to, with gradients."""
    net, example = networks.Remembers(), (torch.randn(1, 2, 4), torch.tensor([1, 2]))
    net(*example)
    net.cache = net.cache * 0
    return net, example


def with_a_lock():
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    net[1].lock, net.opened = threading.Lock(), (name for name in ())
    return net, (torch.randn(2, 4),)


# Outputs of other classes than tuples, lists and dicts.


class Pair(NamedTuple):
    """A pair, which torch does not know how to write down."""

    first: Any
    second: Any


@dataclass
class Registered:
    """A pair that torch knows."""

    first: torch.Tensor
    second: torch.Tensor


torch.export.register_dataclass(Registered)


@dataclass
class Unregistered:
    """What torch does not know."""

    first: torch.Tensor


def named_tuple():
    return Function(lambda x: Pair(x + 1, [Pair(x * 2, x)])), (torch.ones(3),)


def data_class():
    return Function(lambda x: Registered(x + 1, x * 2)), (torch.ones(3),)


def returned_type():
    """What torch's functions with several outputs return."""
    return Function(lambda x: x.max(0)), (torch.tensor([[1.0, 2], [3, 0]]),)


def named_tuple_as_input():
    return Function(lambda pair: pair.first - pair.second), (Pair(torch.ones(3), torch.zeros(3)),)


def unregistered():
    return Function(lambda x: Unregistered(x + 1)), (torch.ones(3),)


def sorted_values():
    return Function(lambda x: x.sort().values), (torch.tensor([2.0, 1, 3]),)


def half_inside():
    """Computes in float16, and returns float32."""
    layer = nn.Linear(64, 64).half()
    module = Function(lambda x: layer(x.half()).float())
    module.layer = layer
    return module, (torch.randn(2, 64),)


def int8_inside():
    """Computes in int8, with scales that it finds on the way, and returns float32."""
    operators = torch.ops.quantized_decomposed

    def quantized(x):
        scales, zeros = operators.choose_qparams_per_token_asymmetric.default(x, torch.int8)
        small = operators.quantize_per_token.default(x, scales, zeros, -128, 127, torch.int8)
        return operators.dequantize_per_token.default(small, scales, zeros, -128, 127, torch.int8, torch.float32)

    return Function(quantized), (torch.randn(4, 64),)


def without_upper_bound():
    shapes = ({0: Dim("batch", min=1)},)
    return ModelDefinition({"forward": MethodDefinition(nn.Linear(4, 3), [(torch.ones(2, 4),)], shapes)})


# One method.


def separable():
    """A depthwise convolution between two others, pooled."""
    wide, deep = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, 1, 1, groups=8)
    layers = (wide, nn.ReLU(), deep, nn.ReLU(), nn.Conv2d(8, 12, 1), nn.AvgPool2d(2))
    return nn.Sequential(*layers), (torch.randn(1, 3, 32, 32),)


def perceptron():
    """Linear layers only."""
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8)), (torch.randn(1, 16),)


def volumes():
    """Convolutions of three dimensions."""
    return nn.Sequential(nn.Conv3d(2, 4, 3), nn.ReLU(), nn.Conv3d(4, 2, 1)), (torch.randn(1, 2, 6, 6, 6),)


def half():
    """A network in float16."""
    return nn.Linear(4, 4).half(), (torch.randn(1, 4).half(),)


def wide_conv():
    return nn.Conv2d(8, 16, 3), (torch.randn(1, 8, 6, 6),)


def conv_net():
    return networks.ConvNet(), (torch.randn(1, 3, 8, 8),)


def channels_last():
    """An input and outputs with channels last in memory."""
    return nn.Conv2d(3, 4, 3), (torch.randn(1, 3, 8, 8).to(memory_format=torch.channels_last),)


def two_layouts():
    """Examples that lie in memory in different orders, of which the first one is traced."""
    image = torch.randn(1, 3, 8, 8)
    return networks.ConvNet(), [(image,), (image.to(memory_format=torch.channels_last),)]


def streaming():
    """A layer over a running mean of what it was given, which calibration changes."""
    example = (torch.randn(2, 16),)
    calls = [MethodCall("forward", inputs) for inputs in (example, *[(torch.zeros(2, 16),)] * 2)]
    layers = {"linear": nn.Linear(16, 8)}
    state = {"mean": torch.full((2, 16), 0.25), "calls": torch.zeros(1, dtype=torch.int64)}

    def mean(net, values):
        net.calls += 1
        net.mean.mul_(0.5).add_(values)
        return net.linear(net.mean), net.calls + 0

    module = FunctionOfLayers(mean, **layers, **state)
    return ModelDefinition({"forward": MethodDefinition(module, [example])}, sequences=[calls])


def transposed_weight():
    """A parameter that passes compute something from: its transpose."""
    net = FunctionOfLayers(lambda net, values: values * net.weight.t(), weight=nn.Parameter(torch.randn(6, 4)))
    return net, (torch.randn(4, 6),)


def shared_input():
    """Convolutions of two kinds that take the same input, which XNNPACK quantizes in different ways."""
    layers = {"one": nn.Conv2d(8, 8, 1), "other": nn.Conv2d(8, 8, 3, padding=1)}
    return FunctionOfLayers(lambda net, x: (net.one(x), net.other(x)), **layers), (torch.randn(2, 8, 16, 16),)


def images():
    """A convolution over batches of up to 64, traced with 2."""
    return dynamic(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), torch.randn(2, 3, 8, 8), high=64)


def halves():
    """An operator that returns a list of tensors, for batches of several sizes."""
    return dynamic(nn.Sequential(Function(lambda x: torch.mul(*x.split(3, dim=1)))), torch.randn(2, 6))


def sequences():
    """A convolution over one dimension, and a dimension more, for sequences and batches of several sizes."""
    module = nn.Sequential(nn.Conv1d(4, 4, 3, padding=1), nn.ReLU(), Function(lambda x: x.unsqueeze(-1) * 2))
    dims = {0: Dim("batch", min=1, max=8), 2: Dim("length", min=8, max=32)}
    return ModelDefinition({"forward": MethodDefinition(module, [(torch.randn(2, 4, 16),)], (dims,))})


def skips(step: int | None = None):
    """Images whose heights are multiples of a number, if one is given."""
    shapes = ({2: step * Dim("rows", min=8 // step, max=32 // step)},) if step else None
    return ModelDefinition({"forward": MethodDefinition(networks.Skips(), [(torch.randn(1, 3, 16, 8),)], shapes)})


def leads():
    """A layer of all rows but the first, next to others, which are fewer by one: [n + 1, 8] and [n, 8] to [n, 8]."""
    module = FunctionOfLayers(lambda self, rows, others: self.linear(rows)[1:] + others, linear=nn.Linear(8, 8))
    example, rows = (torch.randn(5, 8), torch.randn(4, 8)), Dim("rows", min=2, max=8)
    return ModelDefinition({"forward": MethodDefinition(module, [example], (({0: rows + 1}, {0: rows}),))})


def heads():
    """Attention of two heads, for sequences and batches of several sizes."""
    dims = {0: Dim("batch", min=1, max=8), 1: Dim("length", min=2, max=32)}
    return ModelDefinition({"forward": MethodDefinition(networks.Heads(), [(torch.randn(2, 4, 8),)], (dims,))})


def products():
    """Layers that quantizers do not know as such."""
    return networks.Products(), (torch.randn(2, 5, 16),)


def computed():
    """Layers whose weights are no constants."""

    def compute(net, x, weight):
        x = net.own(x)
        net.state.copy_(net.state * 0.5 + x.mean())
        made = net.makes(weight).mean(0).reshape(6, 4)
        return tuple(nn.functional.linear(x, each) for each in (weight, made, net.state))

    layers = {"own": nn.Linear(4, 4), "makes": nn.Linear(4, 24)}
    return FunctionOfLayers(compute, **layers, state=torch.randn(6, 4)), (torch.randn(3, 4), torch.randn(6, 4))


def rotary():
    """Quantized for XNNPACK, ExecuTorch makes partitions of it that depend on each other."""

    def compute(net, tokens, frequencies):
        angles = (frequencies * 2.0).cumsum(1).cos()
        return net.query(tokens).cumsum(1) * 2.0, net.key(tokens), angles

    net = FunctionOfLayers(compute, query=nn.Linear(8, 8), key=nn.Linear(8, 8))
    return net, (torch.randn(2, 4, 8), torch.randn(2, 4, 8))


def of_any_length(network: str):
    """A network by name, for sequences and batches of several sizes."""
    dims = {0: Dim("batch", min=1, max=8), 1: Dim("length", min=2, max=32)}
    return ModelDefinition({"forward": MethodDefinition(getattr(networks, network)(), [(torch.randn(2, 9),)], (dims,))})


def planted(rows: int = 5, *, whole: bool = False):
    """Without faults, which `edge_passes:plant` plants; of positive integers if they are `whole`."""
    example = torch.arange(4 * rows).reshape(rows, 4) if whole else torch.randn(rows, 4)
    return dynamic(networks.Planted(), example, low=2, high=64)


def neighbors():
    """Sizes that torch adds guards to: it refuses `Dim`s, and takes `Dim.AUTO`."""
    dims = {0: Dim.AUTO(min=1, max=4), 1: Dim.AUTO(min=1, max=32)}
    return ModelDefinition({"forward": MethodDefinition(networks.Neighbors(), [(torch.randn(2, 9, 8),)], (dims,))})


def mlp(width: int = 8):
    """[batch, 4] to [batch, 3], with two examples."""
    module = nn.Sequential(nn.Linear(4, width), nn.GELU(), nn.Linear(width, 3), nn.Softmax(-1))
    return dynamic(module, torch.randn(3, 4), torch.randn(5, 4), high=16)


def constant():
    """A model whose output is known, in exact arithmetic."""
    return Function(lambda values: values + 0.5), (torch.ones(4),)


def recurrent():
    """An LSTM of one layer."""
    return nn.LSTM(4, 4, batch_first=True), (torch.randn(1, 3, 4),)


def two_partitions():
    return networks.TwoPartitions(), (torch.randn(2, 4),)


def shuffle():
    """An operator that is decomposed unless it is kept, and that the portable kernels have."""
    return Function(lambda image: torch.pixel_shuffle(image, 2) + 1.0), (torch.randn(1, 8, 2, 2),)


def hardswish():
    """An operator that, kept whole, no portable kernel runs."""
    return nn.Hardswish(), (torch.randn(2, 4),)


def to_double():
    """A conversion, which is another operator with dim order than without."""
    return Function(lambda values: (values * 2.0).double()), (torch.randn(2, 4),)


def inverse():
    """An operator that is not core ATen, and that has no decomposition."""
    return Function(torch.linalg.inv), (torch.eye(3),)


def counter():
    """State, and several examples that must not see each other's."""
    return networks.Counter(), [(torch.randn(2, 4),), (torch.randn(2, 4),)]


def smoothing():
    """State that depends on parameters."""

    def smooth(net, values):
        net.state.mul_(0.5).add_(net.linear(values))
        return net.state + 1

    net = FunctionOfLayers(smooth, linear=nn.Linear(4, 4), state=torch.zeros(2, 4))
    return net, [(torch.randn(2, 4),), (torch.randn(2, 4),)]


def hands_out_state():
    """Outputs that alias a buffer, an input and a weight."""

    def hand_out(net, values):
        net.state.add_(values)
        return net.state, values, net.weight

    net = FunctionOfLayers(hand_out, weight=nn.Parameter(torch.ones(3)), state=torch.full((3,), 10.0))
    return net, [(torch.ones(3),), (torch.full((3,), 2.0),)]


def writes_to_inputs():
    """A model that changes its inputs, and a sequence of calls of it."""
    example = (torch.zeros(2, 4), torch.randn(2, 4), torch.ones(2, 4))
    method = MethodDefinition(networks.WritesToInputs(), [example])
    return ModelDefinition({"forward": method}, sequences=[[MethodCall("forward", example)] * 2])


def one_tensor_twice(kind: str):
    """Inputs of which the example has one object, or one memory, for several."""
    ids, values = torch.tensor([[3, 7, 11, 20]]), torch.randn(2, 4)
    mask, one, tokens = torch.ones(2, 4, dtype=torch.bool), torch.tensor(1.0), values[None]
    towers = {"query": nn.Embedding(50, 8), "item": nn.Embedding(50, 8)}
    attention, layer = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 4)
    models = {
        "ids": (lambda m, query, item: m.query(query).mean(1) * m.item(item).mean(1), towers, (ids, ids)),
        "masks": (lambda _, x, keep, show: (torch.where(keep, x, 0.0), x * show), {}, (values, mask, mask)),
        "scalars": (lambda _, x, low, high: torch.minimum(torch.maximum(x, low), high), {}, (values, one, one)),
        "views": (
            lambda m, q, k, v: m.layer(q, k, v)[0],
            {"layer": attention},
            (tokens, tokens[:], tokens.view(1, 2, 4)),
        ),
        "expanded": (lambda _, x, y: x.cumsum(0) - y, {}, (one.expand(3, 4), one.expand(3, 4))),
        "nested": (lambda _, x, y: x[0] - 2 * x[1]["other"] * y, {}, ([values, {"other": values}], values)),
        "weight": (lambda m, x: m.layer(x) - 3 * x, {"layer": layer}, (layer.weight,)),
    }
    if kind == "keywords":
        return networks.Keywords(), (values,), {"factor": values, "shift": values}
    function, layers, example = models[kind]
    return FunctionOfLayers(function, **layers), example


class Branches(nn.Module):
    """Computes something else for one row, or for odd numbers of rows, which torch.export does not see."""

    def __init__(self, alone) -> None:
        super().__init__()
        self.alone, self.layer = alone, nn.Linear(8, 8)

    def forward(self, rows):
        made = self.layer(rows)
        return made if self.alone(rows.shape[0]) else made.relu()


def hinted_sizes(kind: str):
    """Sizes that torch.export may narrow."""
    never = Branches(lambda _: False)
    module, size, dim = {
        "free": (never, 2, Dim.AUTO(min=1, max=4)),
        "one value": (never, 2, Dim.AUTO(min=1, max=2)),
        "not one": (Branches(lambda rows: rows == 1), 2, Dim.AUTO(min=1, max=4)),
        "two only": (Branches(lambda rows: rows == 1), 2, Dim.AUTO(min=1, max=2)),
        "even": (Branches(lambda rows: rows % 2 == 1), 4, Dim.AUTO(min=2, max=8)),
        "few": (Branches(lambda rows: rows > 5), 2, Dim.AUTO(min=1, max=8)),
        "example": (never, 1, Dim.AUTO(min=1, max=4)),
        "halves": (Function(lambda rows: rows.view(2, -1, 8).sum(0)), 4, 2 * Dim("half", min=1, max=4)),
    }[kind]
    shapes = {0: dim} if isinstance(module, Branches) else ({0: dim},)
    return ModelDefinition({"forward": MethodDefinition(module, [(torch.randn(size, 8),)], (shapes,))})


def hinted_batches(kind: str):
    """Two inputs, [b, 8] each, whose batches are left to torch.export, and some of which eager refuses."""
    neighbors = networks.Neighbors()

    def repeated(texts, images):  # as often as there are texts of one image
        return torch.cat([images.repeat(texts.shape[0] // images.shape[0], 1), texts], 1)

    def masked(values, mask):  # by the first rows of a mask, as transformers does it
        return values * mask[torch.arange(values.shape[0])]

    def guarded(values, mask):  # as above, with a guard that torch refuses `Dim`s of columns for
        return neighbors(values[:, :, None] * torch.ones(8)) * masked(values, mask)[:, :, None]

    def refused(values, others):
        if not torch.compiler.is_exporting() and values.shape[0] != others.shape[0]:
            raise ValueError("unequal")
        return values.sum(0) + others.sum(0)

    def few(values, others):  # two rows only
        if not torch.compiler.is_exporting() and values.shape[0] != 2:
            raise ValueError(f"{values.shape[0]} rows")
        return values.sum(0) * others

    def free(values, others):
        return values @ others.T

    def branches(values, others):  # before torch knows that both have as many rows
        return (values * 2 if values.shape[0] == 3 else values + 1) + others

    functions = {"repeated": repeated, "masked": masked, "guarded": guarded, "refused": refused, "free": free}
    functions["branches"] = branches
    function, hint = functions.get(kind, few), Dim.AUTO(min=1, max=4)
    rows = 4 if kind == "branches" else 2
    examples = [(torch.randn(rows, 8), torch.rand(rows, 8))]
    columns = {1: Dim.AUTO(min=3, max=32)} if kind == "guarded" else {}
    shapes = ({0: Dim("rows", min=1, max=4) if kind == "declared" else hint, **columns}, {0: hint, **columns})
    return ModelDefinition({"forward": MethodDefinition(Function(function), examples, (shapes,))})


def calibrated_on_one():
    """Of one row of small values, while random inputs of a larger batch have larger sums."""
    layers = [nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8)]
    return dynamic(nn.Sequential(*layers), torch.randn(2, 16), low=1, high=64)


def reads_its_table():
    """A table that one method looks rows up in, and another one multiplies with; both share it."""
    table, layer = nn.Embedding(96, 64), nn.Linear(64, 64)
    encode = FunctionOfLayers(lambda m, ids: m.layer(m.table(ids)), table=table, layer=layer)
    step = FunctionOfLayers(lambda m, ids: m.layer(m.table(ids))[:, -1] @ m.table.weight.t(), table=table, layer=layer)
    return methods(torch.tensor([[3, 9, 4]]), encode=encode, step=step)


def changes_input():
    """An in-place operation, on a copy of the input."""
    return Function(lambda values: values.clone().add_(1)), (torch.zeros(3),)


def with_dropout():
    """A model that was left in training mode."""
    return nn.Sequential(nn.Dropout(0.5)).train(), (torch.ones(64),)


class Anchors(nn.Module):
    """Keeps what it computes of a size until another one comes, as detectors do: [1, 3, h, w] to [1, 4, h * w]."""

    shape = None
    anchors = torch.empty(0)

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, image):
        found = self.conv(image)
        if self.shape != found.shape:
            rows, columns = (torch.arange(size) + 0.5 for size in found.shape[-2:])
            self.anchors = torch.stack(torch.meshgrid(rows, columns, indexing="ij")).view(2, -1)
            self.shape = found.shape
        start, end = found.flatten(2).split(2, 1)
        return torch.cat([self.anchors - start, self.anchors + end], 1)


def keeps_anchors():
    return Anchors(), (torch.randn(1, 3, 4, 5),)


def padded_encoder():
    """Eager's fast path gives zeros for padding; no program does."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    padding = torch.tensor([[False] * 6, [False] * 4 + [True] * 2])
    encoder = FunctionOfLayers(
        lambda m, tokens, padding: m.head(m.layers(tokens, src_key_padding_mask=padding)),
        layers=nn.TransformerEncoder(layer, 2),
        head=nn.Linear(16, 3),
    )
    return encoder, (torch.randn(2, 6, 16), padding)


def noisy():
    """Adds other random numbers at each call."""
    return Function(lambda x: x + torch.rand(2, 3)), (torch.ones(2, 3),)


def half_grid_sample():
    """Eager's kernel for half rounds positions, ExecuTorch's does not."""
    grid = (torch.rand(1, 10, 12, 2) * 2 - 1).half()
    sample = Function(lambda image, grid: nn.functional.grid_sample(image, grid, align_corners=False))
    return sample, (torch.randn(1, 3, 32, 40).half(), grid)


def cancelling():
    """A small difference of large values, of which float32 keeps some digits."""
    first = nn.Linear(64, 256)
    return FunctionOfLayers(
        lambda model, values: 100 * (model.first(values) - model.second(values)),
        first=first,
        second=_moved(first, 1e-4),
    ), (torch.randn(4, 64),)


def _moved(layer, share):
    moved = copy.deepcopy(layer)
    moved.weight.data *= 1 + share * torch.rand(64)
    return moved


def indices():
    """Indices of the largest and the smallest elements, which a little noise may move, and a mask."""

    def found(model, values):
        rows = model.layer(values)
        return rows.argmax(), rows.argmin(1), rows.argmax(-1, keepdim=True).to(torch.int32), rows > 0

    return FunctionOfLayers(found, layer=nn.Linear(6, 9)), (torch.randn(16, 6),)


# Control flow.


def branches():
    """`torch.cond` over a batch that varies."""
    return dynamic(networks.Branches(), *POSITIVE, *NEGATIVE)


def elementwise_branches():
    """`torch.cond` with branches of operators that XNNPACK takes, between others that it takes."""

    def compute(values):
        values = values * 2.0
        return torch.sigmoid(torch.cond(values.sum() > 0, lambda v: v + v, lambda v: v * v, (values,)))

    return Function(compute), [POSITIVE, NEGATIVE]


def branches_of_layers():
    """`torch.cond` whose branches have weights."""

    def choose(net, values):
        return torch.cond(values.sum() > 0, lambda v: net.first(v) + 1, lambda v: net.second(v) * 2, (values,))

    return FunctionOfLayers(choose, first=nn.Linear(4, 4), second=nn.Linear(4, 4)), [POSITIVE, NEGATIVE]


def nested_branches():
    return networks.NestedBranches(), [POSITIVE, LARGE, NEGATIVE]


def rows():
    """`map`."""
    return networks.Rows(), (torch.randn(3, 2, 4),)


def sums():
    """`scan`."""
    return networks.Sums(), (torch.zeros(4), torch.randn(3, 4))


# Inputs and outputs that are not just tensors.


def mixed_inputs():
    pair = (torch.randn(2, 2), torch.randn(2, 2))
    return networks.MixedInputs(), (pair, 3, {"bias": torch.randn(2)})


def mixed_outputs():
    """A tensor, constants of several kinds, and nothing."""

    def compute(values):
        return {"sum": values + 1, "count": 3, "nothing": None, "ratio": 0.5, "flag": True}

    return Function(compute), (torch.ones(3),)


def nested_outputs():
    """Outputs with a structure, which files do not have."""

    def compute(pair, offset):
        first, second = pair
        return {"sum": first + second + offset, "rest": [first - second, (first * second * offset,)]}

    return Function(compute), ((torch.zeros(2), torch.zeros(2)), torch.zeros(2))


def optional_input():
    """None as an input."""
    return Function(lambda values, mask: values + 1 if mask is None else values + mask), (torch.ones(3), None)


def size_output():
    """A number among the outputs that depends on the input's size."""
    return dynamic(networks.SizeOutput(), torch.ones(3), high=7)


def other_types():
    """Integers in; half precision, truth values and bytes out."""

    def convert(net, indices):
        return net.embed(indices).to(torch.float16), indices > 3, indices.to(torch.uint8)

    return FunctionOfLayers(convert, embed=nn.Embedding(10, 4)), (torch.arange(5),)


# Several methods.


def two_methods():
    """Two methods that share a linear layer, the first one not first by name, and two constants."""
    shared = nn.Linear(6, 6)
    return ModelDefinition(
        {
            "forward": MethodDefinition(nn.Sequential(shared, nn.ReLU(), nn.Linear(6, 2)), [(torch.randn(2, 6),)]),
            "encode": MethodDefinition(networks.Shifted(shared), [(torch.randn(1, 6),)]),
        },
        {"version": 3, "sample_rate": 16000.0},
    )


def unseeded():
    """Two methods of a layer whose bias no seed determines."""
    layer = nn.Linear(2, 2)
    nn.init.constant_(layer.bias, int.from_bytes(os.urandom(3), "big"))
    return methods(torch.randn(1, 2), forward=layer, encode=nn.Sequential(layer, nn.ReLU()))


def two_networks(width: int = 64):
    """Two methods whose weights are most of what they are."""
    forward, encode = (nn.Sequential(nn.Linear(width, size), nn.ReLU()) for size in (width, 8))
    return methods(torch.randn(32, width), forward=forward, encode=encode)


def two_stacks():
    """Two methods of three layers each, with something between that XNNPACK does not take."""

    def layers():
        return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), Function(torch.atan), nn.Linear(4, 4))

    return methods(torch.randn(2, 4), encode=layers(), decode=layers())


def two_shuffles():
    """Two methods that do the same."""
    one, image = shuffle()
    return methods(*image, one=one, two=shuffle()[0])


def namesakes():
    """Two methods of layers that are called the same and are not the same, with a second layer in common."""
    torch.manual_seed(8)
    common = nn.Linear(16, 16)

    def adding(number):
        return Function(lambda values: values + torch.tensor([number, 1.0]).repeat(8))

    forward, encode = (nn.Sequential(nn.Linear(16, 16), common, adding(number)) for number in (0.5, 0.25))
    return methods(torch.randn(2, 16), forward=forward, encode=encode)


def folded():
    """Two methods that add different things, which can be computed ahead of time."""
    forward, encode = (
        FunctionOfLayers(lambda net, values: values + torch.exp(net.value), value=torch.full((16,), number))
        for number in (0.5, 0.25)
    )
    return methods(torch.randn(2, 16), forward=forward, encode=encode)


def scales():
    """Two methods that have one weight of three in common."""
    shared, own, other = (nn.Parameter(torch.randn(1, 64)) for _ in range(3))
    return ModelDefinition(
        {
            "forward": MethodDefinition(networks.Scale(shared, own), [(torch.randn(2, 64),)]),
            "encode": MethodDefinition(networks.Scale(other, shared), [(torch.randn(3, 64),)]),
        }
    )


def readers_and_writers(methods: Sequence[str] = ("encode", "decode"), width: int = 128):
    """Two methods with the same weights, 0.3 MB of them for the narrowest, or one of the methods."""
    inner = width * 3 // 2
    embedding, body = (
        nn.Embedding(256, width),
        nn.Sequential(nn.Linear(width, inner), nn.ReLU(), nn.Linear(inner, width)),
    )
    made = {
        "encode": MethodDefinition(networks.Reader(embedding, body), [(torch.arange(4).reshape(1, 4),)]),
        "decode": MethodDefinition(networks.Writer(embedding, body), [(torch.arange(1).reshape(1, 1),)]),
    }
    return ModelDefinition({method: made[method] for method in methods})


def channels_last_weights():
    """Weights with channels last, one of them of two layers, and a buffer; one channel goes in, and one comes out."""
    first, last = nn.Conv2d(1, 8, 3, padding=1), nn.ConvTranspose2d(8, 1, 2, stride=2)
    middle = [nn.Conv2d(8, 8, 3, padding=1) for _ in range(2)]
    middle[1].weight = middle[0].weight
    net = FunctionOfLayers(lambda net, x: net.layers(x) * net.scale, layers=nn.Sequential(first, *middle, last))
    net.register_buffer("scale", torch.rand(1, 1, 16, 16))
    return net.to(memory_format=torch.channels_last), (torch.randn(1, 1, 8, 8),)


def linear_and_embedding():
    """A large table of embeddings, which quantizers leave, and a linear layer."""
    layers = {"table": nn.Embedding(512, 16), "last": nn.Linear(16, 16)}
    return FunctionOfLayers(lambda net, ids: net.last(net.table(ids)), **layers), (torch.arange(6).reshape(2, 3),)


def two_embeddings():
    """Two tables of embeddings, and a linear layer."""
    layers = {"table": nn.Embedding(64, 16), "small": nn.Embedding(8, 16), "last": nn.Linear(16, 16)}
    return FunctionOfLayers(lambda net, ids: net.last(net.table(ids) + net.small(ids)), **layers), (
        torch.arange(6).reshape(2, 3),
    )


def recurrent_layers(kind: str, **options):
    """Recurrent layers of one kind by the name of their class, for any batch, and a linear one."""
    layers = {"layers": getattr(nn, kind)(8, 32, batch_first=True, **options)}
    layers["last"] = nn.Linear(options.get("proj_size", 32) * (1 + options.get("bidirectional", False)), 4)
    return FunctionOfLayers(lambda net, x: net.last(net.layers(x)[0]), **layers), (torch.randn(2, 5, 8),)


def recurrent_cells():
    """One step of each kind of recurrent cell, with the states that it leaves."""
    kinds = {"lstm": nn.LSTMCell, "gru": nn.GRUCell, "rnn": nn.RNNCell}
    layers = {name: kind(32, 32) for name, kind in kinds.items()}

    def step(net, x, state):
        hidden, cell = net.lstm(x, (state, state.tanh()))
        return net.rnn(net.gru(hidden, state), state), cell

    return FunctionOfLayers(step, **layers), (torch.randn(2, 32), torch.randn(2, 32))


def notes():
    """One method writes the state, and another one, which does not change it, computes with it."""
    state, x = FunctionOfLayers(None, linear=nn.Linear(8, 8), notes=torch.zeros(2, 8)), (torch.randn(2, 8),)

    def write(net, x):
        net.of.notes.copy_(x)
        return net.of.linear(x)

    def read(net, x):
        return torch.cat([net.of.linear(net.of.notes) + x, net.of.linear(x) @ net.of.notes.T], 1)

    return ModelDefinition(
        {
            name: MethodDefinition(FunctionOfLayers(function, of=state), [x])
            for name, function in (("write", write), ("read", read))
        },
        sequences=[[MethodCall("write", x), MethodCall("read", x)]],
    )


def tied():
    """One method looks words up, the other one compares states with all of them: one weight, two kinds of use."""
    embedding = nn.Embedding(256, 128)
    return ModelDefinition(
        {
            "encode": MethodDefinition(embedding, [(torch.arange(4).reshape(1, 4),)]),
            "decode": MethodDefinition(networks.Head(embedding), [(torch.randn(1, 128),)]),
        }
    )


def cached(*, one_cache: bool = True):
    """Methods with state in common, and calls whose results depend on the calls before them."""
    cache = networks.Cache()
    made = {
        "prefill": networks.Write(cache),
        "decode": networks.WriteAndRead(cache),
        "peek": networks.Read(cache if one_cache else networks.Cache(2)),
    }
    ones = (torch.ones(2, 4),)
    calls = [MethodCall(method, ones) for method in ("peek", "prefill", "peek", "decode", "decode", "prefill", "peek")]
    return ModelDefinition(
        {name: MethodDefinition(module, [ones]) for name, module in made.items()}, sequences=[calls, calls[1:3]]
    )


def waves():
    """Two methods of sines and cosines, with something between that no test backend takes, and one without."""
    wave = Function(lambda values: torch.cos(torch.sin(torch.sin(values) + 1.0) * 2.0))
    return methods(torch.randn(2, 3), forward=wave, encode=wave, plain=nn.ReLU())


def nested_waves():
    """Sines inside of branches and outside."""

    def compute(values):
        chosen = torch.cond(values.sum() > 0, lambda v: torch.sin(v) + 1.0, lambda v: torch.sin(v) * 2.0, (values,))
        return torch.sin(chosen)

    return Function(compute), (torch.randn(2, 3),)


def constants():
    """A constant method of each type that a file can have."""
    return ModelDefinition(
        {"forward": MethodDefinition(nn.ReLU(), [(torch.ones(2),)])},
        {
            "integer": 2**40,
            "real": 0.5,
            "not_a_number": float("nan"),
            "flag": True,
            "text": "caf\u00e9",
            "type": torch.float16,
            "memory": torch.strided,
            "tensor": torch.arange(6).reshape(2, 3),
            "transposed": torch.arange(6.0).reshape(2, 3).t(),
            "half": torch.ones(2, dtype=torch.bfloat16),
            "several": [1, 2.5, "x", (False, torch.ones(1))],
            "named": {"low": -1, "high": [2]},
            "nothing": [],
        },
    )


# Layers that source transforms change.


def stack():
    """Three linear layers by name."""
    layers = {"first": nn.Linear(64, 32), "act": nn.ReLU(), "second": nn.Linear(32, 64), "head": nn.Linear(64, 8)}
    return named_layers(**layers), (torch.randn(4, 64),)


@cache
def kept():
    """A model that is made once."""
    return stack()


def blocks_of_any_batch(count: int = 2):
    """Equal ones, one after another."""
    blocks = [nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.ReLU()) for _ in range(count)]
    return dynamic(nn.Sequential(*blocks), torch.randn(2, 8))


def layer_of_any_batch():
    return dynamic(nn.Sequential(nn.Linear(64, 16)), torch.randn(4, 64), low=2, high=9)


def one_layer():
    """A model that is a layer itself."""
    return nn.Linear(64, 16), (torch.randn(2, 64),)


def uneven_norm():
    """A norm, two of whose channels are large, with a layer after it whose weights there are small."""
    net = named_layers(norm=nn.LayerNorm(64), layer=nn.Linear(64, 32))
    with torch.no_grad():
        net.norm.weight[[3, 9]] = 40
        net.layer.weight[:, [3, 9]] /= 40
    return net, (torch.randn(16, 64),)


def odd_stack():
    """A layer whose input features 32 does not divide."""
    return nn.Sequential(nn.Linear(64, 30), nn.Linear(30, 8)), (torch.randn(2, 64),)


def tagger():
    """An embedding and a linear layer."""
    return named_layers(words=nn.Embedding(16, 32), tags=nn.Linear(32, 8)), (torch.arange(6).reshape(2, 3),)


def dictionary():
    """A large embedding and a linear layer; every row of the table is looked up."""
    rows = torch.randperm(256, generator=torch.Generator().manual_seed(0)).reshape(4, 64)
    return named_layers(words=nn.Embedding(256, 64), tags=nn.Linear(64, 8)), (rows,)


def two_named_stacks():
    """Methods with layers of other names that share one."""
    shared = nn.Linear(64, 64)
    decode = named_layers(shared=shared, only_here=nn.Linear(64, 8))
    return methods(torch.randn(2, 64), encode=named_layers(shared=shared), decode=decode)


# Every form of builder.


def definition(width: int = 2):
    """All that a definition can have."""
    made = dynamic(nn.Linear(3, width), torch.randn(2, 3), torch.randn(4, 3)).methods
    return ModelDefinition(
        {**made, "encode": MethodDefinition(nn.ReLU(), [(torch.randn(2),)])},
        {"width": width, "rate": 0.5, "name": "small", "trained": False, "table": torch.arange(3)},
    )


def pair():
    """A module and one example."""
    return nn.Linear(3, 2), (torch.randn(2, 3),)


def pair_with_examples():
    """A module and several examples."""
    return nn.Linear(3, 2), [(torch.randn(2, 3),), (torch.randn(2, 3),)]


class EagerModel:
    """As ExecuTorch's examples are."""

    def __init__(self, width: int = 2) -> None:
        self._width = width

    def get_eager_model(self):
        return nn.Linear(3, self._width)

    def get_example_inputs(self):
        return (torch.randn(2, 3),)


class DynamicEagerModel(EagerModel):
    """The same with dynamic shapes."""

    def get_dynamic_shapes(self):
        return ({0: Dim("batch", min=1, max=8)},)


class Nested:
    """A class with a builder as an attribute."""

    build = staticmethod(pair)


def all_random():
    """Weights by torch, input by numpy, and a width by random."""
    width = random.randint(2, 50)  # noqa: S311 - as users do
    inputs = np.random.rand(2, 3).astype(np.float32)  # noqa: NPY002 - as users do
    return nn.Linear(3, width), (torch.from_numpy(inputs),)


def in_folder():
    """Reads a file of the zoo file's folder."""
    module = nn.Linear(3, 1, bias=False)
    nn.init.constant_(module.weight, float(Path("weight.txt").read_text()))
    return module, (torch.ones(1, 3),)


def nested_layers():
    """Linear layers inside of a module, and one next to it."""
    blocks = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 8))
    return named_layers(blocks=blocks, head=nn.Linear(8, 4)), (torch.randn(2, 8),)


def fragile_layer():
    """Linear layers; in one of them, one weight of a row is so large that eight bits make zeros of the others."""
    calm, fragile = nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False)
    with torch.no_grad():
        calm.weight[0] = 0  # what the large weights are multiplied with
        fragile.weight[:, 0] = 1000
    return named_layers(calm=calm, fragile=fragile), (torch.randn(4, 16),)


def loud_in_one_place():
    """Multiplies the only large number of its example, which random inputs have where the weights are zero."""
    first, second = nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False)
    with torch.no_grad():
        first.weight[:, 1:8] = 0
    return named_layers(first=first, second=second), (torch.cat([torch.full((1, 1), 100.0), torch.randn(1, 15)], 1),)


def loud_and_quiet():
    """Linear layers and two examples; with the scale of the first one, eight bits make zeros of the second one."""
    layers = {name: nn.Linear(16, 16, bias=False) for name in ("first", "second", "third", "fourth")}
    loud = torch.randn(4, 16) * 1000
    return ModelDefinition({"forward": MethodDefinition(named_layers(**layers), [(loud,), (torch.randn(4, 16),)])})


def described():
    """Says what its file is to say, and has a constant method of the name that an entry would get."""
    metadata = {"name": "its own", "license": "mit", "labels": ["a", "b", "c"], "extra": {"acme.build": 7}}
    method = MethodDefinition(nn.Linear(512, 3), [(torch.randn(2, 512),)])
    return ModelDefinition({"forward": method}, {"get_acme_build": "1.0"}, metadata=metadata)


# Dimensions with names.


def masked_mean():
    """Padding changes nothing of what is before it."""
    dims = {0: Dim("batch", min=1, max=8), 1: Dim("length", min=1, max=64)}
    examples = [(torch.randint(32, (2, 12)), torch.ones(2, 12)), (torch.randint(32, (3, 5)), torch.ones(3, 5))]
    method = MethodDefinition(networks.MaskedMean(), examples, (dims, dims), padding={"tokens": 0, "mask": 0})
    return ModelDefinition({"forward": method})


def mean(*, padding: bool = False):
    """The mean of all positions, which padding changes, whatever a builder says."""
    net = nn.Sequential(nn.Linear(8, 8), Function(lambda x: x.mean(1)))
    shapes = ({1: Dim("length", min=1, max=64)},)
    method = MethodDefinition(net, [(torch.randn(1, 9, 8),)], shapes, padding={"input": 0.0} if padding else {})
    return ModelDefinition({"forward": method})


def counted():
    """Positions from 0 on, with an embedding each, of rows that are one more than them."""
    net = FunctionOfLayers(lambda m, rows, at: rows[:, 1:] + m.table(at), table=nn.Embedding(64, 8))
    length = Dim("length", min=2, max=60)
    example = torch.randn(1, 6, 8), torch.arange(5)
    return ModelDefinition({"forward": MethodDefinition(net, [example], (({1: length + 1}, {0: length}),))})


def keeps_count(*, called: bool = False):
    """A module that changes its state, or is called in a sequence, as its bucket cannot be."""
    module = nn.Linear(4, 4) if called else networks.Counter()
    example, shapes = (torch.randn(2, 4),), ({0: Dim("batch", min=1, max=8)},)
    calls = [[MethodCall("forward", example)]] if called else []
    return ModelDefinition({"forward": MethodDefinition(module, [example], shapes)}, sequences=calls)


def heights():
    """Images of several heights; nearly all of a file are weights."""
    rest = (nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 512, 1), nn.Conv2d(512, 256, 1), nn.Flatten())
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), *rest)
    shapes = ({2: Dim("height", min=8, max=64)},)
    return ModelDefinition({"forward": MethodDefinition(module, [(torch.randn(1, 3, 24, 16),)], shapes)})


def counter_and_filter():
    """One method counts its calls, and another one needs memory of its own."""
    counter = FunctionOfLayers(lambda net, x: net.count.add_(x) + 0, count=torch.zeros(64))
    one, image = (torch.ones(64),), (torch.randn(1, 3, 8, 8),)
    count, smooth = MethodCall("count", one), MethodCall("smooth", image)
    return ModelDefinition(
        {"count": MethodDefinition(counter, [one]), "smooth": MethodDefinition(networks.ConvNet(), [image])},
        sequences=[[count, smooth, count, smooth, count]],
    )


def wide(layers: int):
    """Layers of 16 MiB each, whose memory can be told from that of a graph."""
    return nn.Sequential(*(nn.Linear(2048, 2048, bias=False) for _ in range(layers))), (torch.randn(1, 2048),)
