"""Modules whose operators are matched with those of programs made from them."""

# ruff: noqa: D102 - a module of a network has no more to say than its class
from __future__ import annotations

import torch
from torch import nn


class Heads(nn.Module):
    """Values of one operator that go different ways, and one that is not used."""

    def forward(self, values):
        first, second, _ = values.chunk(3, dim=1)
        return torch.relu(second), torch.sigmoid(first)


class Squares(nn.Module):
    """A layer that decomposes into steps that all have the shape of its result."""

    def __init__(self) -> None:
        super().__init__()
        self.square = nn.Linear(3, 3)

    def forward(self, values):
        return torch.nn.functional.gelu(self.square(values))


class Dropping(nn.Module):
    """An operator that does nothing in inference."""

    def forward(self, values):
        return torch.nn.functional.dropout(values * 2, training=False) + 1


class Rounded(nn.Module):
    """A linear layer whose weight is computed, as quantization of a model's source leaves it."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, values):
        return torch.nn.functional.linear(values, (self.weight * 16).round() / 16, self.bias)


class Layers(nn.Sequential):
    """Two layers, with operators of the model's own around them."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))

    def forward(self, values):
        return super().forward(values * 2) * 3
