"""Imported by the warm server before it takes calls, so that no stage process repeats this work.

Measured in CPU seconds with the six models of the starter zoo (54 stage processes): the imports take 2.7, and every
process needs them. A small lowering takes 0.6 more and fills the tables that all lowerings use, which about pays for
itself. Larger models, other operators and a lowering for the portable target cost more than they save.
"""

from __future__ import annotations

import importlib
import pkgutil
from contextlib import nullcontext, suppress

from ...errors import ToolchainError
from ..upstream import lean_lowering, saves_time
from ..upstream.imports import without_unused_imports

shorter_imports = without_unused_imports if saves_time() else nullcontext
with shorter_imports():
    import torch
    import torch.hub
    from executorch.exir import to_edge_transform_and_lower

    from .. import backend, explain, export, file, quantize, usercode, verify
    from ..engine import executor
    from ..engine.workers import entry
    from ..targets.find import find_target

__all__ = ["entry", "executor"]


@lean_lowering()
def _warm_up() -> None:
    """Lowers one linear layer. Nothing is executed: the runtime would start threads."""
    program = torch.export.export(torch.nn.Linear(2, 2).eval(), (torch.zeros(1, 2),))
    to_edge_transform_and_lower(program, partitioner=list(find_target("xnnpack").partitioners())).to_executorch()


torch.set_num_threads(1)
torch.hub.tqdm.monitor_interval = 0  # torch.fx's progress bars start a thread, and a process with threads must not fork
with shorter_imports():
    for package in (usercode, export, quantize, backend, verify, explain, file):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            with suppress(ToolchainError):  # stages that need it say so
                importlib.import_module(module.name)
    with suppress(Exception):  # upstream lacks something, or is broken: the stages that need it say what
        _warm_up()
