"""Calibration samples for quantized.yaml, each a tuple of the model's positional inputs."""

from __future__ import annotations

from collections.abc import Iterator

import torch


def sequences(samples: int = 32) -> Iterator[tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]]:
    """Yields inputs of the LSTM: a sequence (5, 3, 10), and the initial hidden and cell states, each (2, 3, 20).

    pteforge seeds torch before it takes samples, so every run gets the same ones.
    """
    for _ in range(samples):
        yield torch.randn(5, 3, 10), (torch.randn(2, 3, 20), torch.randn(2, 3, 20))
