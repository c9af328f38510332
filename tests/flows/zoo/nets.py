"""Small models for tests: each builder gives a module and its example inputs."""

from __future__ import annotations

import torch


class Net(torch.nn.Module):
    """Two layers, so that a backend has something to delegate and something to fuse."""

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        """Takes the size between the layers."""
        super().__init__()
        self.first = torch.nn.Linear(4, width, dtype=dtype)
        self.second = torch.nn.Linear(width, 3, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Takes [batch, 4], gives [batch, 3]."""
        return self.second(torch.relu(self.first(x)))


class Convolution(torch.nn.Module):
    """Takes [1, 1, 8, 8], gives [1, 2, 6, 6]."""

    def __init__(self) -> None:
        """Has nine weights per channel."""
        super().__init__()
        self.convolution = torch.nn.Conv2d(1, 2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Convolves and squashes; XNNPACK takes both."""
        return torch.sigmoid(self.convolution(x))


def linear(width: int = 8, dtype: str = "float32") -> tuple[torch.nn.Module, tuple[torch.Tensor]]:
    """Two linear layers."""
    kind = getattr(torch, dtype)
    return Net(width, kind), (torch.randn(2, 4, dtype=kind),)


def conv() -> tuple[torch.nn.Module, tuple[torch.Tensor]]:
    """One convolution."""
    return Convolution(), (torch.randn(1, 1, 8, 8),)
