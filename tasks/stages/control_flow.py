"""Control flow that ExecuTorch does not lower, told in words."""

from __future__ import annotations

import torch
from torch.export import ExportedProgram

from ...errors import SourceError


def check_control_flow(method: str, program: ExportedProgram) -> None:
    """Checks that a program, delegates linked, has no loop that would have to be emitted.

    The emitter of executorch 1.5.1 knows cond, map and scan (exir/emit/_emitter.py, `_emit_control_flow`).

    Raises:
        SourceError: there is a ``while_loop``.
    """
    for module in program.graph_module.modules():
        if not isinstance(module, torch.fx.GraphModule):
            continue
        if any(node.target is torch.ops.higher_order.while_loop for node in module.graph.nodes):
            raise SourceError(
                f'method {method!r} has a while_loop, which executorch does not emit ("Unsupported control flow '
                'operator: while_loop"); write it as a map or scan over a known number of steps, or run the loop '
                "outside and make its body a method"
            )
