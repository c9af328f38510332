"""Finding and replacing the lowered modules of a program, nested control flow included."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.graph_module import get_control_flow_submodules
from executorch.exir.lowered_backend_module import LoweredBackendModule
from torch.export import ExportedProgram


def lowered_modules(program: ExportedProgram) -> Iterator[tuple[torch.fx.GraphModule, str, LoweredBackendModule]]:
    """The program's lowered modules in graph order: the graph module that owns it, its attribute name, the module."""
    yield from _lowered(program.graph_module)


def _lowered(graph_module: torch.fx.GraphModule) -> Iterator[tuple[torch.fx.GraphModule, str, LoweredBackendModule]]:
    for node in graph_module.graph.nodes:
        if node.op == "call_function" and node.target is executorch_call_delegate:
            name = node.args[0].target
            yield graph_module, name, getattr(graph_module, name)
    for _, submodule, _ in get_control_flow_submodules(graph_module):
        yield from _lowered(submodule)
