"""The model of encoder_decoder.yaml: a translator with two methods that share their embeddings."""

from __future__ import annotations

import torch
from pteforge import MethodCall, MethodDefinition, ModelDefinition
from torch import nn
from torch.export import Dim


class Attention(nn.Module):
    """Attention from `states` to `memory`, which may be the same, without a mask."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.merge = (nn.Linear(width, width) for _ in range(4))

    def forward(self, states: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        """(1, tokens, width) and (1, others, width) to (1, tokens, width)."""
        query, key, value = self.query(states), self.key(memory), self.value(memory)
        query, key, value = (each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in (query, key, value))
        weights = torch.softmax(query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5, dim=-1)
        return self.merge((weights @ value).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """Attention and a feed-forward network, each with a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads)
        self.norm_attention, self.norm_feed = nn.LayerNorm(width), nn.LayerNorm(width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, states: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        """(1, tokens, width) and (1, others, width) to (1, tokens, width)."""
        states = states + self.attention(self.norm_attention(states), memory)
        return states + self.feed(self.norm_feed(states))


class Encoder(nn.Module):
    """Source tokens to memory."""

    def __init__(self, embedding: nn.Embedding, layer: Layer) -> None:
        super().__init__()
        self.embedding, self.layer = embedding, layer

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(1, tokens) to (1, tokens, width)."""
        states: torch.Tensor = self.embedding(tokens)
        return self.layer(states, states)


class Decoder(nn.Module):
    """Memory and the output so far to the next token, with the encoder's embedding."""

    def __init__(self, embedding: nn.Embedding, layer: Layer) -> None:
        super().__init__()
        self.embedding, self.layer = embedding, layer

    def forward(self, said: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        """(1, said) and (1, tokens, width) to a logit for each word, (1, vocabulary)."""
        states = self.layer(self.embedding(said), memory)
        return nn.functional.linear(states[:, -1], self.embedding.weight)


def translator(vocabulary: int = 1024, width: int = 64, heads: int = 4) -> ModelDefinition:
    """Returns both methods, for sentences of up to 64 tokens."""
    embedding = nn.Embedding(vocabulary, width)
    encoder, decoder = Encoder(embedding, Layer(width, heads)), Decoder(embedding, Layer(width, heads))
    source, said = torch.randint(vocabulary, (1, 9)), torch.randint(vocabulary, (1, 3))
    tokens, words = Dim("tokens", min=2, max=64), Dim("words", min=2, max=64)
    memory = torch.randn(1, 9, width)
    return ModelDefinition(
        {
            "encode": MethodDefinition(encoder, [(source,)], ({1: tokens},)),
            "decode": MethodDefinition(decoder, [(said, memory)], ({1: words}, {1: tokens})),
        },
        constant_methods={"get_vocab_size": vocabulary, "special_tokens": {"start": 0, "end": 1}},
        sequences=[[MethodCall("encode", (source,)), MethodCall("decode", (said, memory))]],
    )
