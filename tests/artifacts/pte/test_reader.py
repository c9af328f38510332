"""What is read from real files is what ExecuTorch itself says about them."""

from __future__ import annotations

import mmap
import struct
import subprocess
import sys

import pytest
from pteforge.artifacts.pte.contents import PteFile, ScalarSpec, TensorSpec
from pteforge.artifacts.pte.reader import open_pte, read_pte
from pteforge.errors import FileFormatError, InputError


def test_agrees_with_executorch(sample):
    """Methods, operators, delegates, segments and named data are those of upstream's own deserializer."""
    from executorch.exir._serialize._flatbuffer_program import _flatbuffer_to_program

    pte = read_pte(sample)
    program = _flatbuffer_to_program(sample[: pte.program_size])
    assert pte.size == len(sample)
    assert pte.version == program.version
    assert [method.name for method in pte.methods] == [plan.name for plan in program.execution_plan]
    for method, plan in zip(pte.methods, program.execution_plan, strict=True):
        assert list(method.operators) == [f"{op.name}.{op.overload}".rstrip(".") for op in plan.operators]
        assert [delegate.id for delegate in method.delegates] == [delegate.id for delegate in plan.delegates]
        assert list(method.planned_memory) == plan.non_const_buffer_sizes[1:]
        kinds = [type(each.instr_args).__name__ for chain in plan.chains for each in chain.instructions]
        counts = method.instructions
        assert (counts.kernel_calls, counts.delegate_calls, counts.moves, counts.jumps, counts.frees) == tuple(
            map(kinds.count, ("KernelCall", "DelegateCall", "MoveCall", "JumpFalseCall", "FreeCall"))
        )
        assert sum(method.operator_calls) == counts.kernel_calls
        for specs, indices in ((method.inputs, plan.inputs), (method.outputs, plan.outputs)):
            assert len(specs) == len(indices)
            for spec, index in zip(specs, indices, strict=True):
                value = plan.values[index].val
                if isinstance(spec, TensorSpec):
                    assert list(spec.shape) == value.sizes
                    assert list(spec.dim_order) == list(value.dim_order)
    assert [(each.offset - pte.segment_base, each.size) for each in pte.segments] == [
        (each.offset, each.size) for each in program.segments
    ]
    assert [(each.key, each.segment) for each in pte.named_data] == [
        (each.key, each.segment_index) for each in program.named_data or []
    ]


@pytest.mark.filterwarnings("ignore:This API is experimental")  # what ExecuTorch says of its Python runtime
def test_agrees_with_the_runtime(samples):
    """Shapes and element types of inputs and outputs are those that the runtime reports."""
    from executorch.runtime import Runtime

    names = {6: "float32", 4: "int64"}
    for name in ("portable", "xnnpack", "methods", "dynamic"):
        program = Runtime.get().load_program(samples.files[name])
        pte = read_pte(samples.files[name])
        assert {method.name for method in pte.methods} == set(program.method_names)
        for method in pte.methods:
            meta = program.metadata(method.name)
            assert meta.num_inputs() == len(method.inputs)
            assert meta.num_outputs() == len(method.outputs)
            for index, spec in enumerate(method.inputs):
                info = meta.input_tensor_meta(index)
                assert (tuple(info.sizes()), names[info.dtype()]) == (spec.shape, spec.dtype)
                assert info.nbytes() == spec.nbytes


def test_constants_are_the_weights(samples):
    """The ranges of constants are exactly the bytes of the module's parameters."""
    content = samples.files["portable"]
    found = {content[each.offset : each.offset + each.size] for each in read_pte(content).constants}
    assert found == set(samples.weights.values())


def test_initial_states_are_the_buffers(samples):
    """Mutable buffers with an initial state are found with their values, apart from constants."""
    import torch

    content = samples.files["mutable"]
    states = [each for each in read_pte(content).constants if each.mutable]
    assert [each.tensor.shape for each in states] == [(512,), (1, 700)]
    count = content[states[0].offset : states[0].offset + states[0].size]
    assert torch.equal(torch.frombuffer(bytearray(count), dtype=torch.float32), torch.arange(512.0))
    assert content[states[1].offset : states[1].offset + states[1].size] == bytes(2800)


def test_constant_methods(samples):
    """Methods that only return constants are known as such, with their values; others are not."""
    methods = {method.name: method for method in read_pte(samples.files["methods"]).methods}
    assert not methods.pop("forward").constant
    assert not methods.pop("encode").constant
    assert all(method.constant for method in methods.values())
    assert {name: method.outputs for name, method in methods.items()} == {
        "max_length": (ScalarSpec("int", 128),),
        "title": (ScalarSpec("string", "ü"),),
        "scale": (ScalarSpec("double", 0.5),),
        "flag": (ScalarSpec("bool", value=True),),
        "sizes": (ScalarSpec("int", 1), ScalarSpec("int", 2)),
        "limit": (ScalarSpec("double", float("inf")),),
        "ids": (TensorSpec("int64", (300,), (0,), "static", 2400),),
    }


def test_dynamic_shapes(samples):
    """A dimension with an upper bound is reported by that bound."""
    (method,) = read_pte(samples.files["dynamic"]).methods
    assert method.inputs == (TensorSpec("float32", (16, 64), (0, 1), "bound", 4096),)


def test_delegates(samples):
    """Delegates say which backend they need and where their bytes are: in a segment, or inside the flatbuffer."""
    for name, location in (("xnnpack", "segment"), ("inline", "inline")):
        pte = read_pte(samples.files[name])
        (delegate,) = pte.methods[0].delegates
        assert (delegate.id, delegate.location) == ("XnnpackBackend", location)
        assert pte.backends == ("XnnpackBackend",)
        assert (delegate.offset < pte.program_size) == (location == "inline")
        data = samples.files[name][delegate.offset : delegate.offset + delegate.size]
        assert data[4:8] == b"XH00"  # XNNPACK's own header
    assert read_pte(samples.files["portable"]).backends == ()


def test_external_constants(samples):
    """Tensors whose data is in another file are named, and are no constants of this one."""
    pte = read_pte(samples.files["external"])
    assert [tensor.name for tensor in pte.external] == ["conv.bias", "conv.weight", "linear.bias", "linear.weight"]
    assert all(tensor.nbytes for tensor in pte.external)
    assert pte.constants == ()


def test_any_buffer_will_do(samples, tmp_path):
    """bytes, memoryview and mmap of a file give the same; the buffer is free afterwards."""
    content = samples.files["xnnpack"]
    path = tmp_path / "model.pte"
    path.write_bytes(content)
    expected = read_pte(content)
    assert isinstance(expected, PteFile)
    assert read_pte(memoryview(bytearray(content))) == expected
    assert open_pte(path) == expected
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert read_pte(mapped) == expected  # and closing does not fail for views that are still held


def test_files_that_cannot_be_read(tmp_path):
    """A missing file, a folder and an empty file give errors that name the file."""
    (tmp_path / "empty.pte").touch()
    for path, error, problem in (
        (tmp_path / "none.pte", InputError, "cannot be read: No such file"),
        (tmp_path, InputError, "cannot be read: Is a directory"),
        (tmp_path / "empty.pte", FileFormatError, "is empty"),
    ):
        with pytest.raises(error, match=problem) as caught:
            open_pte(path)
        assert str(path) in str(caught.value)


def test_damage_names_the_file(samples, tmp_path):
    """The message about a damaged file starts with its path."""
    path = tmp_path / "cut.pte"
    path.write_bytes(samples.files["portable"][:5000])
    with pytest.raises(FileFormatError, match="cut short") as caught:
        open_pte(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_reading_imports_no_torch():
    """The reader works without torch and ExecuTorch."""
    code = "import pteforge.artifacts.pte.reader, pteforge.artifacts.pte.describe, sys\n"
    code += "print(*sorted({'torch', 'executorch'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize("name", ["portable", "methods", "mutable"])
def test_table_sizes_are_not_relied_on(samples, name):
    """Some versions of flatbuffers write too small a size for tables; runtimes do not look at it, and neither do we."""
    content = bytearray(samples.files[name])
    (root,) = struct.unpack_from("<I", content, 0)
    (back,) = struct.unpack_from("<i", content, root)
    struct.pack_into("<H", content, root - back + 2, 4)
    assert read_pte(bytes(content)) == read_pte(samples.files[name])
