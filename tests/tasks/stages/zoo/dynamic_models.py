"""Models with dynamic sizes, and one that writes to its inputs."""

from __future__ import annotations

import torch
from pteforge import MethodCall, MethodDefinition, ModelDefinition


def batches() -> ModelDefinition:
    """A convolution over batches of up to 64, traced with 2."""
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU())
    shapes = ({0: torch.export.Dim("batch", min=1, max=64)},)
    return ModelDefinition({"forward": MethodDefinition(net, [(torch.randn(2, 3, 8, 8),)], dynamic_shapes=shapes)})


class Writer(torch.nn.Module):
    """Writes to two of its three inputs, the later one first, as models do that hand a cache around."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, first, x, second):
        """Takes [2, 4] thrice, gives [2, 4]."""
        y = self.layer(x)
        second[:, 1:2] = y[:, :1]
        first.add_(y)
        return y + second.sum()


def writes_to_inputs() -> ModelDefinition:
    """Such a model, and a sequence of calls of it."""
    example = (torch.zeros(2, 4), torch.randn(2, 4), torch.ones(2, 4))
    method = MethodDefinition(Writer(), [example])
    return ModelDefinition({"forward": method}, sequences=[[MethodCall("forward", example)] * 2])
