"""Models with dynamic sizes."""

from __future__ import annotations

import torch
from pteforge import MethodDefinition, ModelDefinition


def batches() -> ModelDefinition:
    """A convolution over batches of up to 64, traced with 2."""
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU())
    shapes = ({0: torch.export.Dim("batch", min=1, max=64)},)
    return ModelDefinition({"forward": MethodDefinition(net, [(torch.randn(2, 3, 8, 8),)], dynamic_shapes=shapes)})
