"""Builders of models with several methods."""

# ruff: noqa: D102 - a module of a network has no more to say than its class
from __future__ import annotations

from collections.abc import Sequence

import torch
from pteforge.configs.definition import MethodDefinition, ModelDefinition
from torch import nn


class Scale(nn.Module):
    """Multiplies by weights, each one's product squashed."""

    def __init__(self, *weights: nn.Parameter) -> None:
        super().__init__()
        self.weights = nn.ParameterList(weights)

    def forward(self, values):
        for weight in self.weights:
            values = torch.tanh(values * weight)
        return values


def scales():
    """Two methods that have one weight of three in common."""
    shared, own, other = (nn.Parameter(torch.randn(1, 64)) for _ in range(3))
    return ModelDefinition(
        {
            "forward": MethodDefinition(Scale(shared, own), [(torch.randn(2, 64),)]),
            "encode": MethodDefinition(Scale(other, shared), [(torch.randn(3, 64),)]),
        }
    )


class Reader(nn.Module):
    """Embeds tokens and transforms them: all of its weights are the writer's."""

    def __init__(self, embedding: nn.Embedding, body: nn.Module) -> None:
        super().__init__()
        self.embedding = embedding
        self.body = body

    def forward(self, tokens):
        return self.body(self.embedding(tokens))


class Writer(Reader):
    """Goes back from states to tokens, by the same weights."""

    def forward(self, tokens):
        state = super().forward(tokens).tanh()
        return self.body(state).softmax(-1)


def readers_and_writers(methods: Sequence[str] = ("encode", "decode")):
    """Two methods with the same weights, 0.3 MB of them, or one of the methods."""
    embedding, body = nn.Embedding(256, 128), nn.Sequential(nn.Linear(128, 192), nn.ReLU(), nn.Linear(192, 128))
    made = {
        "encode": MethodDefinition(Reader(embedding, body), [(torch.arange(4).reshape(1, 4),)]),
        "decode": MethodDefinition(Writer(embedding, body), [(torch.arange(1).reshape(1, 1),)]),
    }
    return ModelDefinition({method: made[method] for method in methods})
