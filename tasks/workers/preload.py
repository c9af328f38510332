"""Imported by the warm server before it takes calls: what every stage would otherwise pay for again."""

from __future__ import annotations

import importlib

import torch
import tqdm
from executorch.backends.xnnpack.partition.graphs import bilinear_2d, sdpa
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower

from ..catalog import StageName
from ..stages import entry

__all__ = ["entry"]

torch.set_num_threads(1)
tqdm.tqdm.monitor_interval = 0  # its monitor is a thread, and a process with threads must not fork
for name in StageName:
    importlib.import_module(name.kind.module)


class _Convolution(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 4, 3)
        self.norm = torch.nn.BatchNorm2d(4)
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(torch.relu(self.norm(self.convolution(x))).mean((2, 3)))


def _warm_up() -> None:
    """One lowering: the first in a process registers operators and builds decomposition tables, for seconds."""
    bilinear_2d.get_graphs()
    sdpa.get_graphs()
    program = torch.export.export(_Convolution().eval(), (torch.zeros(1, 3, 8, 8),))
    to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()]).to_executorch()


with torch.no_grad(), torch.random.fork_rng():
    _warm_up()
