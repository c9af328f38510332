"""Operators whose first operand is a number."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from executorch.exir import EdgeCompileConfig, EdgeProgramManager, to_edge
from pteforge.configs.recipe import CompileOptions
from pteforge.tasks.programs.emission import backend_config, to_executorch
from pteforge.tasks.programs.exir import to_edge_program
from pteforge.tests.zoo.networks import Function
from torch._export.verifier import SpecViolationError

VALUES = [[1, -2, 3], [4, -5, 7]]


def _exported(compute: Any, x: torch.Tensor) -> Any:
    return torch.export.export(Function(compute), (x,))


def _lowered(compute: Any, x: torch.Tensor) -> bytes:
    program = to_edge_program(_exported(compute, x), [], EdgeCompileConfig())
    manager = EdgeProgramManager({"forward": program}, None, EdgeCompileConfig())
    return bytes(to_executorch(manager, backend_config(CompileOptions(), ["forward"])).buffer)


@pytest.mark.parametrize("number", [17, -17, 17.5])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.float32])
def test_remainders(number, dtype):
    """They have the divisor's sign, and the dtype that eager gives them."""
    x = torch.tensor(VALUES).to(dtype)
    assert _run(_lowered(lambda x: number % x, x), x).equal(number % x)


@pytest.mark.parametrize("compute", [operator.and_, operator.or_, operator.xor])
def test_bits(compute):
    """Operators on bits, too."""
    x = torch.tensor(VALUES)
    assert _run(_lowered(lambda x: compute(99, x), x), x).equal(compute(99, x))


def test_executorch_fails_by_itself():
    """Once this fails, so does the reason for the patch."""
    with pytest.raises(SpecViolationError):
        to_edge(_exported(lambda x: 17 % x, torch.tensor(VALUES)))


def _run(content: bytes, x: torch.Tensor) -> torch.Tensor:
    from executorch.runtime import Runtime

    (made,) = Runtime.get().load_program(content).load_method("forward").execute([x])
    return made
