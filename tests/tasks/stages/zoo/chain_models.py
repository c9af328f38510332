"""Builders of small networks, one for each thing that lowering has to get right."""

# ruff: noqa: D102 - a module of a network has no more to say than its class
from __future__ import annotations

import torch
from pteforge.configs.definition import MethodDefinition, ModelDefinition
from torch import nn
from torch.export import Dim


class ConvNet(nn.Module):
    """Convolution, batch norm, ReLU, linear."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.linear = nn.Linear(4, 5)
        with torch.no_grad():
            self.norm.running_mean.normal_()
            self.norm.running_var.uniform_(0.5, 2)

    def forward(self, image):
        return self.linear(torch.relu(self.norm(self.conv(image))).mean((2, 3)))


def conv_net():
    """A module and a tuple of example inputs."""
    return ConvNet(), (torch.randn(1, 3, 8, 8),)


def mlp(width: int = 8):
    """An MLP whose batch varies."""
    module = nn.Sequential(nn.Linear(4, width), nn.GELU(), nn.Linear(width, 3), nn.Softmax(-1))
    batch = Dim("batch", min=1, max=16)
    method = MethodDefinition(module, [(torch.randn(3, 4),), (torch.randn(5, 4),)], ({0: batch},))
    return ModelDefinition({"forward": method})


class Encoder(nn.Module):
    """Adds a batch's mean to what another method computes with the same weights."""

    def __init__(self, shared: nn.Module) -> None:
        super().__init__()
        self.shared = shared

    def forward(self, values):
        return torch.sigmoid(self.shared(values)) + values.mean()


def two_methods():
    """Two methods that share a linear layer, the first one not first by name, and two constants."""
    shared = nn.Linear(6, 6)
    return ModelDefinition(
        {
            "forward": MethodDefinition(nn.Sequential(shared, nn.ReLU(), nn.Linear(6, 2)), [(torch.randn(2, 6),)]),
            "encode": MethodDefinition(Encoder(shared), [(torch.randn(1, 6),)]),
        },
        {"version": 3, "sample_rate": 16000.0},
    )


class Counter(nn.Module):
    """Counts its calls in a buffer and sums up its inputs in another."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(1))
        self.register_buffer("total", torch.full((2, 4), 0.5))

    def forward(self, values):
        self.calls.add_(1)
        self.total.add_(values)
        return self.linear(self.total) * self.calls


def counter():
    """A model with state, and several examples that must not see each other's."""
    return Counter(), [(torch.randn(2, 4),), (torch.randn(2, 4),)]


class Smoothing(nn.Module):
    """State that a layer's result goes into."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("state", torch.zeros(2, 4))

    def forward(self, values):
        self.state.mul_(0.5).add_(self.linear(values))
        return self.state + 1


def smoothing():
    """A model whose state depends on its parameters."""
    return Smoothing(), [(torch.randn(2, 4),), (torch.randn(2, 4),)]


class Conditional(nn.Module):
    """Two branches with weights of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(4, 4)
        self.right = nn.Linear(4, 4)

    def forward(self, values):
        values = values * 2
        return torch.cond(values.sum() > 0, lambda v: self.left(v).relu(), lambda v: self.right(v).sin(), (values,))


def conditional():
    """`torch.cond`, an example for each branch."""
    return Conditional(), [(torch.ones(2, 4),), (-torch.ones(2, 4),)]


class ConditionalElementwise(nn.Module):
    """Branches of operators that XNNPACK takes, between others that it takes."""

    def forward(self, values):
        values = values * 2
        chosen = torch.cond(values.sum() > 0, lambda v: v + v, lambda v: v * v, (values,))
        return torch.sigmoid(chosen)


def conditional_elementwise():
    """`torch.cond` that XNNPACK takes part in."""
    return ConditionalElementwise(), [(torch.ones(2, 4),), (-torch.ones(2, 4),)]


class TwoPartitions(nn.Module):
    """XNNPACK has no `atan`, so there are two partitions."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)

    def forward(self, values):
        return self.second(torch.atan(self.first(values)))


def two_partitions():
    """More than one delegate in one method."""
    return TwoPartitions(), (torch.randn(2, 4),)


class Shuffle(nn.Module):
    """An operator that is decomposed unless it is kept, and that the portable kernels have."""

    def forward(self, image):
        return torch.pixel_shuffle(image, 2) + 1


def shuffle():
    """For `preserve_operators`."""
    return Shuffle(), (torch.randn(1, 8, 2, 2),)


class ToDouble(nn.Module):
    """A conversion, which is another operator with dim order than without."""

    def forward(self, values):
        return (values * 2).double()


def to_double():
    """For `skip_dim_order`."""
    return ToDouble(), (torch.randn(2, 4),)


class Inverse(nn.Module):
    """An operator that is not core ATen, and that has no decomposition."""

    def forward(self, values):
        return torch.linalg.inv(values)


def inverse():
    """For `check_ir_validity`."""
    return Inverse(), (torch.eye(3),)


class Waves(nn.Module):
    """Sines and cosines, each with something between that no test backend takes."""

    def forward(self, values):
        return torch.cos(torch.sin(torch.sin(values) + 1) * 2)


def waves():
    """Two methods for the recording backend."""
    return ModelDefinition(
        {
            "forward": MethodDefinition(Waves(), [(torch.randn(2, 3),)]),
            "encode": MethodDefinition(Waves(), [(torch.randn(4),)]),
            "plain": MethodDefinition(nn.ReLU(), [(torch.randn(2),)]),
        }
    )


class NestedWaves(nn.Module):
    """Sines inside of branches and outside."""

    def forward(self, values):
        chosen = torch.cond(values.sum() > 0, lambda v: torch.sin(v) + 1, lambda v: torch.sin(v) * 2, (values,))
        return torch.sin(chosen)


def nested_waves():
    """Partitions in nested graphs."""
    return NestedWaves(), (torch.randn(2, 3),)


def keeps_hardswish():
    """An operator that, kept whole, no portable kernel runs."""
    return nn.Hardswish(), (torch.randn(2, 4),)


def two_networks(width: int = 64):
    """Two methods whose weights are most of what they are."""
    return ModelDefinition(
        {
            "forward": MethodDefinition(nn.Sequential(nn.Linear(width, width), nn.ReLU()), [(torch.randn(32, width),)]),
            "encode": MethodDefinition(nn.Sequential(nn.Linear(width, 8), nn.ReLU()), [(torch.randn(16, width),)]),
        }
    )


class AddHalf(nn.Module):
    """Exact arithmetic."""

    def forward(self, values):
        return values + 0.5


def constant():
    """A model whose output is known."""
    return AddHalf(), (torch.ones(4),)


def batches(count: int = 4, width: int = 4, scale: float = 1.0):
    """Calibration samples for `mlp`, made one after another."""
    for number in range(count):
        yield (torch.randn(3, width) * scale * (number + 1),)


BATCHES = [torch.ones(2, 4), torch.zeros(5, 4)]
"""Samples that are there from the start, each the only input."""


def raising_batches():
    """Fails under way."""
    yield torch.ones(2, 4)
    raise ValueError("the disk is full")


class NestedOutputs(nn.Module):
    """Nested inputs and outputs."""

    def forward(self, pair, offset):
        first, second = pair
        return {"sum": first + second + offset, "rest": [first - second, (first * second * offset,)]}


def nested_outputs():
    """A model whose inputs and outputs have a structure, which files do not."""
    return NestedOutputs(), ((torch.zeros(2), torch.zeros(2)), torch.zeros(2))
