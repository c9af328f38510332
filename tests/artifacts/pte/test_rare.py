"""What the schema allows and today's exporter hardly writes: lists, control flow, constants inside the flatbuffer."""

from __future__ import annotations

import dataclasses

import pytest
from pteforge.artifacts.pte.contents import InstructionCounts, ScalarSpec
from pteforge.artifacts.pte.cuts import Range, cut
from pteforge.artifacts.pte.describe import describe
from pteforge.artifacts.pte.pieces import read_payload, save_payload
from pteforge.artifacts.pte.reader import read_pte
from pteforge.errors import FileFormatError

# ExecuTorch reads its schema files with it.
pytestmark = pytest.mark.filterwarnings("ignore:read_binary is deprecated:DeprecationWarning")


def _file(plan, **fields) -> bytes:
    """A file without segments, written by ExecuTorch's own serializer: `plan` is its one method."""
    from executorch.exir import schema
    from executorch.exir._serialize._flatbuffer_program import _program_to_flatbuffer

    empty = schema.Program(0, [plan], [], [], [], schema.SubsegmentOffsets(0, []))
    return bytes(_program_to_flatbuffer(dataclasses.replace(empty, **fields)).data)


def _plan(values, *, outputs=(), instructions=(), **fields):
    from executorch.exir import schema

    return dataclasses.replace(
        schema.ExecutionPlan(
            "forward",
            schema.ContainerMetadata("", ""),
            [schema.EValue(value) for value in values],
            [],
            list(outputs),
            [schema.Chain([], [], [schema.Instruction(each) for each in instructions], None)],
            [schema.Operator("aten::nop", "")],
            [],
            [0],
        ),
        **fields,
    )


def _tensor(index=0, shape=(4,), order=None, **fields):
    from executorch.exir import schema

    order = list(range(len(shape))) if order is None else order
    dynamism = schema.TensorShapeDynamism.STATIC
    tensor = schema.Tensor(schema.ScalarType.FLOAT, 0, list(shape), order, False, 0, index, None, dynamism)
    return dataclasses.replace(tensor, **fields)


def test_every_kind_of_value():
    """Scalars, strings and lists of all kinds are read with their contents."""
    from executorch.exir import schema

    values = [
        schema.Null(),
        schema.Int(-(2**63)),
        schema.Bool(bool_val=False),
        schema.Double(-0.25),
        schema.String("text"),
        schema.IntList([1, 2]),
        schema.DoubleList([0.5, 2.0]),
        schema.BoolList([True, False]),
        schema.TensorList([9, 9]),
        _tensor(),
        schema.OptionalTensorList([9, -1]),
    ]
    (method,) = read_pte(_file(_plan(values, outputs=[0, 1, 2, 3, 4, 5, 6, 7, 8, 10]))).methods
    assert method.outputs == (
        ScalarSpec("none", None),
        ScalarSpec("int", -(2**63)),
        ScalarSpec("bool", value=False),
        ScalarSpec("double", -0.25),
        ScalarSpec("string", "text"),
        ScalarSpec("int_list", (1, 2)),
        ScalarSpec("double_list", (0.5, 2.0)),
        ScalarSpec("bool_list", (True, False)),
        ScalarSpec("tensor_list", (9, 9)),
        ScalarSpec("optional_tensor_list", (9, -1)),
    )


def test_control_flow_is_counted():
    """Moves, jumps and frees are counted each for itself, operators without an overload have just their name."""
    from executorch.exir import schema

    instructions = [
        schema.KernelCall(0, []),
        schema.MoveCall(0, 0),
        schema.MoveCall(0, 0),
        schema.JumpFalseCall(0, 0),
        schema.FreeCall(0),
    ]
    (method,) = read_pte(_file(_plan([schema.Null()], instructions=instructions))).methods
    assert method.instructions == InstructionCounts(kernel_calls=1, moves=2, jumps=1, frees=1)
    assert (method.operators, method.operator_calls) == (("aten::nop",), (1,))
    assert not method.constant


@pytest.mark.parametrize(
    ("arguments", "outputs", "more", "delegated"),
    [
        ([0, 1, 2], [2], 0, True),
        ([1, 0, 2], [2], 0, False),
        ([0, 2], [2], 0, False),
        ([0, 1, 2], [2], 1, False),
        ([0, 1, 2, 3, 4], [4, 3, 4], 0, True),
        ([0, 1, 2, 3, 4], [4, 3, 2], 0, False),
        ([0, 1, 2, 3, 4], [2, 0, 4], 0, False),
    ],
)
def test_delegated_as_a_whole(arguments, outputs, more, delegated):
    """A method is delegated if its one instruction gives a delegate all inputs and outputs, in their order.

    Where a method returns a value twice, one of two equal outputs of its delegate may stand for both.
    """
    from executorch.exir import schema

    reference = schema.BackendDelegateDataReference(schema.DataLocation.INLINE, 0)
    plan = _plan(
        [schema.Null()] * 5,
        outputs=outputs,
        instructions=[schema.DelegateCall(0, arguments), *[schema.MoveCall(0, 0)] * more],
        inputs=[0, 1],
        delegates=[schema.BackendDelegate("B", reference, [])],
    )
    (method,) = read_pte(_file(plan, backend_delegate_data=[schema.BackendDelegateInlineData(b"data")])).methods
    assert method.delegated == delegated


def test_constants_inside_the_flatbuffer(store):
    """Files from before segments: constants are found in the flatbuffer, cut out of it, and rebuilt."""
    from executorch.exir import schema

    data = bytes(range(256)) * 16
    plan = _plan([_tensor(1, (16, 64)), _tensor(2, (4,))])
    content = _file(plan, constant_buffer=[schema.Buffer(each) for each in (b"", data, b"\1" * 16)])
    pte = read_pte(content)
    assert [(each.size, each.segment, each.mutable) for each in pte.constants] == [
        (16, None, False),
        (4096, None, False),
    ]
    large = pte.constants[1]
    assert content[large.offset : large.offset + large.size] == data
    assert cut(pte) == (Range(large.offset, large.size),)
    ref = save_payload(content, store=store)
    assert read_payload(ref, store) == content
    assert store.read(store.manifest(ref).blobs[1]) == data
    assert describe(pte)["constants"] == {"tensors": 2, "bytes": 4112}


def test_one_constant_seen_as_two_tensors():
    """Of tensors that use the same data, the largest says how much of it there is."""
    from executorch.exir import schema

    plan = _plan([_tensor(1, (1,)), _tensor(1, (2, 4)), _tensor(1, (2,))])
    pte = read_pte(_file(plan, constant_buffer=[schema.Buffer(b""), schema.Buffer(bytes(32))]))
    assert [(each.size, each.tensor.shape) for each in pte.constants] == [(32, (2, 4))]


def test_tensors_that_cannot_be():
    """Tensors with impossible shapes, orders or data are refused with what is wrong."""
    from executorch.exir import schema

    buffers = [schema.Buffer(b""), schema.Buffer(bytes(16))]
    for tensor, problem in (
        (_tensor(1, (5,)), "needs 20 bytes, its data has 16"),
        (_tensor(1, (2**31 - 1,) * 16), "bytes, its data has 16"),
        (_tensor(2), "constant 2 is named and there are 2"),
        (_tensor(1, (-1,)), "has shape"),
        (_tensor(1, (1,) * 17), "has shape"),
        (_tensor(1, (2, 2), [0, 0]), "dim order"),
        (_tensor(1, (2, 2), [0]), "dim order"),
        (_tensor(1, allocation_info=schema.AllocationDetails(1, 0, 0)), "mutable segment 0 is named and there are 0"),
    ):
        with pytest.raises(FileFormatError, match=problem):
            read_pte(_file(_plan([tensor]), constant_buffer=buffers))


def test_indices_that_lead_nowhere():
    """Values, operators and delegates that are named but not there are refused."""
    from executorch.exir import schema

    inline = schema.BackendDelegateDataReference(schema.DataLocation.INLINE, 1)
    segment = schema.BackendDelegateDataReference(schema.DataLocation.SEGMENT, 1)
    for plan, problem in (
        (_plan([], outputs=[0]), "value 0 is named and there are 0"),
        (_plan([schema.Null()], outputs=[-1]), "value -1 is named and there are 1"),
        (_plan([], instructions=[schema.KernelCall(1, [])]), "operator 1 is named and there are 1"),
        (_plan([], instructions=[schema.DelegateCall(0, [])]), "delegate 0 is named and there are 0"),
        (_plan([], delegates=[schema.BackendDelegate("B", inline, [])]), "inline delegate data 1 is named"),
        (_plan([], delegates=[schema.BackendDelegate("B", segment, [])]), "segment 1 is named"),
    ):
        with pytest.raises(FileFormatError, match=problem):
            read_pte(_file(plan))
