"""Builders of two models that are lowered within seconds. The stores of earlier versions are of them."""

from __future__ import annotations

import importlib

import torch


def wide() -> tuple[torch.nn.Module, tuple[torch.Tensor]]:
    """[2, 4] to [2, 3]; its weights are large enough to be objects of their own."""
    return torch.nn.Sequential(torch.nn.Linear(4, 256), torch.nn.ReLU(), torch.nn.Linear(256, 3)), (torch.ones(2, 4),)


def plugin(name: str) -> tuple[torch.nn.Module, tuple[torch.Tensor]]:
    """[2, 4] to [2, 2], from a module that the source does not name, so that it has to be watched."""
    return importlib.import_module(f"small_{name}").make(), (torch.ones(2, 4),)
