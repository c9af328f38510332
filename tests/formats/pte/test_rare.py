"""What the schema allows and exporters rarely write: lists, control flow, constants inside the flatbuffer."""

import dataclasses
from types import ModuleType

import pytest
from pteforge.errors import FileFormatError
from pteforge.formats.describe import describe
from pteforge.formats.pte.contents import InstructionCounts, ScalarSpec, shareable_extents
from pteforge.formats.pte.reader import read_pte
from pteforge.tasks.programs.payload import read_payload, save_payload

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


@pytest.fixture(scope="module")
def schema() -> ModuleType:
    """ExecuTorch's classes of what is in a program."""
    from executorch.exir import schema

    return schema


def test_every_kind_of_value(schema):
    """Scalars, strings and lists of all kinds are read with their contents."""
    values = {
        "none": (schema.Null(), None),
        "int": (schema.Int(-(2**63)), -(2**63)),
        "bool": (schema.Bool(bool_val=False), False),
        "double": (schema.Double(-0.25), -0.25),
        "string": (schema.String("text"), "text"),
        "int_list": (schema.IntList([1, 2]), (1, 2)),
        "double_list": (schema.DoubleList([0.5, 2.0]), (0.5, 2.0)),
        "bool_list": (schema.BoolList([True, False]), (True, False)),
        "tensor_list": (schema.TensorList([10, 10]), (10, 10)),
        "optional_tensor_list": (schema.OptionalTensorList([10, -1]), (10, -1)),
    }
    plan = _plan([*(value for value, _ in values.values()), _tensor()], outputs=range(len(values)))
    (method,) = read_pte(_file(plan)).methods
    assert method.outputs == tuple(ScalarSpec(kind, value) for kind, (_, value) in values.items())


def test_control_flow_is_counted(schema):
    """Moves, jumps and frees are counted separately; an operator without an overload has only its name."""
    move, jump = schema.MoveCall(0, 0), schema.JumpFalseCall(0, 0)
    instructions = [schema.KernelCall(0, []), move, move, jump, schema.FreeCall(0)]
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
def test_delegated_as_a_whole(schema, arguments, outputs, more, delegated):
    """A method is delegated if its only instruction passes all inputs and outputs to a delegate in order."""
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


def test_constants_inside_the_flatbuffer(schema, store):
    """Constants of old files, without segments, are found in the flatbuffer, stored and rebuilt."""
    data = bytes(range(256)) * 16
    plan = _plan([_tensor(1, (16, 64)), _tensor(2, (4,))])
    content = _file(plan, constant_buffer=[schema.Buffer(each) for each in (b"", data, b"\1" * 16)])
    pte = read_pte(content)
    assert [(each.extent.size, each.segment, each.mutable) for each in pte.constants] == [
        (16, None, False),
        (4096, None, False),
    ]
    large = pte.constants[1]
    assert large.extent.of(content) == data
    assert shareable_extents(pte) == (large.extent,)
    ref = save_payload(content, store=store)
    assert read_payload(ref, store) == content
    assert store.read(store.manifest(ref).blobs[1]) == data
    assert describe(pte)["constants"] == {"tensors": 2, "bytes": 4112}


def test_one_constant_seen_as_two_tensors(schema):
    """If tensors use the same data, its size is that of the largest one."""
    plan = _plan([_tensor(1, (1,)), _tensor(1, (2, 4)), _tensor(1, (2,))])
    pte = read_pte(_file(plan, constant_buffer=[schema.Buffer(b""), schema.Buffer(bytes(32))]))
    assert [(each.extent.size, each.tensor.shape) for each in pte.constants] == [(32, (2, 4))]


def test_what_cannot_be(schema):
    """Tensors with impossible shapes, orders or data are refused with the reason."""
    buffers = [schema.Buffer(b""), schema.Buffer(bytes(16))]
    inline = schema.BackendDelegateDataReference(schema.DataLocation.INLINE, 1)
    segment = schema.BackendDelegateDataReference(schema.DataLocation.SEGMENT, 1)
    mutable = _tensor(1, allocation_info=schema.AllocationDetails(1, 0, 0))
    for plan, problem in (
        (_plan([_tensor(1, (5,))]), "needs 20 bytes, its data has 16"),
        (_plan([_tensor(1, (2**31 - 1,) * 16)]), "bytes, its data has 16"),
        (_plan([_tensor(2)]), "constant 2 is named and there are 2"),
        (_plan([_tensor(1, (-1,))]), "has shape"),
        (_plan([_tensor(1, (1,) * 17)]), "has shape"),
        (_plan([_tensor(1, (2, 2), [0, 0])]), "dim order"),
        (_plan([_tensor(1, (2, 2), [0])]), "dim order"),
        (_plan([mutable]), "mutable segment 0 is named and there are 0"),
        (_plan([], outputs=[0]), "value 0 is named and there are 0"),
        (_plan([schema.Null()], outputs=[-1]), "value -1 is named and there are 1"),
        (_plan([], instructions=[schema.KernelCall(1, [])]), "operator 1 is named and there are 1"),
        (_plan([], instructions=[schema.DelegateCall(0, [])]), "delegate 0 is named and there are 0"),
        (_plan([], delegates=[schema.BackendDelegate("B", inline, [])]), "inline delegate data 1 is named"),
        (_plan([], delegates=[schema.BackendDelegate("B", segment, [])]), "segment 1 is named"),
    ):
        with pytest.raises(FileFormatError, match=problem):
            read_pte(_file(plan, constant_buffer=buffers))
