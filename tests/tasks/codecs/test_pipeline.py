"""A lowering that is cut into stages, each program saved and loaded in between, gives the bytes of one that is not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.examples.models.mlperf_tiny.resnet8 import ResNet8Model
from executorch.exir import EdgeCompileConfig, EdgeProgramManager
from executorch.exir.lowered_backend_module import LoweredBackendModule
from executorch.exir.program import _program
from pteforge.tasks.upstream import lean_lowering
from pteforge.tests.zoo.networks import Branches, ConvNet, Function, Head, Reader
from torch import nn
from torch.export import Dim, ExportedProgram, export

Programs = dict[str, ExportedProgram]
Keep = Callable[[ExportedProgram, str], ExportedProgram]


def _conv(batch: int = 1, **options: Any) -> ExportedProgram:
    return export(ConvNet().eval(), (torch.randn(batch, 3, 8, 8),), **options)


def _perceptron(*, dtype: torch.dtype = torch.float32, **options: Any) -> ExportedProgram:
    layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to(dtype)
    return export(layers, (torch.randn(3, 8, dtype=dtype),), **options)


def _tied() -> ExportedProgram:
    embedding = nn.Embedding(10, 4)
    return export(Reader(embedding, Head(embedding)), (torch.tensor([1, 2]),))


class Cache(nn.Module):
    """A buffer that is written to, as a KV cache is."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(1, 16, 4))
        self.project = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        self.cache.index_copy_(1, position, self.project(x).detach())
        return (self.cache * 2).sum(1)


def _numbers(x: torch.Tensor) -> torch.Tensor:
    """Symbolic integers, floats and slices."""
    longer = torch.cat([x, x * 2], 0)[: x.shape[0] + 1]
    return longer.sum(0) * (x.shape[0] * 0.5) + x.shape[0] / 3


def _views(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Views, which lowering turns into view specs."""
    return x.view(2, -1).t().reshape(-1) + 1, x[1:].view(-1)


def _function(function: Callable[..., Any], *shape: int, **options: Any) -> ExportedProgram:
    return export(Function(function), (torch.randn(shape),), **options)


BATCH = {0: Dim("batch", min=2, max=8)}
PROGRAMS: dict[str, Callable[[], ExportedProgram]] = {
    "dynamic": lambda: _conv(3, dynamic_shapes=(BATCH,)),
    "perceptron": lambda: _perceptron(dynamic_shapes=(BATCH,)),
    "bfloat16": lambda: _perceptron(dtype=torch.bfloat16),
    "cond": lambda: export(Branches(), (torch.randn(2, 4),)),
    "cache": lambda: export(Cache(), (torch.randn(1, 2, 4), torch.tensor([0, 1]))),
    "tied": _tied,
    "constants": lambda: _function(lambda x: x + torch.tensor([1.0, 2.0, 3.0, 4.0]) * torch.arange(4), 4),
    "numbers": lambda: _function(_numbers, 3, 4, dynamic_shapes=((BATCH,),)),
    "views": lambda: _function(_views, 4),
    "unbacked": lambda: _function(lambda x: torch.nonzero(x > 0).float(), 4),
    "strict": lambda: _conv(strict=True),
    "resnet8": lambda: export(ResNet8Model().get_eager_model(), ResNet8Model().get_example_inputs()),
}


QUICK = {
    "portable": ("dynamic", "cond", "cache", "numbers"),
    "xnnpack": ("dynamic",),
}
"""All others are slow: together they take a minute."""


@pytest.mark.parametrize(
    ("target", "name"),
    [
        pytest.param(target, name, marks=() if name in QUICK[target] else pytest.mark.slow)
        for target in QUICK
        for name in PROGRAMS
    ],
)
def test_same_file(target, name, round_trip):
    """With and without delegates, the file is the same byte for byte; so is every digest on the way."""
    partitioners = [XnnpackPartitioner()] if target == "xnnpack" else []
    files = []
    for keep in (lambda program, _kind: program, round_trip):
        torch.manual_seed(0)
        files.append(_lower({"forward": PROGRAMS[name]()}, partitioners, keep))
    assert files[0] == files[1]


@lean_lowering()  # changes no byte, see tests/tasks/upstream/test_lean.py
def _lower(programs: Programs, partitioners: list[XnnpackPartitioner], keep: Keep) -> bytes:
    """`to_edge_transform_and_lower` and `to_executorch` in steps; `keep` stands between the steps."""
    config = EdgeCompileConfig(_check_ir_validity=False)
    programs = {name: keep(program, "program/aten") for name, program in programs.items()}
    manager = _program._gen_edge_manager_for_partitioners(dict.fromkeys(programs, partitioners), programs, config, None)
    edge = {name: keep(manager.exported_program(name), "program/edge") for name in programs}
    manager = EdgeProgramManager(edge, None, config)
    for partitioner in partitioners:
        manager = manager.to_backend(partitioner)
    delegated = {name: keep(manager.exported_program(name), "program/delegated") for name in programs}
    return EdgeProgramManager(delegated, None, config).to_executorch().buffer


def test_delegates_linked_later(round_trip):
    """Lowered modules without bytes can be saved under a placeholder's id; linked after loading, the file is equal."""
    config = EdgeCompileConfig(_check_ir_validity=False)
    programs = {"forward": _conv()}
    manager = _program._gen_edge_manager_for_partitioners({"forward": [XnnpackPartitioner()]}, programs, config, None)
    program = manager.to_backend(XnnpackPartitioner()).exported_program()
    expected = EdgeProgramManager({"forward": copy.deepcopy(program)}, None, config).to_executorch().buffer
    module = program.graph_module
    linked = {name: child for name, child in module.named_children() if isinstance(child, LoweredBackendModule)}
    for name, child in linked.items():
        setattr(module, name, LoweredBackendModule(child.original_module, "Placeholder", b"", [], None))
    unlinked = round_trip(program, "program/partitioned")
    for name, child in linked.items():
        kept = getattr(unlinked.graph_module, name)
        assert (kept.backend_id, kept.processed_bytes) == ("Placeholder", b"")
        lowered = LoweredBackendModule(
            kept.original_module,
            child.backend_id,
            child.processed_bytes,
            child.compile_specs,
            child.named_data_store_output,
        )
        lowered.meta = child.meta
        setattr(unlinked.graph_module, name, lowered)
    assert linked
    assert EdgeProgramManager({"forward": unlinked}, None, config).to_executorch().buffer == expected
