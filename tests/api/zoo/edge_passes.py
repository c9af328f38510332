"""Passes of tests."""

from __future__ import annotations

import torch
from executorch.exir.dialects._ops import ops
from executorch.exir.pass_base import ExportPass
from torch.export import ExportedProgram


class Replace(ExportPass):
    """Puts one activation in the place of relu."""

    def __init__(self, activation: str = "sigmoid") -> None:
        """Takes the name of the other one."""
        super().__init__()
        self.activation = getattr(ops.edge.aten, activation).default

    def call_operator(self, op, args, kwargs, meta):
        """Replaces one operator."""
        return super().call_operator(self.activation if op == ops.edge.aten.relu.default else op, args, kwargs, meta)


def two() -> list[ExportPass]:
    """A function may give several."""
    return [Replace("tanh"), Replace("sigmoid")]


def for_method(name: str, program: ExportedProgram) -> list[ExportPass]:
    """What suits a method and its ATen program, as functions of `edge_transform_passes` choose it."""
    relu = any(node.target == torch.ops.aten.relu.default for node in program.graph.nodes)
    return [Replace("tanh")] if relu and name == "forward" else []


def nothing() -> torch.Tensor:
    """What is no pass."""
    return torch.zeros(1).item()
