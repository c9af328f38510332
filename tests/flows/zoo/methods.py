"""A model of two methods."""

from __future__ import annotations

import importlib

import torch
from pteforge import MethodDefinition, ModelDefinition


class Encode(torch.nn.Module):
    """Takes [2, 4], gives [2, 4]."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Squashes."""
        return torch.tanh(x)


class Decode(torch.nn.Module):
    """Takes [2, 4], gives [2, 4] plus one; loads a module when it is traced."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Adds a constant of a module whose name no source tells."""
        return x + importlib.import_module("plugin_" + "small").make().in_features


def encode_and_decode() -> ModelDefinition:
    """Two methods and a constant one."""
    example = [(torch.ones(2, 4),)]
    methods = {"encode": MethodDefinition(Encode(), example), "decode": MethodDefinition(Decode(), example)}
    return ModelDefinition(methods, constant_methods={"version": 3})
