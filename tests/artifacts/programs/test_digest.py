"""The canonical digest: which programs are the same, and which are not."""

# ruff: noqa: D102 - the models' methods are what their classes say

from __future__ import annotations

import io
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from executorch import exir
from executorch.exir import EdgeCompileConfig, to_edge
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.dialects._ops import ops as exir_ops
from executorch.exir.schema import TensorShapeDynamism
from pteforge.artifacts.local_store import LocalStore
from pteforge.artifacts.programs import load_program, program_digest, save_program
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export
from torch.testing._internal.two_tensor import TwoTensor

pytestmark = [
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec:FutureWarning"),  # upstream, of itself
]

BATCH = Dim("batch", min=2, max=8)


class Model(nn.Module):
    """Convolution, batch norm and linear."""

    def __init__(self, eps: float = 1e-5) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4, eps=eps)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.norm(self.conv(x))).mean((2, 3)))


class Apply(nn.Module):
    """A model that is one function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*inputs)


@dataclass(frozen=True)
class Variant:
    """How `Model` is exported."""

    eps: float = 1e-5
    size: int = 8
    batch: int = 3
    value: float = 0.5
    dynamic: dict[int, Any] | None = field(default_factory=lambda: {0: BATCH})
    change: Callable[[Model], object] = lambda _model: None
    train: bool = False
    strict: bool = False
    dtype: torch.dtype = torch.float32
    channels_last: bool = False

    def export(self) -> ExportedProgram:
        """The program."""
        model = Model(self.eps).train(self.train).to(self.dtype)
        self.change(model)
        x = torch.full((self.batch, 3, self.size, self.size), self.value, dtype=self.dtype)
        if self.channels_last:
            x = x.to(memory_format=torch.channels_last)
        return export(model, (x,), dynamic_shapes=(self.dynamic,), strict=self.strict)


def digest_of(function: Callable[..., Any], *inputs: Tensor) -> str:
    """Digest of a function's program."""
    return program_digest(export(Apply(function), inputs or (torch.zeros(4),)))


@pytest.fixture(scope="module")
def base() -> str:
    """Digest of the program that the others are compared with."""
    return program_digest(Variant().export())


def _flip_bit(model: Model) -> None:
    model.conv.weight.data.view(torch.int32)[0, 0, 0, 0] ^= 1


def _rename(model: Model) -> None:
    model.tail = model.head
    del model.head
    model.__class__ = Renamed


class Renamed(Model):
    """`Model` with `head` called `tail`."""

    def forward(self, x: Tensor) -> Tensor:
        return self.tail(torch.relu(self.norm(self.conv(x))).mean((2, 3)))


@pytest.mark.parametrize(
    "variant",
    [
        Variant(),
        Variant(value=0.25),
        Variant(batch=5),
        Variant(dynamic={0: Dim("another_name", min=2, max=8)}),
    ],
    ids=["built again", "other values", "other batch within the bounds", "other name of the dimension"],
)
def test_equal(variant, base):
    """What does not change the lowering does not change the digest."""
    assert program_digest(variant.export()) == base


@pytest.mark.parametrize(
    "variant",
    [
        Variant(change=_flip_bit),
        Variant(dynamic={0: Dim("batch", min=3, max=8)}),
        Variant(dynamic={0: Dim("batch", min=2, max=9)}),
        Variant(dynamic=None),
        Variant(size=9),
        Variant(dtype=torch.float64),
        Variant(eps=1e-4),
        Variant(train=True),
        Variant(change=lambda model: model.head.requires_grad_(False)),
        Variant(channels_last=True),
        Variant(change=lambda model: model.to(memory_format=torch.channels_last)),
        Variant(change=_rename),
        Variant(strict=True),
    ],
    ids=[
        "one bit of a weight",
        "lower bound",
        "upper bound",
        "static",
        "input size",
        "dtype",
        "batch norm's eps",
        "train mode",
        "requires_grad",
        "strides of the input",
        "strides of a weight",
        "name of a parameter",
        "traced by dynamo",
    ],
)
def test_differs(variant, base):
    """What may change the lowering changes the digest."""
    assert program_digest(variant.export()) != base


def test_scalars():
    """Numbers count with their type and sign: a backend may see the difference even where arithmetic does not."""
    functions = [
        lambda x: x + 1.0,
        lambda x: x + 1,
        lambda x: x + -1.0,
        lambda x: x + 0.0,
        lambda x: x + -0.0,
        lambda x: x + float("inf"),
    ]
    assert len({digest_of(function) for function in functions}) == len(functions)


def test_operator_argument():
    """An operator's argument counts."""
    assert digest_of(lambda x: torch.softmax(x, 0)) == digest_of(lambda x: torch.softmax(x, 0))
    assert digest_of(lambda x: x.view(2, 2).sum(0)) != digest_of(lambda x: x.view(2, 2).sum(1))


def test_positional_or_keyword():
    """An argument given by keyword is not made a positional one: some backends read only positions."""
    program = export(Apply(lambda x: torch.ops.aten.sum.dim_IntList(x, [0])), (torch.zeros(4),))
    before = program_digest(program)
    node = next(node for node in program.graph.nodes if node.op == "call_function")
    node.args, node.kwargs = node.args[:1], {"dim": node.args[1]}
    assert program_digest(program) != before


def test_constant_in_branch():
    """A constant within a branch counts."""

    def branches(number: float) -> Callable[..., Any]:
        return lambda x: torch.cond(x.sum() > 0, lambda y: y * number, lambda y: y - 1.0, (x,))

    assert digest_of(branches(2.0)) == digest_of(branches(2.0))
    assert digest_of(branches(2.0)) != digest_of(branches(3.0))


def test_tensor_constant():
    """A tensor made while tracing counts."""
    assert digest_of(lambda x: x + torch.tensor([1.0, 2.0, 3.0, 4.0])) != digest_of(
        lambda x: x + torch.tensor([1.0, 2.0, 3.0, 5.0])
    )


class Pair(nn.Module):
    """Two layers with equal weights, shared or not."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, 4, bias=False)
        self.second = nn.Linear(4, 4, bias=False)
        if tied:
            self.second.weight = self.first.weight
        else:
            self.second.weight.data.copy_(self.first.weight.data)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


def test_tied():
    """Tied weights are not two equal ones."""
    tied, untied = (export(Pair(tied), (torch.zeros(1, 4),)) for tied in (True, False))
    assert program_digest(tied) != program_digest(untied)


class Counter(nn.Module):
    """A buffer that is read, or also written."""

    def __init__(self, writes: bool) -> None:
        super().__init__()
        self.writes = writes
        self.register_buffer("count", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        changed = self.count + 1
        if self.writes:
            self.count.copy_(changed)
        return x + changed


def test_mutated_buffer():
    """A buffer that the method writes is not one that it only reads."""
    written, read = (export(Counter(writes), (torch.zeros(4),)).run_decompositions({}) for writes in (True, False))
    assert written.graph_signature.buffers_to_mutate
    assert program_digest(written) != program_digest(read)


def test_codec_round_trip(store: LocalStore, base):
    """Saving and loading with our codec keeps the digest."""
    loaded = load_program(save_program(Variant().export(), kind="program/aten", store=store), store)
    assert program_digest(loaded) == base


def test_torch_round_trip(base):
    """Saving and loading with `torch.export` keeps the digest: a model may come as a .pt2 file."""
    file = io.BytesIO()
    torch.export.save(Variant().export(), file)
    file.seek(0)
    assert program_digest(torch.export.load(file)) == base


def test_provenance():
    """Stack traces, histories, node names, debug handles and example inputs do not count."""
    program = Variant().export()
    before = program_digest(program)
    for number, node in enumerate(program.graph.nodes):
        node.meta["stack_trace"] = f"line {number}"
        node.meta["debug_handle"] = number
        for key in ("from_node", "nn_module_stack", "source_fn_stack", "tensor_meta"):
            node.meta.pop(key, None)
    program._example_inputs = None
    assert program_digest(program) == before
    renamed = export(Apply(torch.relu), (torch.zeros(4),))
    names = {node.name for node in renamed.graph.nodes}
    expected = program_digest(renamed)
    for node in renamed.graph.nodes:
        node._rename(f"other_{node.name}")
    for spec in (*renamed.graph_signature.input_specs, *renamed.graph_signature.output_specs):
        spec.arg.name = f"other_{spec.arg.name}"
    assert names.isdisjoint(node.name for node in renamed.graph.nodes)
    assert program_digest(renamed) == expected


def test_meaning_in_meta():
    """What passes and partitioners leave in `meta` counts, also where it is an object of theirs."""
    program = Variant().export()
    node = next(node for node in program.graph.nodes if node.op == "call_function")
    digests = [program_digest(program)]
    for value in ("tag0", "tag1", object(), ["tag0", object()], ["tag1", object()]):
        node.meta["delegation_tag"] = value
        digests.append(program_digest(program))
    assert len(set(digests)) == len(digests)


def test_edge_and_backend_operators():
    """An operator of the backend dialect is not the edge operator of the same name."""
    program = to_edge(export(Apply(lambda x: x + x), (torch.zeros(4),))).exported_program()
    node = next(node for node in program.graph.nodes if node.op == "call_function")
    digests = []
    for dialect in (exir_ops.edge, exir_ops.backend):
        node.target = dialect.executorch_prim.add.Scalar
        digests.append(program_digest(program))
    assert digests[0] != digests[1]


@pytest.mark.parametrize(
    "values",
    [
        (1, 1.0, True, "1", b"1", None, 1j),
        ([1, 2], [2, 1], {1: 2}, {2: 1}, {"1": 2}, [1, [2]]),
        ({1, 2}, {1, 3}),
        (slice(1, 2), slice(1, 2, 1), slice(None, 2)),
        (torch.float32, torch.float64, torch.strided, torch.channels_last, torch.device("cpu")),
        (0.5, -0.5, 1 - 0.5j, 1 + 0.5j, float("nan"), float("inf")),
        (TensorShapeDynamism.STATIC, TensorShapeDynamism.DYNAMIC_BOUND, CompileSpec("a", b"1"), CompileSpec("a", b"2")),
        (max, min, operator.add),
        (torch.zeros(2), torch.zeros(2, device="meta"), torch.zeros(0), torch.ones(2), torch.zeros(2)[:1]),
    ],
    ids=["types", "containers", "sets", "slices", "torch", "numbers", "classes", "callables", "tensors"],
)
@pytest.mark.parametrize("place", ["argument", "meta"])
def test_values(values, place):
    """Values of every type are told apart, as arguments and in `meta`."""
    program = export(Apply(torch.relu), (torch.zeros(4),))
    node = next(node for node in program.graph.nodes if node.op == "call_function")
    digests = []
    for value in values:
        if place == "meta":
            node.meta["custom"] = value
        else:
            node.args = (node.args[0], value)
        digests.append(program_digest(program))
        assert program_digest(program) == digests[-1]
    assert len(set(digests)) == len(values)


def test_order_of_sets():
    """Sets have no order."""
    program = export(Apply(torch.relu), (torch.zeros(4),))
    node = next(node for node in program.graph.nodes if node.op == "call_function")
    digests = set()
    for names in (["a", "b", "c", "d"], ["d", "c", "b", "a"]):
        node.meta["custom"] = dict.fromkeys(names).keys() | set()
        digests.add(program_digest(program))
    assert len(digests) == 1


def test_dialect():
    """An edge program is not the ATen program it was made from; its checks and their exceptions count."""
    program = export(Apply(torch.relu), (torch.zeros(4),))
    configs = [
        EdgeCompileConfig(),
        EdgeCompileConfig(_check_ir_validity=False),
        EdgeCompileConfig(_core_aten_ops_exception_list=[torch.ops.aten.relu.default]),
    ]
    edges = [program_digest(to_edge(program, compile_config=config).exported_program()) for config in configs]
    assert edges[0] == program_digest(to_edge(program).exported_program())
    assert len({program_digest(program), *edges}) == 4


def test_wrapped_tensors():
    """Weights that are tensor subclasses count by what they wrap."""

    def wrapping(second: Tensor) -> str:
        program = Variant().export()
        program.state_dict["head.weight"] = TwoTensor(torch.zeros(2, 4), second)
        return program_digest(program)

    assert wrapping(torch.ones(2, 4)) == wrapping(torch.ones(2, 4))
    assert wrapping(torch.ones(2, 4)) != wrapping(torch.zeros(2, 4))


def test_exir_round_trip():
    """Exir's own save and load changes an edge program (requires_grad, where operators came from): not for stages."""
    program = to_edge(export(Apply(torch.relu), (torch.zeros(4, requires_grad=True),))).exported_program()
    file = io.BytesIO()
    exir.save(program, file)
    file.seek(0)
    assert program_digest(exir.load(file)) != program_digest(program)
