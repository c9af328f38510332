"""Builders of networks with linear layers, and functions that change them."""

from __future__ import annotations

import importlib
from functools import cache

import torch
from pteforge.configs.definition import MethodDefinition, ModelDefinition
from torch import nn
from torch.export import Dim


def stack():
    """Three linear layers by name."""
    layers = {"first": nn.Linear(64, 32), "act": nn.ReLU(), "second": nn.Linear(32, 64), "head": nn.Linear(64, 8)}
    module = nn.Sequential()
    for name, layer in layers.items():
        module.add_module(name, layer)
    return module, (torch.randn(4, 64),)


def layer_of_any_batch():
    """A linear layer with a batch that may vary."""
    method = MethodDefinition(nn.Sequential(nn.Linear(64, 16)), [(torch.randn(4, 64),)], ({0: Dim("n", min=2, max=9)},))
    return ModelDefinition({"forward": method})


def one_layer():
    """A model that is a layer itself."""
    return nn.Linear(64, 16), (torch.randn(2, 64),)


def odd_stack():
    """A layer whose input features 32 does not divide."""
    return nn.Sequential(nn.Linear(64, 30), nn.Linear(30, 8)), (torch.randn(2, 64),)


def tagger():
    """An embedding and a linear layer."""
    module = nn.Sequential()
    module.add_module("words", nn.Embedding(16, 32))
    module.add_module("tags", nn.Linear(32, 8))
    return module, (torch.arange(6).reshape(2, 3),)


def two_methods():
    """Methods with layers of other names that share one."""
    shared = nn.Linear(64, 64)
    encoder, decoder = nn.Sequential(), nn.Sequential()
    encoder.add_module("shared", shared)
    decoder.add_module("shared", shared)
    decoder.add_module("only_here", nn.Linear(64, 8))
    example = (torch.randn(2, 64),)
    return ModelDefinition(
        {"encode": MethodDefinition(encoder, [example]), "decode": MethodDefinition(decoder, [example])}
    )


HIDDEN = "hidden"


@cache
def kept():
    """A model that is made once."""
    return stack()


def double(module):
    """Changes in place."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(2)


def wrapped(module, factor):
    """Gives another module."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module
            self.dropout = nn.Dropout(0.5)

        def forward(self, values):
            return self.dropout(self.inner(values) * factor)

    return Scaled()


def no_module(module):
    """Gives something else."""
    return [module]


def failing(module):
    """Raises."""
    raise KeyError(type(module).__name__)


def by_hidden_plugin(module):
    """Calls what no reading of this file tells."""
    return importlib.import_module(f"{HIDDEN}_plugin").change(module)
