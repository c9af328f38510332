"""Everything in programs that the codec writes in a way of its own comes back as it was."""

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from executorch.exir import EdgeCompileConfig, to_edge
from executorch.exir._serialize._cord import FileBackedData
from executorch.exir._serialize._named_data_store import NamedDataStoreOutput
from executorch.exir._serialize.data_serializer import DataEntry
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.dialects._ops import ops as exir_ops
from executorch.exir.dialects.edge._ops import EdgeOpOverload
from executorch.exir.lowered_backend_module import LoweredBackendModule
from executorch.exir.passes.replace_view_copy_with_view_pass import _ViewSpec
from executorch.exir.program import _program
from executorch.exir.tensor import TensorSpec
from executorch.exir.verification.verifier import EXIRATenDialectVerifier
from pteforge.errors import StoreError
from pteforge.tasks.programs import restore
from pteforge.tasks.programs.program import save_program
from pteforge.tests.lowering import program_digest
from pteforge.tests.zoo.networks import Function
from torch import Tensor, nn
from torch._export.verifier import Verifier
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import Dim, ExportedProgram, export
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import ShapeEnv

pytestmark = pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta:UserWarning")


def trace(function: Callable[..., Any], *inputs: Tensor, **options: Any) -> ExportedProgram:
    """Exports a function, of one vector by default."""
    return export(Function(function), inputs or (torch.zeros(4),), **options)


def call(program: ExportedProgram, position: int = 0) -> Node:
    """One of a program's calls."""
    return [node for node in program.graph.nodes if node.op == "call_function"][position]


def test_runs(round_trip):
    """A loaded program computes what the saved one computes, and its graph module can be called."""
    program = trace(lambda x: torch.relu(x) * 2)
    loaded = round_trip(program)
    x = torch.tensor([-1.0, 0.0, 1.0, 2.0])
    assert torch.equal(loaded.module()(x), program.module()(x))
    assert torch.equal(loaded.graph_module(x)[0], program.graph_module(x)[0])
    assert [node.name for node in loaded.graph.nodes] == [node.name for node in program.graph.nodes]
    assert str(loaded.graph_signature) == str(program.graph_signature)
    assert loaded.graph_module.graph.owning_module is loaded.graph_module
    assert loaded.example_inputs is None
    assert program.example_inputs is not None


def test_symbolic_numbers(round_trip):
    """Symbolic integers, floats and truth values keep expression, hint and bounds, and one environment."""

    def function(x: Tensor) -> Tensor:
        scaled = x * (x.shape[0] * 0.5)
        return torch.cond(x.shape[0] > 4, lambda y: y + 1, lambda y: y - 1, (scaled,))

    program = trace(function, torch.zeros(3, 2), dynamic_shapes=(({0: Dim("batch", min=2, max=8)},),))
    loaded = round_trip(program)
    kinds = set()
    environments = set()
    for before, after in zip(program.graph.nodes, loaded.graph.nodes, strict=True):
        value, copy = before.meta.get("val"), after.meta.get("val")
        assert type(copy) is type(value)
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            kinds.add(type(value))
            environments.add(copy.node.shape_env)
            assert (str(copy), copy.node.hint) == (str(value), value.node.hint)
        elif isinstance(value, FakeTensor):
            assert str(copy.shape) == str(value.shape)
            environments.add(copy.fake_mode.shape_env)
    assert kinds == {torch.SymInt, torch.SymFloat, torch.SymBool}
    assert len(environments) == 1
    assert str(loaded.range_constraints) == str(program.range_constraints)
    assert loaded.module()(torch.ones(5, 2)).shape == (5, 2)
    with pytest.raises(RuntimeError, match="<= 8"):
        loaded.module()(torch.ones(9, 2))


def test_environment_grows(round_trip):
    """A loaded environment makes symbols that are not there yet."""
    program = trace(torch.nonzero, torch.tensor([0.0, 1.0]))
    environment: ShapeEnv = call(round_trip(program)).meta["val"].fake_mode.shape_env
    known = {str(symbol) for symbol in environment.var_to_range}
    assert known
    assert str(environment.create_unbacked_symint()) not in known


def test_fake_tensors(round_trip):
    """Fake tensors keep type, shape, strides, offset, device, gradient, and a constant where they have one."""
    program = trace(torch.relu)
    mode = call(program).meta["val"].fake_mode
    meta = torch.empty(40, dtype=torch.float16, device="meta").as_strided((3, 2), (1, 5), 7)
    fake = FakeTensor(mode, meta, torch.device("cuda:1"), constant=torch.tensor([3.0]))
    fake.requires_grad_()
    program.graph_module.graph.output_node().meta["custom"] = fake
    call(program).meta["val"] = fake
    program.state_dict["weight"] = mode.from_tensor(nn.Parameter(torch.ones(2)), static_shapes=True)
    loaded = round_trip(program)
    copy, weight = call(loaded).meta["val"], loaded.state_dict["weight"]
    assert isinstance(weight, FakeTensor)
    assert isinstance(weight, nn.Parameter)
    assert copy is loaded.graph.output_node().meta["custom"]
    assert (copy.dtype, copy.shape, copy.stride()) == (torch.float16, (3, 2), (1, 5))
    assert (copy.storage_offset(), copy.device, copy.requires_grad) == (7, torch.device("cuda:1"), True)
    assert torch.equal(copy.constant, torch.tensor([3.0]))
    placeholder = next(iter(loaded.graph.nodes))
    assert copy.fake_mode is placeholder.meta["val"].fake_mode


def test_fake_tensors_without_elements(round_trip):
    """One of size zero that begins within its storage is restored as it is."""
    program = trace(torch.relu)
    meta = torch.empty(40, device="meta").as_strided((0, 3), (5, 1), 7)
    call(program).meta["val"] = FakeTensor(call(program).meta["val"].fake_mode, meta, torch.device("cpu"))
    copy = call(round_trip(program)).meta["val"]
    assert (copy.shape, copy.stride(), copy.storage_offset()) == ((0, 3), (5, 1), 7)


def test_what_was_added(round_trip):
    """`meta` may name nodes of its graph, later ones too; nodes of other graphs become None."""
    program = trace(lambda x: torch.relu(x) + 1)
    first, second = call(program, 0), call(program, 1)
    first.meta["later"] = [second]
    first.meta["elsewhere"] = call(trace(torch.relu))
    program.graph_module.meta |= {"first": first, "other": re.compile("a+")}
    program.graph_module.note = {"any": [1, 2.5]}
    loaded = round_trip(program)
    assert loaded.graph_module.meta["other"] == re.compile("a+")
    assert loaded.graph_module.note == {"any": [1, 2.5]}
    assert set(vars(program.graph_module)) - set(vars(loaded.graph_module)) <= {"_in_spec", "_out_spec"}
    assert loaded.graph_module.meta["first"] is call(loaded, 0)
    assert call(loaded, 0).meta["later"] == [call(loaded, 1)]
    assert call(loaded, 0).meta["elsewhere"] is None
    assert len(loaded.graph.nodes) == len(program.graph.nodes)


def test_history(round_trip):
    """`from_node` keeps every step; graphs that were one stay one, though their ids are other numbers."""
    program = trace(lambda x: torch.relu(x) + 1).run_decompositions({}).run_decompositions({})
    loaded = round_trip(program)
    graphs: dict[int, int] = {}

    def compare(before: Any, after: Any) -> None:
        assert (before.name, before.target, before.pass_name) == (after.name, after.target, after.pass_name)
        assert before.action == after.action
        assert graphs.setdefault(before.graph_id, after.graph_id) == after.graph_id
        for one, other in zip(before.from_node, after.from_node, strict=True):
            compare(one, other)

    nodes = 0
    for before, after in zip(program.graph.nodes, loaded.graph.nodes, strict=True):
        for one, other in zip(before.meta.get("from_node", []), after.meta.get("from_node", []), strict=True):
            nodes += 1
            compare(one, other)
    assert nodes
    assert len(set(graphs.values())) == len(graphs)


class Mine(nn.Module):
    """A module of a user's."""


def test_sources(round_trip):
    """Classes in provenance: torch's stay, for the passes that compare them; users' become names, never imported."""
    program = trace(torch.relu)
    call(program).meta["source_fn_stack"] = [("mine", Mine), ("linear", nn.Linear), ("torch", torch.relu)]
    call(program).meta["nn_module_stack"] = {"m": ("m", Mine), "l": ("m.l", nn.Linear)}
    meta = call(round_trip(program)).meta
    name = f"{Mine.__module__}.Mine"
    assert meta["source_fn_stack"] == [("mine", name), ("linear", nn.Linear), ("torch", torch.relu)]
    assert meta["nn_module_stack"] == {"m": ("m", name), "l": ("m.l", nn.Linear)}
    unhashable = {"torch_fn": ("relu", ["a"]), "nn_module_stack": {"m": ("m", ["a"])}}
    call(program).meta.update(unhashable)
    assert unhashable.items() <= call(round_trip(program)).meta.items()


def test_operators(round_trip):
    """Operators of every kind come back as the same objects."""
    program = trace(lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)))
    kept = [
        torch.ops.aten.sum,
        torch.ops.aten.sum.dim_IntList,
        torch.ops.higher_order.cond,
        exir_ops.edge.aten.sum.dim_IntList,
        exir_ops.backend.executorch_prim.add.Scalar,
        torch.ops.quantized_decomposed.quantize_per_tensor.default,
    ]
    call(program).meta["kept"] = kept
    loaded = round_trip(program)
    assert all(one is other for one, other in zip(call(loaded).meta["kept"], kept, strict=True))
    assert [node.target for node in loaded.graph.nodes if node.op == "call_function"] == [
        node.target for node in program.graph.nodes if node.op == "call_function"
    ]


def test_operators_kept_from_decomposition(round_trip):
    """Exir's copies of aten operators exist while it lowers, in one process: they are stored as the aten operators."""
    program = trace(torch.relu)
    expected = program_digest(program)
    _program._register_no_decomp_op(torch.ops.aten.relu.default)
    call(program).target = _program.aten_op_to_transform_op[torch.ops.aten.relu.default]
    assert program_digest(program) == expected
    assert call(round_trip(program)).target is torch.ops.aten.relu.default


def test_edge(round_trip):
    """An edge program keeps its operators and its verifier's options."""
    config = EdgeCompileConfig(
        _check_ir_validity=True,
        _skip_dim_order=True,
        _core_aten_ops_exception_list=[torch.ops.aten.median.default],
        preserve_ops=[torch.ops.aten.hardswish.default],
    )
    program = to_edge(trace(torch.relu), compile_config=config).exported_program()
    loaded = round_trip(program)
    assert isinstance(call(loaded).target, EdgeOpOverload)
    verifier = loaded.verifier()
    assert (verifier.dialect, verifier.enable, verifier.use_dim_order) == ("EDGE", True, False)
    assert torch.ops.aten.median.default in verifier._core_aten_ops_exception_list
    assert torch.ops.aten.hardswish.default in verifier._preserve_ops
    verifier(loaded.graph_module)


def test_other_verifiers(round_trip, store):
    """ATen verifiers of torch and exir come back; one that only exists inside a function is refused."""
    program = trace(torch.relu)
    assert round_trip(program).verifiers == program.verifiers
    program._verifiers = [EXIRATenDialectVerifier(class_only=True, preserve_ops=[torch.ops.aten.hardswish.default])]
    assert round_trip(program).verifier()._preserve_ops == [torch.ops.aten.hardswish.default]

    class Local(Verifier):
        dialect = "LOCAL"

    program._verifiers = [Local]
    with pytest.raises(StoreError, match="LOCAL"):
        save_program(program, kind="program/test", store=store)


def test_delegate(round_trip, tmp_path: Path):
    """A lowered module keeps its bytes, specs, named data (large buffers as files of the store) and the original."""
    (tmp_path / "weights").write_bytes(b"w" * 6000)
    buffers = [b"x" * 5000, b"small", FileBackedData(str(tmp_path / "weights"))]
    entries = {"a": DataEntry(0, 16, None), "b": DataEntry(1, 1, None), "c": DataEntry(2, 64, None)}
    named = NamedDataStoreOutput(buffers, entries, {"outside": {"d": DataEntry(0, 1, None)}})
    original = to_edge(trace(torch.relu)).exported_program()
    program = trace(torch.relu)
    lowered = LoweredBackendModule(original, "SomeBackend", b"p" * 9000, [CompileSpec("key", b"value")], named)
    lowered.meta = {"debug_handle_map": {1: (2, 3)}}
    program.graph_module.lowered_module_0 = lowered
    with program.graph.inserting_before(call(program)):
        program.graph.get_attr("lowered_module_0")
    call(program).meta["file"] = buffers[2]
    restored = round_trip(program)
    (tmp_path / "weights").unlink()
    assert call(restored).meta["file"].to_bytes() == b"w" * 6000
    loaded = restored.graph_module.lowered_module_0
    assert (loaded.backend_id, loaded.processed_bytes) == ("SomeBackend", b"p" * 9000)
    assert (loaded.compile_specs, loaded.meta) == (lowered.compile_specs, lowered.meta)
    assert program_digest(loaded.original_module) == program_digest(original)
    output = loaded.named_data_store_output
    assert (output.pte_data, output.external_data) == (named.pte_data, named.external_data)
    assert [type(buffer) for buffer in output.buffers] == [FileBackedData, bytes, FileBackedData]
    assert [output.buffers[0].to_bytes(), output.buffers[2].to_bytes()] == [b"x" * 5000, b"w" * 6000]
    assert output.buffers[2].sha256() == hashlib.sha256(b"w" * 6000).digest()


def test_specs(round_trip):
    """Tensor specs of memory planning come back; a view spec still follows its base."""
    program = trace(lambda x: torch.relu(x) + 1)
    base = TensorSpec.from_tensor(torch.zeros(4))
    call(program, 0).meta["spec"] = base
    call(program, 1).meta["spec"] = _ViewSpec(base, [2, 2])
    loaded = round_trip(program)
    spec, view = call(loaded, 0).meta["spec"], call(loaded, 1).meta["spec"]
    assert isinstance(view, _ViewSpec)
    assert (view.shape, view.nbytes()) == ([2, 2], 16)
    spec.mem_offset = 48
    assert view.mem_offset == 48


def test_names_kept(round_trip):
    """Node names are what the signature refers to: they stay, also after nodes in between were removed."""
    program = trace(lambda x: x + 1 + 2 + 3)
    first, second, third = (call(program, position) for position in range(3))
    second.replace_all_uses_with(first)
    program.graph.erase_node(second)
    loaded = round_trip(program)
    assert [node.name for node in loaded.graph.nodes] == [node.name for node in program.graph.nodes]
    assert call(loaded, 1).args == (call(loaded, 0), 3)
    assert third.name == call(loaded, 1).name
    third.name = "not a name torch gives"
    assert call(round_trip(program), 1).name == "not a name torch gives"
    emitted = to_edge(trace(lambda x: (x.view(2, 2) + 1).sum(0))).to_executorch().exported_program()
    assert [node.name for node in round_trip(emitted).graph.nodes] == [node.name for node in emitted.graph.nodes]


@pytest.mark.parametrize("unknown", [torch.eye(3).to_sparse(), torch.zeros(2, dtype=torch.cfloat).conj(), lambda: None])
def test_refused(unknown, store):
    """A tensor that is not made of one storage on the CPU is refused in words; so is what pickle cannot name."""
    program = trace(torch.relu)
    program.state_dict["unknown"] = unknown
    with pytest.raises(StoreError, match="program/test cannot be stored"):
        save_program(program, kind="program/test", store=store)
    program = trace(torch.relu)
    call(program).args = (call(program).args[0], object())
    with pytest.raises(StoreError, match="no canonical"):
        program_digest(program)


@pytest.mark.parametrize(
    ("namespace", "name"),
    [
        ("quantized_decomposed", "quantize_per_tensor"),
        ("torchao", "dequantize_affine"),
        ("quant", "dequantize_codebook"),
        ("dim_order_ops", "_to_dim_order_copy"),
    ],
)
def test_operators_of_libraries(namespace, name):
    """Operators that quantizers and passes bring are found, whether their library has been imported before or not."""
    found = restore.operator(namespace, name, "default")
    assert str(found) == f"{namespace}.{name}.default"
