"""Loaded by `lazily`."""

from __future__ import annotations

import torch


def make() -> torch.nn.Module:
    """A large layer."""
    return torch.nn.Linear(4, 6)
