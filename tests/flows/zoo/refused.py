"""Builders of models that torch.export refuses."""

from __future__ import annotations

import torch


class Branches(torch.nn.Module):
    """Goes by the value of a tensor."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x + 1
        return x - 1


class Arrays(torch.nn.Module):
    """Is exported in strict mode only."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.from_numpy(x.numpy() * 2)


class Rows(torch.nn.Module):
    """Holds for two rows only."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(2, 4) + 1


class Fourier(torch.nn.Module):
    """Is exported, and has complex numbers, which ExecuTorch has not."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.rfft(x).abs()


def branches() -> tuple[torch.nn.Module, tuple[torch.Tensor]]:
    return Branches(), (torch.ones(2, 4),)


def arrays() -> tuple[torch.nn.Module, tuple[torch.Tensor]]:
    return Arrays(), (torch.ones(2, 4),)


def rows() -> tuple[torch.nn.Module, tuple[torch.Tensor]]:
    return Rows(), (torch.ones(2, 4),)


def fourier() -> tuple[torch.nn.Module, tuple[torch.Tensor]]:
    return Fourier(), (torch.ones(2, 4),)
