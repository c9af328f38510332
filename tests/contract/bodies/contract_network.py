"""What every target must be able to lower: a few of the commonest operators."""

from __future__ import annotations

import torch
from torch import nn


def build():
    """A small convolutional network and its example inputs."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)]
    return nn.Sequential(*layers), (torch.randn(1, 3, 8, 8),)


def build_mlp():
    """A perceptron and its example inputs."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4), nn.Softmax(-1)), (torch.randn(2, 8),)
