"""Passes for tests."""

import networks
import torch
from executorch.exir.dialects._ops import ops
from executorch.exir.pass_base import ExportPass
from torch.export import ExportedProgram


class Replace(ExportPass):
    """Replaces relu by another activation."""

    def __init__(self, activation: str = "sigmoid") -> None:
        super().__init__()
        self.activation = getattr(ops.edge.aten, activation).default

    def call_operator(self, op, args, kwargs, meta):
        return super().call_operator(self.activation if op == ops.edge.aten.relu.default else op, args, kwargs, meta)


def two() -> list[ExportPass]:
    return [Replace("tanh"), Replace("sigmoid")]


def for_method(name: str, program: ExportedProgram) -> list[ExportPass]:
    """Passes for a method and its ATen program, like a function of `edge_transform_passes`."""
    relu = any(node.target == torch.ops.aten.relu.default for node in program.graph.nodes)
    return [Replace("tanh")] if relu and name == "forward" else []


def nothing() -> torch.Tensor:
    return torch.zeros(1).item()


def other_activation(name: str, program: ExportedProgram, activation: str = "tanh") -> ExportedProgram:
    """A function over an ATen program, like those of `aten_transform_passes`."""
    for node in program.graph.find_nodes(op="call_function", target=torch.ops.aten.relu.default):
        if name == "forward":
            node.target = getattr(torch.ops.aten, activation).default
    return program


def plant(_name: str, program: ExportedProgram, fault: str) -> ExportedProgram:
    """Replaces the program of `builders:planted` by one with a fault."""
    (name,) = program.graph_signature.user_inputs
    (example,) = (node.meta["val"] for node in program.graph.nodes if node.name == name)
    sizes = ({0: torch.export.Dim("rows", min=2, max=64)},)
    example = torch.ones(5, 4, dtype=example.dtype)
    return torch.export.export(networks.Planted(fault).eval(), (example,), dynamic_shapes=sizes)


def forgets_the_program(_name: str, program: ExportedProgram) -> None:
    program.graph.lint()
