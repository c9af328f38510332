"""The canonical digest: which programs are the same, and which are not."""

import copy
import io
import json
import math
import operator
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from executorch.exir import EdgeCompileConfig, to_edge
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.dialects._ops import ops as exir_ops
from executorch.exir.schema import TensorShapeDynamism
from pteforge.artifacts.local_store import LocalStore
from pteforge.artifacts.ref import ArtifactRef
from pteforge.tasks.programs.program import load_program, save_program
from pteforge.tests.lowering import program_digest
from pteforge.tests.zoo.networks import Cache, ConvNet, Function, Head, Reader, Write
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export
from torch.export.graph_signature import OutputKind
from torch.fx import Node
from torch.testing._internal.two_tensor import TwoTensor

BATCH = Dim("batch", min=2, max=8)


@dataclass(frozen=True)
class Variant:
    """How the network is exported."""

    eps: float = 1e-5
    size: int = 8
    batch: int = 3
    value: float = 0.5
    dynamic: dict[int, Any] | None = field(default_factory=lambda: {0: BATCH})
    change: Callable[[ConvNet], object] = lambda _model: None
    train: bool = False
    strict: bool = False
    dtype: torch.dtype = torch.float32
    channels_last: bool = False

    def export(self) -> ExportedProgram:
        torch.manual_seed(0)
        model = ConvNet(self.eps).train(self.train).to(self.dtype)
        self.change(model)
        x = torch.full((self.batch, 3, self.size, self.size), self.value, dtype=self.dtype)
        if self.channels_last:
            x = x.to(memory_format=torch.channels_last)
        return export(model, (x,), dynamic_shapes=(self.dynamic,), strict=self.strict)


def digest_of(function: Callable[..., Any], *inputs: Tensor) -> str:
    """Digest of a function's program."""
    return program_digest(export(Function(function), inputs or (torch.zeros(4),)))


def relu_program() -> ExportedProgram:
    return export(Function(torch.relu), (torch.zeros(4),))


def first_call(program: ExportedProgram) -> Node:
    return next(node for node in program.graph.nodes if node.op == "call_function")


@pytest.fixture(scope="module")
def base() -> str:
    """Digest of the program that the others are compared with."""
    return program_digest(Variant().export())


def _flip_bit(model: ConvNet) -> None:
    model.conv.weight.data.view(torch.int32)[0, 0, 0, 0] ^= 1


def _rename(model: ConvNet) -> None:
    model.tail = model.linear
    del model.linear
    model.__class__ = Renamed


class Renamed(ConvNet):
    """The network with `linear` called `tail`."""

    def forward(self, image: Tensor) -> Tensor:
        return self.tail(torch.relu(self.norm(self.conv(image))).mean((2, 3)))


@pytest.mark.parametrize(
    "variant",
    [
        pytest.param(Variant(), id="built again"),
        pytest.param(Variant(value=0.25), id="other values"),
        pytest.param(Variant(batch=5), id="other batch within the bounds"),
        pytest.param(Variant(dynamic={0: Dim("another_name", min=2, max=8)}), id="other name of the dimension"),
    ],
)
def test_equal(variant, base):
    """What does not change the lowering does not change the digest."""
    assert program_digest(variant.export()) == base


@pytest.mark.parametrize(
    "variant",
    [
        pytest.param(Variant(change=_flip_bit), id="one bit of a weight"),
        pytest.param(Variant(dynamic={0: Dim("batch", min=3, max=8)}), id="lower bound"),
        pytest.param(Variant(dynamic={0: Dim("batch", min=2, max=9)}), id="upper bound"),
        pytest.param(Variant(dynamic=None), id="static"),
        pytest.param(Variant(size=9), id="input size"),
        pytest.param(Variant(dtype=torch.float64), id="dtype"),
        pytest.param(Variant(eps=1e-4), id="batch norm's eps"),
        pytest.param(Variant(train=True), id="train mode"),
        pytest.param(Variant(change=lambda model: model.linear.requires_grad_(False)), id="requires_grad"),
        pytest.param(Variant(channels_last=True), id="strides of the input"),
        pytest.param(Variant(change=lambda model: model.to(memory_format=torch.channels_last)), id="weight's strides"),
        pytest.param(Variant(change=_rename), id="name of a parameter"),
        pytest.param(Variant(strict=True), id="traced by dynamo"),
    ],
)
def test_differs(variant, base):
    """What may change the lowering changes the digest."""
    assert program_digest(variant.export()) != base


def test_scalars():
    """Numbers count with their type and sign: a backend may see the difference even where arithmetic does not."""
    numbers = (1.0, 1, -1.0, 0.0, -0.0, math.inf)
    assert len({digest_of(lambda x, number=number: x + number) for number in numbers}) == len(numbers)


def branches(number: float) -> Callable[..., Any]:
    return lambda x: torch.cond(x.sum() > 0, lambda y: y * number, lambda y: y - 1.0, (x,))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(lambda x: x.view(2, 2).sum(0), lambda x: x.view(2, 2).sum(1), id="argument"),
        pytest.param(branches(2.0), branches(3.0), id="constant in a branch"),
        pytest.param(lambda x: x + torch.tensor([1.0] * 4), lambda x: x + torch.tensor([1.0] * 3 + [2]), id="tensor"),
    ],
)
def test_functions(one, other):
    """Operators' arguments, constants within branches and tensors made while tracing count."""
    assert digest_of(one) == digest_of(one)
    assert digest_of(one) != digest_of(other)


def test_tied():
    """Tied weights are not two equal ones."""
    words = nn.Embedding(10, 4)
    tied, untied = (export(Reader(words, Head(last)), (torch.arange(3),)) for last in (words, copy.deepcopy(words)))
    assert program_digest(tied) != program_digest(untied)


def test_mutated_buffer():
    """An output that is written to a buffer is not one that the method returns."""
    program = export(Write(Cache()), (torch.ones(2, 4),)).run_decompositions({})
    before = program_digest(program)
    (written,) = (spec for spec in program.graph_signature.output_specs if spec.kind is OutputKind.BUFFER_MUTATION)
    written.kind, written.target = OutputKind.USER_OUTPUT, None
    assert program_digest(program) != before


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
    renamed = relu_program()
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
    node = first_call(program)
    digests = [program_digest(program)]
    for value in ("tag0", "tag1", object(), ["tag0", object()], ["tag1", object()]):
        node.meta["delegation_tag"] = value
        digests.append(program_digest(program))
    assert len(set(digests)) == len(digests)


def test_arguments_and_dialects():
    """A positional argument given by keyword is another program: some backends read only positions."""
    program = export(Function(lambda x: torch.ops.aten.sum.dim_IntList(x, [0])), (torch.zeros(4),))
    node, digests = first_call(program), [program_digest(program)]
    node.args, node.kwargs = node.args[:1], {"dim": node.args[1]}
    digests.append(program_digest(program))
    for dialect in (exir_ops.edge, exir_ops.backend):
        node.target = dialect.executorch_prim.add.Scalar
        digests.append(program_digest(program))
    assert len(set(digests)) == 4


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
    """Values of every type are told apart, as arguments and in `meta`; sets have no order."""
    program = relu_program()
    node = first_call(program)

    def digest(value: Any) -> str:
        if place == "meta":
            node.meta["custom"] = value
        else:
            node.args = (node.args[0], value)
        return program_digest(program)

    digests = [digest(value) for value in values]
    assert digests == [digest(value) for value in values]
    assert len(set(digests)) == len(values)
    assert digest({0, 8}) == digest({8, 0})  # these collide, so each set lists them in the order they came in


def test_dialect():
    """An edge program is not the ATen program it was made from; its checks and their exceptions count."""
    program = relu_program()
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
        program.state_dict["linear.weight"] = TwoTensor(torch.zeros(5, 4), second)
        return program_digest(program)

    assert wrapping(torch.ones(5, 4)) == wrapping(torch.ones(5, 4))
    assert wrapping(torch.ones(5, 4)) != wrapping(torch.zeros(5, 4))


NETWORKS = Path(__file__).parents[2] / "zoo" / "networks.py"

SAVE = """
import json, sys
from pathlib import Path
import torch
from executorch.exir import to_edge
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import XNNPACKQuantizer, get_symmetric_quantization_config
from pteforge.artifacts.local_store import LocalStore
from pteforge.tasks.programs.program import save_program
from {module} import ConvNet

store = LocalStore.open(Path(sys.argv[1]))
torch.manual_seed(0)
net = ConvNet().eval()
inputs = (torch.ones(3, 3, 8, 8),)
shapes = ({{0: torch.export.Dim("batch", min=2, max=8)}},)
aten = torch.export.export(net, inputs, dynamic_shapes=shapes)
prepared = prepare_pt2e(
    torch.export.export(net, inputs).module(),
    XNNPACKQuantizer().set_global(get_symmetric_quantization_config()),
)
prepared(*inputs)
quantized = torch.export.export(convert_pt2e(prepared), inputs)
programs = aten, quantized, to_edge(aten).exported_program()
print(json.dumps([save_program(program, kind="program/any", store=store).to_json() for program in programs]))
"""


def run(script: str, *arguments: str, folder: Path, seed: str) -> str:
    """Last line that a script prints, in a process with its own hash seed and folder."""
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(folder)}
    command = [sys.executable, "-W", "ignore", "-c", script, *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.slow
def test_same_in_every_process(store: LocalStore, tmp_path: Path):
    """A model moved to another folder and module, with a comment added, under another hash seed: the same identities.

    What they saved, this process loads without the model's module, and gives the same digests.
    """
    made = []
    for seed, module, comment in (("1", "first", ""), ("2", "second", "# more lines\n\n")):
        folder = tmp_path / module
        folder.mkdir()
        (folder / f"{module}.py").write_text(comment + NETWORKS.read_text())
        printed = run(SAVE.format(module=module), str(store.root), folder=folder, seed=seed)
        made.append([ArtifactRef.from_json(ref) for ref in json.loads(printed)])
    assert [ref.identity for ref in made[0]] == [ref.identity for ref in made[1]]
    assert len({ref.identity for ref in made[0]}) == 3
    one, other = ([program_digest(load_program(ref, store)) for ref in refs] for refs in made)
    assert one == other


def test_members_of_torch_are_found_in_torch(store: LocalStore, monkeypatch: pytest.MonkeyPatch):
    """A memory format and a layout are stored alike, whatever modules are loaded that have imported torch."""

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.clone(memory_format=torch.channels_last)
        return y + torch.zeros_like(x, layout=torch.strided, memory_format=torch.contiguous_format)

    program = torch.export.export(Function(function), (torch.ones(1, 2, 3, 3),))
    saved = save_program(program, kind="program/any", store=store)
    importing = [name for name, module in sys.modules.items() if getattr(module, "torch", None) is torch]
    for name in importing[:1]:
        monkeypatch.delitem(sys.modules, name)  # pickle asks modules in the order of their imports
    assert save_program(program, kind="program/any", store=store) == saved
    formats = [value for node in load_program(saved, store).graph.nodes for value in node.kwargs.values()]
    assert torch.channels_last in formats
