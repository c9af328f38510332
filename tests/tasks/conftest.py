"""Lowering modules for a target by ExecuTorch's public call."""

from collections.abc import Callable
from typing import Any

import pytest
from pteforge.tests.lowering import lower_directly


@pytest.fixture
def lower_for() -> Callable[..., bytes]:
    """The file of a module for a target, by name, with the target's options."""

    def lowered(target: str, module: Any, *inputs: Any, **options: Any) -> bytes:
        import torch

        return lower_directly(torch.export.export(module.eval(), inputs), target, **options)

    return lowered
