"""The models of fat.yaml, with random weights from the zoo's seed."""

from __future__ import annotations

import torch
from pteforge import MethodDefinition, ModelDefinition
from torch import nn


class TransformerBlock(nn.Module):
    """A pre-norm decoder block without a cache: attention, then a gated feed-forward layer."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.merge = nn.Linear(width, width, bias=False)
        self.norm_feed = nn.LayerNorm(width)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(batch, sequence, width) to the same shape."""
        normed = self.norm_attention(tokens)
        query, key, value = (self._split(layer(normed)) for layer in (self.query, self.key, self.value))
        weights = torch.softmax(query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5, dim=-1)
        attended = (weights @ value).transpose(1, 2).flatten(2)
        tokens = tokens + self.merge(attended)
        normed = self.norm_feed(tokens)
        return tokens + self.down(nn.functional.silu(self.gate(normed)) * self.up(normed))

    def _split(self, tokens: torch.Tensor) -> torch.Tensor:
        """(batch, sequence, width) to (batch, heads, sequence, width / heads)."""
        return tokens.unflatten(-1, (self.heads, -1)).transpose(1, 2)


def transformer_block(width: int = 512, heads: int = 8, hidden: int = 1536, sequence: int = 32) -> ModelDefinition:
    """Returns one block; with the default sizes, its linear layers have 13 MB of weights."""
    block = TransformerBlock(width, heads, hidden).eval()
    return ModelDefinition({"forward": MethodDefinition(block, [(torch.randn(1, sequence, width),)])})


class Encoder(nn.Module):
    """Features to vectors."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """(batch, features) to (batch, 128), of length 1."""
        return nn.functional.normalize(self.body(features), dim=-1)


class Scorer(nn.Module):
    """The similarity of two inputs."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """Two tensors (batch, features) to (batch,): the dot product of their vectors."""
        return (self.body(one) * self.body(other)).sum(-1)


def twin_tower() -> ModelDefinition:
    """Returns two methods that share all their weights."""
    body = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 128)).eval()
    one, other = torch.randn(2, 256), torch.randn(2, 256)
    return ModelDefinition(
        {
            "encode": MethodDefinition(Encoder(body), [(one,)]),
            "score": MethodDefinition(Scorer(body), [(one, other)]),
        },
        constant_methods={"dimensions": 128},
    )


class Residual(nn.Module):
    """Two 3x3 convolutions with batch norms, added to the input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        layers = [nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)]
        self.body = nn.Sequential(*layers, nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """(batch, channels, height, width) to the same shape."""
        return nn.functional.relu(image + self.body(image))


def residual_tower(channels: int = 256, depth: int = 2, size: int = 14) -> ModelDefinition:
    """Returns residual blocks and a classifier; with the default sizes, convolutions have 9 MB of weights."""
    blocks = nn.Sequential(*(Residual(channels) for _ in range(depth)))
    tower = nn.Sequential(nn.Conv2d(3, channels, 3, padding=1), blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = nn.Sequential(tower, nn.Linear(channels, 10)).eval()
    return ModelDefinition({"forward": MethodDefinition(model, [(torch.randn(1, 3, size, size),)])})
