"""The reader agrees with ExecuTorch about real files."""

import mmap
import struct
from pathlib import Path

import pytest
from pteforge.errors import FileFormatError, InputError
from pteforge.formats.pte.contents import DTYPES, PteFile, ScalarSpec, TensorSpec
from pteforge.formats.pte.reader import open_pte, read_pte


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
                    assert (list(spec.shape), list(spec.dim_order)) == (value.sizes, list(value.dim_order))
                    assert spec.dtype == DTYPES[value.scalar_type].name
    assert [(each.offset - pte.segment_base, each.size) for each in pte.segments] == [
        (each.offset, each.size) for each in program.segments
    ]
    assert [(each.key, each.segment) for each in pte.named_data] == [
        (each.key, each.segment_index) for each in program.named_data or []
    ]


def test_constants_are_the_weights(samples):
    """The ranges of constants are exactly the bytes of the module's parameters."""
    content = samples.files["portable"]
    found = {constant.extent.of(content) for constant in read_pte(content).constants}
    assert found == set(samples.weights.values())


def test_initial_states_are_the_buffers(samples):
    """Mutable buffers with an initial state are found with their values, apart from constants."""
    import torch

    content = samples.files["mutable"]
    states = [each for each in read_pte(content).constants if each.mutable]
    assert [each.tensor.shape for each in states] == [(512,), (1, 700)]
    count, zero = (state.extent.of(content) for state in states)
    assert torch.equal(torch.frombuffer(bytearray(count), dtype=torch.float32), torch.arange(512.0))
    assert zero == bytes(2800)


def test_constant_methods(samples):
    """Only methods that return constants are constant, and their values are read."""
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
        assert (delegate.extent.offset < pte.program_size) == (location == "inline")
        data = delegate.extent.of(samples.files[name])
        assert data[4:8] == b"XH00"  # XNNPACK's own header
    assert read_pte(samples.files["portable"]).backends == ()


def test_external_constants(samples):
    """Tensors whose data is in another file are listed, and are not constants of this one."""
    pte = read_pte(samples.files["external"])
    assert [tensor.name for tensor in pte.external] == ["conv.bias", "conv.weight", "linear.bias", "linear.weight"]
    assert all(tensor.nbytes for tensor in pte.external)
    assert pte.constants == ()


def test_any_buffer_will_do(samples, tmp_path):
    """bytes, memoryview and mmap of a file are read alike, and the buffer is released."""
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
    """A missing file, a folder, an empty file and a damaged one are errors that name the file."""
    (tmp_path / "empty.pte").touch()
    (tmp_path / "text.pte").write_text("not a program")
    for path, error, problem in (
        (tmp_path / "none.pte", InputError, "cannot be read: No such file"),
        (tmp_path, InputError, "cannot be read: Is a directory"),
        (Path("/dev/zero"), InputError, "cannot be read: it is a pipe or device"),
        (tmp_path / "empty.pte", FileFormatError, "is empty"),
        (tmp_path / "text.pte", FileFormatError, r"not a \.pte"),
    ):
        with pytest.raises(error, match=problem) as caught:
            open_pte(path)
        assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize("name", ["portable", "methods", "mutable"])
def test_table_sizes_are_not_relied_on(samples, name):
    """Table sizes, which some versions of flatbuffers write wrongly, are ignored, as by runtimes."""
    content = bytearray(samples.files[name])
    (root,) = struct.unpack_from("<I", content, 0)
    (back,) = struct.unpack_from("<i", content, root)
    struct.pack_into("<H", content, root - back + 2, 4)
    assert read_pte(bytes(content)) == read_pte(samples.files[name])
