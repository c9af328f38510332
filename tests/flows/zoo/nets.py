"""Builders of small models for tests."""

from __future__ import annotations

import torch


class Net(torch.nn.Module):
    """Two layers for a backend to delegate and to fuse."""

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, width, dtype=dtype)
        self.second = torch.nn.Linear(width, 3, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, 4] to [batch, 3]."""
        return self.second(torch.relu(self.first(x)))


def linear(width: int = 8, dtype: str = "float32") -> tuple[torch.nn.Module, tuple[torch.Tensor]]:
    """Two linear layers."""
    kind = getattr(torch, dtype)
    return Net(width, kind), (torch.randn(2, 4, dtype=kind),)


def conv() -> tuple[torch.nn.Module, tuple[torch.Tensor]]:
    """XNNPACK delegates all of it."""
    return torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Sigmoid()), (torch.randn(1, 1, 8, 8),)
