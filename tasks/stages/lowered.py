"""Finding and replacing the lowered modules of a program, nested control flow included."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.graph_module import get_control_flow_submodules
from executorch.exir.lowered_backend_module import LoweredBackendModule
from torch.export import ExportedProgram


def graph_modules(graph_module: torch.fx.GraphModule) -> Iterator[torch.fx.GraphModule]:
    """A graph module and those in it that control flow calls, the outer before the inner."""
    yield graph_module
    for _, inner, _ in get_control_flow_submodules(graph_module):
        yield from graph_modules(inner)


def lowered_modules(program: ExportedProgram) -> Iterator[tuple[torch.fx.GraphModule, str, LoweredBackendModule]]:
    """The program's lowered modules in graph order: the graph module that owns it, its attribute name, the module."""
    for owner in graph_modules(program.graph_module):
        for node in owner.graph.nodes:
            if node.op == "call_function" and node.target is executorch_call_delegate:
                name = node.args[0].target
                yield owner, name, getattr(owner, name)
