"""What models and recipes name besides builders and evaluators: calibration datasets and source transforms."""

import importlib

import torch
from torch import nn

HIDDEN = "hidden"
BATCHES = [torch.ones(2, 4), torch.zeros(5, 4)]
"""Samples that are there from the start, each the only input."""


def batches(count: int = 4, width: int = 4, scale: float = 1.0, rows: int = 3):
    """Samples for `builders:mlp`, made one after another."""
    for number in range(count):
        yield (torch.randn(rows, width) * scale * (number + 1),)


def numbered(count: int = 50):
    """A list of samples, each of its position."""
    return [(torch.full((3, 4), float(number)),) for number in range(count)]


def ramps(count: int = 3):
    """Samples of [2, 4], always the same."""
    for number in range(count):
        yield (torch.linspace(-number - 1, number + 2, 8).reshape(2, 4),)


def raising_batches():
    """Fails on the way."""
    yield torch.ones(2, 4)
    raise ValueError("the disk is full")


def double(module):
    """Changes a module in place."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(2)


def wrapped(module, factor):
    """Returns another module."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module
            self.dropout = nn.Dropout(0.5)

        def forward(self, values):
            return self.dropout(self.inner(values) * factor)

    return Scaled()


def no_module(module):
    """Returns something else."""
    return [module]


def failing(module):
    raise KeyError(type(module).__name__)


def by_hidden_plugin(module):
    """Calls a module of a name that no reading of this file tells."""
    return importlib.import_module(f"{HIDDEN}_plugin").change(module)
