"""Models that load a module by a computed name, which their source does not show."""

from __future__ import annotations

import importlib

import torch
from pteforge import MethodDefinition, ModelDefinition


def plugin(name: str) -> tuple[torch.nn.Module, tuple[torch.Tensor]]:
    """A layer from the module `plugin_<name>`."""
    module = importlib.import_module(f"plugin_{name}")
    return module.make(), (torch.ones(2, 4),)


class Encode(torch.nn.Module):
    """[2, 4] to [2, 4]."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x)


class Decode(torch.nn.Module):
    """[2, 4] to [2, 4]; loads a module by a computed name when it is traced."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + importlib.import_module("plugin_" + "small").make().in_features


def encode_and_decode() -> ModelDefinition:
    example = [(torch.ones(2, 4),)]
    methods = {"encode": MethodDefinition(Encode(), example), "decode": MethodDefinition(Decode(), example)}
    return ModelDefinition(methods, constant_methods={"version": 3})
