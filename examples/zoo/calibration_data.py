"""Samples that the quantizers of quantized.yaml observe, each a tuple of the model's positional inputs."""

from __future__ import annotations

from collections.abc import Iterator

import torch


def sequences(samples: int = 32) -> Iterator[tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]]:
    """Inputs of the LSTM as its example has them: a sequence, and the hidden and the cell state to start from.

    Shapes are (5, 3, 10) and twice (2, 3, 20). pteforge seeds torch before it asks, so each run gets the same.
    """
    for _ in range(samples):
        yield torch.randn(5, 3, 10), (torch.randn(2, 3, 20), torch.randn(2, 3, 20))
