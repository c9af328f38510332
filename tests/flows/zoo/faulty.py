"""Builders that go wrong, each in its own way."""

from __future__ import annotations

import os
import sys
import time

import torch


def raises() -> None:
    """A mistake in the user's code."""
    sys.stdout.write("about to fail\n")
    raise ZeroDivisionError("no such width")


def crashes() -> None:
    """What a bug in native code does."""
    os.write(2, b"last words\n")
    os.kill(os.getpid(), 11)


def hangs() -> None:
    """Never ends."""
    sys.stdout.write("waiting for nothing\n")
    sys.stdout.flush()
    while True:
        time.sleep(3600)


def hoards() -> None:
    """Takes memory until there is none left."""
    hoard = []
    while True:
        hoard.append(torch.ones(1 << 22))


def disagrees() -> tuple[torch.nn.Module, list[tuple[torch.Tensor]]]:
    """The example input does not fit the model."""
    return torch.nn.Linear(4, 2), [(torch.ones(1, 5),)]


def misunderstood() -> int:
    """Returns something that is no model."""
    return 42


def unfaithful() -> tuple[torch.nn.Module, tuple[torch.Tensor]]:
    """A model that computes something else each time eager runs it."""
    return Unfaithful(), (torch.ones(1, 4),)


class Unfaithful(torch.nn.Module):
    """Takes [1, 4], gives [1, 4]."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Tells being traced from being run."""
        return x * (2 if torch.compiler.is_exporting() else 3)
