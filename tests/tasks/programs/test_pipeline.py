"""A lowering that is cut into stages, each program saved and loaded in between, gives the bytes of one that is not.

`tests/tasks/stages/test_exir.py` shows it for the stages themselves; here are constructs that models there lack.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import EdgeCompileConfig, EdgeProgramManager
from executorch.exir.program import _program
from pteforge.tasks.upstream import lean_lowering
from pteforge.tests.zoo.networks import Cache, ConvNet, Function, WriteAndRead
from torch import nn
from torch.export import Dim, ExportedProgram, export

Keep = Callable[[ExportedProgram, str], ExportedProgram]


def _perceptron() -> ExportedProgram:
    layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to(torch.bfloat16)
    return export(layers, (torch.randn(3, 8, dtype=torch.bfloat16),))


def _numbers(x: torch.Tensor) -> torch.Tensor:
    """Symbolic integers, floats and slices."""
    longer = torch.cat([x, x * 2], 0)[: x.shape[0] + 1]
    return longer.sum(0) * (x.shape[0] * 0.5) + x.shape[0] / 3


def _views(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Views, which lowering turns into view specs."""
    return x.view(2, -1).t().reshape(-1) + 1, x[1:].view(-1)


def _function(function: Callable[..., Any], *shape: int, **options: Any) -> ExportedProgram:
    return export(Function(function), (torch.randn(shape),), **options)


PROGRAMS: dict[str, Callable[[], ExportedProgram]] = {
    "bfloat16": _perceptron,
    "cache": lambda: export(WriteAndRead(Cache()), (torch.ones(2, 4),)),
    "constants": lambda: _function(lambda x: x + torch.tensor([1.0, 2.0, 3.0, 4.0]) * torch.arange(4), 4),
    "numbers": lambda: _function(_numbers, 3, 4, dynamic_shapes=(({0: Dim("batch", min=2, max=8)},),)),
    "views": lambda: _function(_views, 4),
    "unbacked": lambda: _function(lambda x: torch.nonzero(x > 0).float(), 4),
    "strict": lambda: export(ConvNet().eval(), (torch.randn(1, 3, 8, 8),), strict=True),
}
QUICK = ("cache", "numbers")


@pytest.mark.parametrize("target", ["portable", pytest.param("xnnpack", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in PROGRAMS])
def test_same_file(target, name, round_trip):
    """With and without delegates, the file is the same byte for byte; so is every digest on the way."""
    partitioners = [XnnpackPartitioner()] if target == "xnnpack" else []
    files = []
    for keep in (lambda program, _kind: program, round_trip):
        torch.manual_seed(0)
        files.append(_lower(PROGRAMS[name](), partitioners, keep))
    assert files[0] == files[1]


@lean_lowering()  # changes no byte, see tests/tasks/upstream/test_lean.py
def _lower(program: ExportedProgram, partitioners: list[XnnpackPartitioner], keep: Keep) -> bytes:
    """`to_edge_transform_and_lower` and `to_executorch` in steps; `keep` stands between the steps."""
    config = EdgeCompileConfig(_check_ir_validity=False)
    programs = {"forward": keep(program, "program/aten")}
    manager = _program._gen_edge_manager_for_partitioners({"forward": partitioners}, programs, config, None)
    manager = EdgeProgramManager({"forward": keep(manager.exported_program(), "program/edge")}, None, config)
    for partitioner in partitioners:
        manager = manager.to_backend(partitioner)
    delegated = {"forward": keep(manager.exported_program(), "program/delegated")}
    return EdgeProgramManager(delegated, None, config).to_executorch().buffer
