"""Lowering modules for a target by ExecuTorch's public call."""

from collections.abc import Callable
from typing import Any

import pytest
from pteforge.tasks.targets import find_target


@pytest.fixture
def lower_for() -> Callable[..., bytes]:
    """The file of a module for a target, by name, with the target's options."""

    def lowered(target: str, module: Any, *inputs: Any, **options: Any) -> bytes:
        import torch
        from executorch.exir import to_edge_transform_and_lower

        partitioners = list(find_target(target, options).partitioners())
        program = torch.export.export(module.eval(), inputs)
        return bytes(to_edge_transform_and_lower(program, partitioner=partitioners).to_executorch().buffer)

    return lowered
