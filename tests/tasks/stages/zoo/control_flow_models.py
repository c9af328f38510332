"""Builders of models with control flow, each with examples for every branch."""

# ruff: noqa: D102 - a module of a network has no more to say than its class
from __future__ import annotations

import torch
from functorch.experimental.control_flow import map as map_rows
from pteforge.configs.definition import MethodDefinition, ModelDefinition
from torch import nn
from torch._higher_order_ops import scan, while_loop
from torch.export import Dim

POSITIVE, LARGE, NEGATIVE = (torch.ones(2, 4),), (torch.full((2, 4), 9.0),), (-torch.ones(2, 4),)


class Branches(nn.Module):
    """Layers with weights of their own in each branch, and one before."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.left, self.right = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, values):
        chosen = values.sum() > 0
        values = self.before(values)
        return torch.cond(chosen, lambda v: self.left(v).relu(), lambda v: self.right(v) * 2, (values,))


def branches():
    """A batch that varies, and an example for each branch."""
    method = MethodDefinition(Branches(), [POSITIVE, NEGATIVE], ({0: Dim("batch", min=1, max=8)},))
    return ModelDefinition({"forward": method})


class Nested(nn.Module):
    """A branch within a branch."""

    def forward(self, values):
        def small_or_large(v):
            return torch.cond(v.sum() > 20, lambda w: w - 3, lambda w: w * 3, (v,))

        return torch.cond(values.sum() > 0, small_or_large, lambda v: v * v, (values,))


def nested():
    """An example for each of the three ways."""
    return Nested(), [POSITIVE, LARGE, NEGATIVE]


class Rows(nn.Module):
    """The same layer for each row, one after another."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, rows):
        return map_rows(lambda row: self.layer(row).relu() + row, rows)


def rows():
    """`map`."""
    return Rows(), (torch.randn(3, 2, 4),)


class Sums(nn.Module):
    """Running sums, and what they were before each step."""

    def forward(self, first, rows):
        return scan(lambda total, row: (total + row, (total * row).clone()), first, rows, dim=0)


def sums():
    """`scan`."""
    return Sums(), (torch.zeros(4), torch.randn(3, 4))


class Loop(nn.Module):
    """As often as it takes."""

    def forward(self, count, values):
        return while_loop(lambda n, v: n < 5, lambda n, v: (n + 1, v * 2), (count, values))  # noqa: ARG005 - both take both


def loop():
    """`while_loop`."""
    return Loop(), (torch.tensor(0), torch.ones(2))
