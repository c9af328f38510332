"""Builders of models with several methods."""

# ruff: noqa: D102 - a module of a network has no more to say than its class
from __future__ import annotations

from collections.abc import Sequence

import torch
from pteforge.configs.definition import MethodCall, MethodDefinition, ModelDefinition
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


def readers_and_writers(methods: Sequence[str] = ("encode", "decode"), width: int = 128):
    """Two methods with the same weights, 0.3 MB of them for the narrowest, or one of the methods."""
    inner = width * 3 // 2
    embedding, body = (
        nn.Embedding(256, width),
        nn.Sequential(nn.Linear(width, inner), nn.ReLU(), nn.Linear(inner, width)),
    )
    made = {
        "encode": MethodDefinition(Reader(embedding, body), [(torch.arange(4).reshape(1, 4),)]),
        "decode": MethodDefinition(Writer(embedding, body), [(torch.arange(1).reshape(1, 1),)]),
    }
    return ModelDefinition({method: made[method] for method in methods})


class Head(nn.Module):
    """A linear layer whose weight is an embedding's."""

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        self.embedding = embedding

    def forward(self, states):
        return nn.functional.linear(states, self.embedding.weight)


def tied():
    """One method looks words up, the other one compares states with all of them: one weight, two kinds of use."""
    embedding = nn.Embedding(256, 128)
    return ModelDefinition(
        {
            "encode": MethodDefinition(embedding, [(torch.arange(4).reshape(1, 4),)]),
            "decode": MethodDefinition(Head(embedding), [(torch.randn(1, 128),)]),
        }
    )


class Cache(nn.Module):
    """Two rows of state."""

    def __init__(self, first: float = 0.5) -> None:
        super().__init__()
        self.register_buffer("rows", torch.full((2, 4), first))


class Write(nn.Module):
    """Adds to the state."""

    def __init__(self, cache: nn.Module) -> None:
        super().__init__()
        self.cache = cache

    def forward(self, values):
        self.cache.rows.add_(values)
        return values * 2


class WriteAndRead(Write):
    """Adds to the state and gives what it is then."""

    def forward(self, values):
        super().forward(values)
        return self.cache.rows * 1.0


class Read(Write):
    """Only reads the state: to a partitioner it looks like a constant."""

    def forward(self, values):
        return self.cache.rows + values


def cached(*, one_cache: bool = True):
    """Methods with state in common, and calls whose results depend on the calls before them."""
    cache = Cache()
    methods = {"prefill": Write(cache), "decode": WriteAndRead(cache), "peek": Read(cache if one_cache else Cache(2))}
    ones = (torch.ones(2, 4),)
    calls = [MethodCall(method, ones) for method in ("peek", "prefill", "peek", "decode", "decode", "prefill", "peek")]
    return ModelDefinition(
        {name: MethodDefinition(module, [ones]) for name, module in methods.items()}, sequences=[calls, calls[1:3]]
    )


def unknown_call():
    """A sequence of calls with one of a method that is not there."""
    return ModelDefinition(
        {"forward": MethodDefinition(nn.ReLU(), [(torch.ones(2),)])}, sequences=[[MethodCall("decode", ())]]
    )


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


def odd_constant():
    """A constant that no file can have."""
    return ModelDefinition({"forward": MethodDefinition(nn.ReLU(), [(torch.ones(2),)])}, {"odd": [1, 1j]})


class Shuffle(nn.Module):
    """An operator that is decomposed unless it is kept, and that the portable kernels have."""

    def forward(self, image):
        return torch.pixel_shuffle(image, 2) + 1


def shuffles():
    """Two methods that do the same."""
    return ModelDefinition({name: MethodDefinition(Shuffle(), [(torch.randn(1, 8, 2, 2),)]) for name in ("one", "two")})


def sequential():
    """Two methods of three layers each, with something between that XNNPACK does not take."""

    class Arcs(nn.Module):
        """XNNPACK has no `atan`."""

        def forward(self, values):
            return torch.atan(values)

    def layers():
        return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), Arcs(), nn.Linear(4, 4))

    return ModelDefinition({name: MethodDefinition(layers(), [(torch.randn(2, 4),)]) for name in ("encode", "decode")})


class Offset(nn.Module):
    """Adds numbers that are written in its code."""

    def __init__(self, offset: float) -> None:
        super().__init__()
        self.offset = offset

    def forward(self, values):
        return values + torch.tensor([self.offset, 1.0]).repeat(8)


def namesakes():
    """Two methods of layers that are called the same and are not the same, with a second layer in common."""
    torch.manual_seed(8)
    common = nn.Linear(16, 16)
    offsets = {"forward": 0.5, "encode": 0.25}
    modules = {name: nn.Sequential(nn.Linear(16, 16), common, Offset(each)) for name, each in offsets.items()}
    return ModelDefinition(
        {name: MethodDefinition(module.eval(), [(torch.randn(2, 16),)]) for name, module in modules.items()}
    )


class Folded(nn.Module):
    """Adds what can be computed ahead of time."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.register_buffer("value", torch.full((16,), value))

    def forward(self, values):
        return values + torch.exp(self.value)


def folded():
    """Two methods that add different things."""
    return ModelDefinition(
        {
            name: MethodDefinition(Folded(value), [(torch.randn(2, 16),)])
            for name, value in {"forward": 0.5, "encode": 0.25}.items()
        }
    )
