"""Passes whose traces are skipped give what they give without that, on graphs that they change and on others."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from executorch.exir import to_edge
from executorch.exir.pass_base import _ExportPassBase
from pteforge.tasks.upstream.idle_retraces import no_idle_retraces
from pteforge.tests.zoo.networks import Function
from torch import nn
from torch.export import export

ROWS = (torch.randn(4, 6),)
IMAGE = (torch.randn(1, 3, 4, 4).to(memory_format=torch.channels_last),)


class Added(nn.Module):
    """Adds its weights, transposed."""

    def __init__(self):
        super().__init__()
        self.register_buffer("weights", torch.randn(6, 4))

    def forward(self, x):
        return x + self.weights.t()


MODELS = {
    "layers": (nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 2)), ROWS),
    "scalars": (Function(lambda x: (x * 2 + 1).clamp(0, 1)), ROWS),
    "mixed types": (Function(lambda x: x + torch.arange(6)), ROWS),
    "integers divided": (Function(lambda x: torch.arange(24).reshape(4, 6) / x.to(torch.int64)), ROWS),
    "views": (Function(lambda x: x.t().reshape(3, 8).unsqueeze(0).squeeze(0)), ROWS),
    "clones": (Function(lambda x: x.clone() + x.to(torch.float64).to(torch.float32)), ROWS),
    "constants": (Function(lambda x: x @ (torch.ones(6, 6) * 3)), ROWS),
    "weights alone": (Added(), ROWS),
    "another order": (Function(lambda x: torch.nn.functional.avg_pool2d(x, 2).mean((2, 3))), IMAGE),
}


def lowered(model, inputs):
    """The edge program as text, the file, and how many graphs were traced."""
    with mock.patch.object(
        _ExportPassBase, "call_submodule", autospec=True, side_effect=_ExportPassBase.call_submodule
    ) as traced:
        edge = to_edge(export(model.eval(), inputs))
        text = str(edge.exported_program())
        return text, edge.to_executorch().buffer, traced.call_count


@pytest.mark.parametrize("model", MODELS)
def test_same_programs(model):
    """The edge program and the file are the same, with fewer traces."""
    text, file, plain = lowered(*MODELS[model])
    with no_idle_retraces():
        *same, fewer = lowered(*MODELS[model])
    assert same == [text, file]
    assert fewer < plain
