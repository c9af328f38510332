"""A small convolutional network that reads handwritten digits. Building it trains it, in seconds on one core."""

from __future__ import annotations

import torch
from digits_data import split
from torch import nn

BATCH = 64


def network() -> nn.Module:
    """Returns the untrained network: images, float32 [n, 1, 8, 8], to a score for each digit, [n, 10]."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 256),
        nn.ReLU(),
        nn.Linear(256, 10),
    )


def trained(epochs: int = 12) -> tuple[nn.Module, list[tuple[torch.Tensor]]]:
    """Returns the trained network, and the first test images as example inputs. Equal seeds give equal weights.

    Args:
        epochs: number of passes over the training images.
    """
    (images, labels), (test_images, _) = split()
    torch.set_num_threads(1)  # more threads would sum in another order and give different weights
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    model.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(images)).split(BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
    return model.eval(), [(image,) for image in test_images[:4].split(1)]
