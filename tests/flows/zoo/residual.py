"""A network in which operators of a kind differ by their place only."""

from __future__ import annotations

import torch
from torch import nn


class Residual(nn.Module):
    """A convolution with batch norm, a residual one, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.classes = nn.Linear(8, 4)
        with torch.no_grad():
            self.norm.running_mean.normal_()
            self.norm.running_var.uniform_(0.5, 2)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """[batch, 3, 8, 8] to [batch, 4]."""
        kept = torch.relu(self.norm(self.first(image)))
        total = kept + self.second(kept)
        return self.classes(torch.relu(total).sum((2, 3)))


def residual() -> tuple[nn.Module, list[tuple[torch.Tensor]]]:
    return Residual(), [(torch.randn(2, 3, 8, 8),), (torch.randn(2, 3, 8, 8),)]


class Branches(nn.Module):
    """Two layers. Eight bits make zeros of most weights of one of them, of which the sum has a millionth."""

    def __init__(self) -> None:
        super().__init__()
        self.main = nn.Linear(16, 16)
        self.faint = nn.Linear(16, 16)
        with torch.no_grad():
            self.faint.weight[:, 0] = 1000

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """[batch, 16] to the same, of which the first of each row is not used."""
        values = torch.nn.functional.pad(values[:, 1:], (1, 0))
        return self.main(values) + 1e-6 * self.faint(values)


def branches() -> tuple[nn.Module, list[tuple[torch.Tensor]]]:
    return Branches(), [(torch.randn(8, 16),), (torch.randn(8, 16),)]
