"""The fat program: the methods of a fat file's payloads, each delegated as a whole."""

from __future__ import annotations

from pathlib import Path

from executorch.exir._serialize._cord import Cord
from executorch.exir._serialize._flatbuffer_program import _flatbuffer_to_program
from executorch.exir._serialize._named_data_store import NamedDataStoreOutput
from executorch.exir._serialize._program import PTEFile, serialize_pte_binary
from executorch.exir._serialize.data_serializer import DataEntry, DataPayload
from executorch.exir.schema import (
    AllocationDetails,
    BackendDelegate,
    BackendDelegateDataReference,
    BackendDelegateInlineData,
    Buffer,
    Chain,
    DataLocation,
    DelegateCall,
    EValue,
    ExecutionPlan,
    Instruction,
    Program,
    SubsegmentOffsets,
    Tensor,
)
from executorch.extension.flat_tensor.serialize.serialize import FlatTensorConfig, FlatTensorSerializer

from ...artifacts.files import staging_file
from ...formats.nfat.contents import BACKEND_ID
from ...formats.nfat.pack import PackedContainer
from ...formats.pte.contents import Method, TensorSpec, ValueSpec
from ...formats.pte.reader import read_pte


def named_blobs(packed: PackedContainer) -> NamedDataStoreOutput:
    """The blobs under their digests, aligned as the container says."""
    return NamedDataStoreOutput(
        buffers=[bytes(blob) for blob in packed.blobs.values()],
        pte_data={str(key): DataEntry(index, packed.alignment, None) for index, key in enumerate(packed.blobs)},
        external_data={},
    )


_MEMORY_ID = 1
_MEMORY_ALIGNMENT = 16


def write_fat(
    packed: PackedContainer, signature: bytes | memoryview, path: Path, *, data_path: Path | None = None
) -> None:
    """Writes a fat `.pte` atomically, with its blobs in `data_path` if given. Equal arguments give equal bytes.

    The program has the methods, inputs, outputs and constant methods of the payload `signature`. Where that plans no
    memory for inputs or outputs, the program does not either.

    Raises:
        FileFormatError: `signature` is not a `.pte`.
        OSError: a file cannot be written.
    """
    pte = read_pte(memoryview(signature))
    inner = _flatbuffer_to_program(bytes(memoryview(signature)[: pte.program_size]))
    program = Program(
        version=inner.version,
        execution_plan=[_delegated(*both) for both in zip(inner.execution_plan, pte.methods, strict=True)],
        constant_buffer=[Buffer(b"")],
        backend_delegate_data=[BackendDelegateInlineData(packed.container)],
        segments=[],
        constant_segment=SubsegmentOffsets(0, []),
    )
    blobs = named_blobs(packed)
    content = serialize_pte_binary(
        PTEFile(program=program, named_data=blobs if data_path is None else None),
        extract_delegate_segments=True,
        segment_alignment=packed.alignment,
    )
    if data_path is not None:
        serializer = FlatTensorSerializer(FlatTensorConfig(segment_alignment=packed.alignment))
        _write(serializer.serialize(DataPayload(blobs.buffers, blobs.pte_data)), data_path)
    _write(content, path)


def _write(content: Cord, path: Path) -> None:
    with staging_file(path.parent) as (part, file):
        content.write_to_file(file)
        file.flush()
        part.replace(path)


def _delegated(plan: ExecutionPlan, method: Method) -> ExecutionPlan:
    """A plan with the same inputs and outputs and one instruction, which calls the delegate with all of them."""
    if method.constant and not any(isinstance(spec, TensorSpec) for spec in method.outputs):
        return plan
    arena = _Arena()
    inputs = [arena.place(plan.values[index], spec) for index, spec in zip(plan.inputs, method.inputs, strict=True)]
    outputs = [arena.place(plan.values[index], spec) for index, spec in zip(plan.outputs, method.outputs, strict=True)]
    values = [*inputs, *outputs]
    indices = list(range(len(values)))
    taken, given = indices[: len(inputs)], indices[len(inputs) :]
    return ExecutionPlan(
        name=plan.name,
        container_meta_type=plan.container_meta_type,
        values=values,
        inputs=taken,
        outputs=given,
        chains=[Chain(taken, given, [Instruction(DelegateCall(0, indices))], None)],
        operators=[],
        delegates=[BackendDelegate(BACKEND_ID, BackendDelegateDataReference(DataLocation.INLINE, 0), [])],
        non_const_buffer_sizes=[0, arena.size] if arena.size else [0],
    )


class _Arena:
    """Memory of inputs and outputs, one after another."""

    def __init__(self) -> None:
        self.size = 0

    def place(self, value: EValue, spec: ValueSpec) -> EValue:
        """The value as the fat program has it: without data, with memory where the payload plans some."""
        tensor = value.val
        if not isinstance(spec, TensorSpec):
            return value
        has_memory = tensor.allocation_info is not None or tensor.data_buffer_idx > 0
        return EValue(
            Tensor(
                scalar_type=tensor.scalar_type,
                storage_offset=0,
                sizes=list(tensor.sizes),
                dim_order=list(tensor.dim_order),
                requires_grad=False,
                layout=tensor.layout,
                data_buffer_idx=0,
                allocation_info=self._allocate(spec.nbytes) if has_memory else None,
                shape_dynamism=tensor.shape_dynamism,
            )
        )

    def _allocate(self, nbytes: int) -> AllocationDetails:
        offset = self.size
        self.size += -(-nbytes // _MEMORY_ALIGNMENT) * _MEMORY_ALIGNMENT
        return AllocationDetails(_MEMORY_ID, offset & 0xFFFFFFFF, offset >> 32)
