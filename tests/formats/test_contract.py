"""Contracts: the kernels, backends and releases that files need, as ExecuTorch's own tools and runtime see them."""

from __future__ import annotations

import contextlib
import io
import json
from importlib.metadata import version
from pathlib import Path

import executorch
import pytest
import yaml
from executorch.codegen.tools.gen_oplist import gen_oplist
from pteforge.errors import FileFormatError, InputError
from pteforge.formats.contract import (
    _ADDED,
    ANY_KERNEL,
    ANY_PRIM,
    RELEASES,
    Contract,
    Needs,
    additions,
    check_release,
    describe_key,
    judge,
    kernel_libraries,
    read_needs,
    selective_key,
)
from pteforge.formats.pte.contents import KernelCall
from pteforge.formats.pte.reader import read_kernel_calls
from pteforge.tests.zoo.networks import Function

NEEDS = Needs("", 0, (), (KernelCall("forward", "aten::add.out", "v1/6;0|6;0"),))
LATER = "aten::bitwise_left_shift.Tensor_out"


def write(folder: Path, content: bytes) -> Path:
    path = folder / "model.pte"
    path.write_bytes(content)
    return path


def with_calls(*calls: tuple[str, str], payload: str = "", backends: tuple[str, ...] = ()) -> Needs:
    return Needs(payload, 0, backends, tuple(KernelCall("forward", *call) for call in calls))


def test_selective_build_gets_what_its_own_tool_makes(sample, tmp_path):
    """`selected_operators.yaml` of a plain file equals, in every field, what executorch's gen_oplist makes of it."""
    path, expected = write(tmp_path, sample), tmp_path / "selected_operators.yaml"
    with contextlib.redirect_stdout(io.StringIO()):
        gen_oplist(expected, model_file_path=str(path))
    contract = Contract.of(read_needs(path))
    assert contract.selected_operators([str(path)]) == yaml.safe_load(expected.read_text())


def test_keys_have_lists_apart(samples):
    """A list of tensors stands in brackets, since selective build counts its first tensor."""
    keys = {call.operator: call.key for call in read_kernel_calls(samples.files["lists"])}
    listed = {key for key in keys.values() if "[" in key}
    assert listed
    for key in listed:
        assert key.startswith("v1/")
        assert selective_key(key).count(";") == key.count(";")


def test_keys_in_words():
    """Dtypes by torch's names, with their dim orders, equal ones together."""
    assert describe_key("v1/6;0,1|6;0,1|4;") == "2 x float32(0,1), int64()"
    assert describe_key("v1/[15;0]|99;0") == "bfloat16(0), 99(0)"
    assert describe_key("v1") == "no tensors"
    assert describe_key(ANY_KERNEL) == "all dtypes"


def test_lines_of_the_model():
    """With stack traces in the file, a call has the line of the model; without, it is empty."""
    import torch
    from executorch.exir import ExecutorchBackendConfig, to_edge
    from torch.export import export

    net = Function(lambda x: x.sin() * x)
    program = export(net, (torch.ones(2, 3),))
    for traces in (True, False):
        made = to_edge(program).to_executorch(ExecutorchBackendConfig(emit_stacktrace=traces))
        lines = {call.operator: call.line for call in read_kernel_calls(made.buffer)}
        assert lines.keys() == {"aten::sin.out", "aten::mul.out"}
        assert all(line.startswith("networks.py:") == traces for line in lines.values())
        assert all(line.endswith(" in forward") == traces for line in lines.values())


def test_fat_files(payloads, packed, tmp_path):
    """A fat file needs `libnfat_backend`, and what each payload needs; the contract has each, and all together."""
    from pteforge.tasks.backend.file_programs import write_fat

    path = tmp_path / "fat.pte"
    write_fat(packed, memoryview(payloads[-1][1]), path)
    outer, xnnpack, portable = read_needs(path)
    assert (outer.payload, outer.backends, outer.calls) == ("", ("NfatBackend",), ())
    assert (xnnpack.payload, xnnpack.backends) == ("xnnpack", ("XnnpackBackend",))
    plain = Contract.of(read_needs(write(tmp_path, payloads[-1][1])))
    assert plain.runtimes == dict.fromkeys(RELEASES, "derived")
    contract = Contract.of((outer, xnnpack, portable), run_on="1.5.1+cpu")
    assert contract.payloads["portable"].operators == plain.operators
    assert contract.operators.keys() == plain.operators.keys() | {call.operator for call in xnnpack.calls}
    assert contract.backends == ("NfatBackend", "XnnpackBackend")
    assert contract.libraries == ["portable_ops_lib", "nfat_backend"]
    assert contract.runtimes == {"1.5": "run"}  # what `libnfat_backend` is built for
    described = contract.described()
    assert Contract.from_json(json.loads(json.dumps(described))) == contract
    assert described["payloads"]["portable"]["libraries"] == ["portable_ops_lib"]
    assert "1.4" not in Contract.of((outer, xnnpack, portable), run_on="1.4.1+cpu").runtimes  # has no libnfat_backend


def test_damaged_payloads(payloads, packed, tmp_path):
    """A payload that cannot be read is an error that names the file: what it needs is not known."""
    from pteforge.tasks.backend.file_programs import write_fat

    path, data = tmp_path / "fat.pte", tmp_path / "fat.ptd"
    write_fat(packed, memoryview(payloads[-1][1]), path, data_path=data)
    assert len(read_needs(path, [data])) == 3
    with pytest.raises(FileFormatError, match=r"fat\.pte: .*needs the blob"):
        read_needs(path)


def test_libraries_of_kernels():
    """Operators of known namespaces are a library each; those of others stand for themselves; prim ones need none."""
    assert kernel_libraries(["aten::add.out", "dim_order_ops::_clone_dim_order.out"]) == ["portable_ops_lib"]
    operators = ("executorch_prim::add.Scalar", "quantized_decomposed::embedding_4bit.out", "own::op.out")
    assert kernel_libraries(operators) == ["own::op.out", "quantized_ops_lib"]
    assert kernel_libraries(["aten::sym_size.int", "aten::_local_scalar_dense"]) == []


def test_less_any_one_kernel(sample, tmp_path):
    """A file fits its own contract, and is refused by that less any one kernel, which the message names."""
    needs = read_needs(write(tmp_path, sample))
    contract = Contract.of(needs)
    assert judge(needs, operators=contract.operators, backends=contract.backends) == ([], [])
    for operator, keys in contract.operators.items():
        for key in keys:
            less = {**contract.operators, operator: tuple(other for other in keys if other != key)}
            (problem,) = judge(needs, operators=less, backends=contract.backends).problems
            assert problem.startswith(f"{operator} for {describe_key(key)}, method ")
            assert additions(contract, less, contract.backends).operators == {operator: (key,)}
    for backend in contract.backends:
        others = set(contract.backends) - {backend}
        assert backend in judge(needs, operators=contract.operators, backends=others).problems[0]
        assert additions(contract, contract.operators, others).backends == (backend,)


def test_messages_say_what_the_runtime_has():
    """Whether it lacks the operator or has it for other kernels, and each method and line that calls it."""
    calls = tuple(
        KernelCall(name, "aten::add.out", "v1/5;0", line) for name, line in (("a", "net.py:3 in f"), ("b", ""))
    )
    needs = [Needs("", 0, (), calls)]
    (problem,) = judge(needs, operators={"aten::add.out": ("v1/6;0",)}).problems
    assert (
        problem
        == "aten::add.out for float16(0), method a at net.py:3 in f and 1 more: the runtime has it for float32(0)"
    )
    assert judge(needs, operators={}).problems[0].endswith("the runtime lacks the operator")
    assert judge(needs, operators={"aten::add.out": (ANY_KERNEL,)}).problems == []
    prim = [with_calls(("executorch_prim::add.Scalar", "v1"))]
    assert judge(prim, operators={}).problems
    assert judge(prim, operators={ANY_PRIM: (ANY_KERNEL,)}).problems == []


def test_payloads_that_a_runtime_passes_over():
    """Those for backends that it lacks are no reason to refuse a file, unless none is left; all others have to load."""
    outer, gpu = Needs("", 0, ("NfatBackend",), ()), with_calls(payload="gpu", backends=("VulkanBackend",))
    cpu = with_calls(("aten::add.out", "v1/6;0"), payload="cpu")
    have = {"aten::add.out": ("v1/6;0",)}
    passed = judge((outer, gpu, cpu), operators=have, backends=["NfatBackend"])
    assert passed == ([], ["payload gpu: passed over: the runtime lacks VulkanBackend"])
    (problem,) = judge((outer, gpu, cpu), operators={}, backends=["NfatBackend", "VulkanBackend"]).problems
    assert problem.startswith("payload cpu: aten::add.out for float32(0), method forward")
    assert "none of its payloads" in judge((outer, gpu), operators=have, backends=["NfatBackend"]).problems[0]
    assert judge((outer, cpu), operators=have, backends=[]).problems == [
        "it needs the backend NfatBackend, which the runtime lacks"
    ]
    assert judge((outer, gpu, cpu), operators=have).problems == []  # backends are not known


def test_releases():
    """A release opens what needs none of the operators that later ones added; fat files need `libnfat_backend`."""
    shift = [with_calls((LATER, "v1/3;0|3;0"))]
    assert list(Contract.of(shift).runtimes) == list(RELEASES[1:])
    assert judge(shift, "1.0").problems == [f"{LATER} for 2 x int32(0), method forward: ExecuTorch has it since 1.1"]
    assert Contract.of(shift, run_on="1.4.0+cpu").runtimes["1.4"] == "run"
    assert Contract.of([Needs("", 1, (), ())]).runtimes == {}
    assert judge([Needs("", 0, ("NfatBackend",), ())], "1.4").problems[0].startswith("libnfat_backend is made for")
    assert check_release("1.4") == check_release("1.4.1") == "1.4"
    for unknown in ("0.7", "1.99.0"):
        with pytest.raises(InputError, match="known are 1"):
            check_release(unknown)


def test_the_installed_release_is_known():
    """Whoever updates ExecuTorch adds its release, and the operators that it adds: all of the table are in there."""
    assert check_release(version("executorch").partition("+")[0]) == RELEASES[-1]
    package = Path(next(iter(executorch.__path__)))
    text = "\n".join(
        (package / name).read_text()
        for name in (
            "kernels/portable/functions.yaml",
            "kernels/quantized/quantized.yaml",
            "extension/llm/custom_ops/custom_ops.py",
        )
    )
    for operator in (operator for added in _ADDED.values() for operator in added):
        space, _, name = operator.partition("::")
        if space in ("aten", "llama"):
            assert name.removesuffix(".out") in text, operator


def test_unions():
    """The contract of several files has the kernels and backends of all of them."""
    other = Contract({"aten::add.out": ("v1/5;0",), "aten::mul.out": ("v1/6;0",)}, ("XnnpackBackend",))
    both = Contract.union([Contract.of([NEEDS]), other])
    assert both.operators == {"aten::add.out": ("v1/5;0", "v1/6;0|6;0"), "aten::mul.out": ("v1/6;0",)}
    assert both.backends == ("XnnpackBackend",)
    assert additions(other, both.operators, both.backends) == Contract()
    assert additions(other, None, None) == Contract()
