"""A lowering that is cut into stages, each program saved and loaded in between, gives the bytes of one that is not."""

# ruff: noqa: D102 - the models' methods are what their classes say

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import XNNPACKQuantizer, get_symmetric_quantization_config
from executorch.examples.models.lstm import LSTMModel
from executorch.examples.models.mlperf_tiny.resnet8 import ResNet8Model
from executorch.exir import EdgeCompileConfig, EdgeProgramManager
from executorch.exir.lowered_backend_module import LoweredBackendModule
from executorch.exir.program import _program
from pteforge.artifacts.local_store import LocalStore
from pteforge.artifacts.programs import load_program, program_digest, save_program
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

pytestmark = [
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec:FutureWarning"),  # upstream, of itself
    pytest.mark.filterwarnings("ignore:read_binary is deprecated:DeprecationWarning"),  # upstream, of Python
    pytest.mark.filterwarnings("ignore:Mutation on a buffer in the model:UserWarning"),  # said to whom the file is for
]

Programs = dict[str, ExportedProgram]
Keep = Callable[[ExportedProgram, str], ExportedProgram]


class Convolutions(nn.Module):
    """Convolution, batch norm, linear."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8 * 36, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.norm(self.conv(x))).flatten(1))


class Perceptron(nn.Module):
    """Two layers, and the batch size as a number."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.second = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x))) * x.shape[0]


class Branches(nn.Module):
    """Two branches with a buffer and constants."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shift", torch.full((4,), 2.5))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda y: y * 1.5 + self.shift, lambda y: y - self.shift, (x,))


class Cache(nn.Module):
    """A buffer that is written to, as a KV cache is."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(1, 16, 4))
        self.project = nn.Linear(4, 4)

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        self.cache.index_copy_(1, position, self.project(x).detach())
        return (self.cache * 2).sum(1)


class Tied(nn.Module):
    """Embedding and head share their weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embed(tokens))


class Constants(nn.Module):
    """Tensors made while tracing."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tensor([1.0, 2.0, 3.0, 4.0]) * torch.arange(4)


class Numbers(nn.Module):
    """Symbolic integers, floats and slices."""

    def forward(self, x: Tensor) -> Tensor:
        longer = torch.cat([x, x * 2], 0)[: x.shape[0] + 1]
        return longer.sum(0) * (x.shape[0] * 0.5) + x.shape[0] / 3


class Views(nn.Module):
    """Views, which lowering turns into view specs."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.view(2, -1).t().reshape(-1) + 1, x[1:].view(-1)


class Unbacked(nn.Module):
    """A shape that depends on values."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.nonzero(x > 0).float()


def _quantized() -> ExportedProgram:
    model, inputs = Convolutions().eval(), (torch.randn(1, 3, 8, 8),)
    quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config(is_per_channel=True))
    prepared = prepare_pt2e(export(model, inputs).module(), quantizer)
    prepared(*inputs)
    return export(convert_pt2e(prepared), inputs)


def _both() -> Programs:
    return {
        "see": export(Convolutions().eval(), (torch.randn(1, 3, 8, 8),)),
        "think": export(Perceptron(), (torch.randn(3, 8),)),
    }


def _one(build: Callable[[], ExportedProgram]) -> Callable[[], Programs]:
    return lambda: {"forward": build()}


BATCH = {0: Dim("batch", min=2, max=8)}
PROGRAMS: dict[str, Callable[[], Programs]] = {
    "convolutions": _one(lambda: export(Convolutions().eval(), (torch.randn(1, 3, 8, 8),))),
    "dynamic": _one(lambda: export(Convolutions().eval(), (torch.randn(3, 3, 8, 8),), dynamic_shapes=(BATCH,))),
    "perceptron": _one(lambda: export(Perceptron(), (torch.randn(3, 8),), dynamic_shapes=(BATCH,))),
    "bfloat16": _one(lambda: export(Perceptron().bfloat16(), (torch.randn(3, 8).bfloat16(),))),
    "cond": _one(lambda: export(Branches(), (torch.randn(4),))),
    "cache": _one(lambda: export(Cache(), (torch.randn(1, 2, 4), torch.tensor([0, 1])))),
    "tied": _one(lambda: export(Tied(), (torch.tensor([1, 2]),))),
    "constants": _one(lambda: export(Constants(), (torch.randn(4),))),
    "numbers": _one(lambda: export(Numbers(), (torch.randn(3, 4),), dynamic_shapes=(BATCH,))),
    "views": _one(lambda: export(Views(), (torch.randn(4),))),
    "unbacked": _one(lambda: export(Unbacked(), (torch.randn(4),))),
    "two methods": _both,
    "quantized": _one(_quantized),
    "strict": _one(lambda: export(Convolutions().eval(), (torch.randn(1, 3, 8, 8),), strict=True)),
}
ZOO: dict[str, Callable[[], Programs]] = {
    "lstm": _one(lambda: export(LSTMModel().get_eager_model().eval(), LSTMModel().get_example_inputs())),
    "resnet8": _one(lambda: export(ResNet8Model().get_eager_model(), ResNet8Model().get_example_inputs())),
}


def _marked(names: set[str], *, quick: set[str]) -> list[Any]:
    """Test parameters in order; all but the quick ones are marked slow: together they take a minute."""
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in sorted(names)]


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


def _through(store: LocalStore) -> Keep:
    def keep(program: ExportedProgram, kind: str) -> ExportedProgram:
        loaded = load_program(save_program(program, kind=kind, store=store), store)
        assert program_digest(loaded) == program_digest(program)
        return loaded

    return keep


def _check(build: Callable[[], Programs], partitioners: list[XnnpackPartitioner], store: LocalStore) -> None:
    torch.manual_seed(0)
    expected = _lower(build(), partitioners, lambda program, _kind: program)
    torch.manual_seed(0)
    assert _lower(build(), partitioners, _through(store)) == expected


@pytest.mark.parametrize("name", _marked(set(PROGRAMS) - {"quantized"}, quick={"dynamic", "cond", "cache", "numbers"}))
def test_portable(name, store):
    """Without delegates, the file is the same byte for byte; so is the digest of every program on the way."""
    _check(PROGRAMS[name], [], store)


@pytest.mark.parametrize("name", _marked(set(PROGRAMS), quick={"two methods"}))
def test_xnnpack(name, store):
    """With delegates, the file is the same byte for byte; so is the digest of every program on the way."""
    _check(PROGRAMS[name], [XnnpackPartitioner()], store)


@pytest.mark.slow
@pytest.mark.parametrize("name", ZOO)
@pytest.mark.parametrize("partitioners", [[], [XnnpackPartitioner()]], ids=["portable", "xnnpack"])
def test_zoo(name, partitioners, store):
    """The same holds for real models."""
    _check(ZOO[name], partitioners, store)


def test_delegates_linked_later(store):
    """Lowered modules without bytes can be saved under a placeholder's id; linked after loading, the file is equal."""
    config = EdgeCompileConfig(_check_ir_validity=False)
    programs = PROGRAMS["convolutions"]()
    manager = _program._gen_edge_manager_for_partitioners({"forward": [XnnpackPartitioner()]}, programs, config, None)
    program = manager.to_backend(XnnpackPartitioner()).exported_program()
    expected = EdgeProgramManager({"forward": copy.deepcopy(program)}, None, config).to_executorch().buffer
    module = program.graph_module
    linked = {name: child for name, child in module.named_children() if isinstance(child, LoweredBackendModule)}
    for name, child in linked.items():
        setattr(module, name, LoweredBackendModule(child.original_module, "Placeholder", b"", [], None))
    unlinked = _through(store)(program, "program/partitioned")
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
