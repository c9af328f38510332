"""Builders that fail in different ways, and one whose model does."""

from __future__ import annotations

import os
import sys
import time

import torch


def raises() -> None:
    sys.stdout.write("about to fail\n")
    raise ZeroDivisionError("no such width")


class Raising(torch.nn.Module):
    """Raises an exception of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError(f"no such mode for {x.dim()} dimensions")


def raising_model() -> tuple[torch.nn.Module, tuple[torch.Tensor]]:
    return Raising(), (torch.ones(1, 4),)


def crashes() -> None:
    os.write(2, b"last words\n")
    os.kill(os.getpid(), 11)


def hangs() -> None:
    sys.stdout.write("waiting for nothing\n")
    sys.stdout.flush()
    while True:
        time.sleep(3600)


def hoards() -> None:
    hoard = []
    while True:
        hoard.append(torch.ones(1 << 22))


def misunderstood() -> int:
    return 42


def wrong_shape() -> tuple[torch.nn.Module, tuple[torch.Tensor]]:
    return torch.nn.Linear(4, 2), (torch.ones(1, 3),)


def unfaithful() -> tuple[torch.nn.Module, tuple[torch.Tensor]]:
    return Unfaithful(), (torch.ones(1, 4),)


class Unfaithful(torch.nn.Module):
    """Computes something else when it is exported than in eager."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (2 if torch.compiler.is_exporting() else 3)
