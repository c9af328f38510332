"""Loaded by `lazily`."""

import torch


def make() -> torch.nn.Module:
    """A small layer."""
    return torch.nn.Linear(4, 2)
