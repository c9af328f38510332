"""Programs of files that are written again: the fat program, whose methods are delegated as a whole, and metadata."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from executorch.exir import schema
from executorch.extension.flat_tensor.serialize.serialize import FlatTensorConfig, FlatTensorSerializer

from ...artifacts.files import new_file
from ...formats.nfat.contents import BACKEND_ID
from ...formats.nfat.pack import PackedContainer
from ...formats.pte.buckets import BUCKETS
from ...formats.pte.contents import METADATA_PREFIX, SIZES, Method, PteFile, TensorSpec, ValueSpec
from ...formats.pte.metadata import MetadataValue, constant_method, encode_value, metadata_of, returning_methods
from ...formats.pte.reader import map_file, read_pte
from ..upstream import compat
from ..upstream.exir_emission import viewed


def named_blobs(packed: PackedContainer) -> compat.NamedDataStoreOutput:
    """The blobs under their digests, aligned as the container says."""
    return compat.NamedDataStoreOutput(
        buffers=[viewed(blob) for blob in packed.blobs.values()],
        pte_data={str(key): compat.DataEntry(index, packed.alignment, None) for index, key in enumerate(packed.blobs)},
        external_data={},
    )


_MEMORY_ID = 1
_MEMORY_ALIGNMENT = 16


def write_fat(
    packed: PackedContainer, signature: bytes | memoryview, path: Path, *, data_path: Path | None = None
) -> None:
    """Writes a fat `.pte` atomically, with its blobs in `data_path` if given. Equal arguments produce equal bytes.

    The program has the methods, inputs, outputs and constant methods of the payload `signature`, and plans memory for
    inputs and outputs if that does. Raises FileFormatError if it is not a `.pte`; OSError if a file cannot be written.
    """
    pte = read_pte(memoryview(signature))
    inner = compat.flatbuffer_to_program(bytes(memoryview(signature)[: pte.program_size]))
    program = schema.Program(
        version=inner.version,
        execution_plan=[_delegated(*both) for both in zip(inner.execution_plan, pte.methods, strict=True)],
        constant_buffer=[schema.Buffer(b"")],
        backend_delegate_data=[schema.BackendDelegateInlineData(packed.container)],
        segments=[],
        constant_segment=schema.SubsegmentOffsets(0, []),
    )
    blobs = named_blobs(packed)
    content = compat.serialize_pte_binary(
        compat.PTEFile(program=program, named_data=blobs if data_path is None else None),
        extract_delegate_segments=True,
        segment_alignment=packed.alignment,
    )
    if data_path is not None:
        serializer = FlatTensorSerializer(FlatTensorConfig(segment_alignment=packed.alignment))
        with new_file(data_path) as file:
            serializer.serialize(compat.DataPayload(blobs.buffers, blobs.pte_data)).write_to_file(file)
    with new_file(path) as file:
        content.write_to_file(file)


def _delegated(plan: schema.ExecutionPlan, method: Method) -> schema.ExecutionPlan:
    """A plan with the same inputs and outputs and one instruction, which calls the delegate with all of them."""
    if method.constant and not any(isinstance(spec, TensorSpec) for spec in method.outputs):
        return plan
    arena = _Arena()
    given = zip(plan.inputs, method.inputs, strict=True)
    inputs = [arena.allocate(plan.values[index], spec) for index, spec in given]
    returned = zip(plan.outputs, method.outputs, strict=True)
    outputs = [arena.allocate(plan.values[index], spec) for index, spec in returned]
    indices = list(range(len(inputs) + len(outputs)))
    input_indices, output_indices = indices[: len(inputs)], indices[len(inputs) :]
    call = schema.Instruction(schema.DelegateCall(0, indices))
    container = schema.BackendDelegateDataReference(schema.DataLocation.INLINE, 0)
    return schema.ExecutionPlan(
        name=plan.name,
        container_meta_type=plan.container_meta_type,
        values=[*inputs, *outputs],
        inputs=input_indices,
        outputs=output_indices,
        chains=[schema.Chain(input_indices, output_indices, [call], None)],
        operators=[],
        delegates=[schema.BackendDelegate(BACKEND_ID, container, [])],
        non_const_buffer_sizes=[0, arena.size] if arena.size else [0],
    )


class _Arena:
    """Memory of inputs and outputs, one after another."""

    def __init__(self) -> None:
        self.size = 0

    def allocate(self, value: schema.EValue, spec: ValueSpec) -> schema.EValue:
        """The value as the fat program has it: without data, with memory where the payload plans some."""
        tensor = value.val
        if not isinstance(spec, TensorSpec):
            return value
        has_memory = tensor.allocation_info is not None or tensor.data_buffer_idx > 0
        return schema.EValue(
            schema.Tensor(
                scalar_type=tensor.scalar_type,
                storage_offset=0,
                sizes=list(tensor.sizes),
                dim_order=list(tensor.dim_order),
                requires_grad=False,
                layout=tensor.layout,
                data_buffer_idx=0,
                allocation_info=self._reserve(spec.nbytes) if has_memory else None,
                shape_dynamism=tensor.shape_dynamism,
            )
        )

    def _reserve(self, nbytes: int) -> schema.AllocationDetails:
        offset = self.size
        self.size += -(-nbytes // _MEMORY_ALIGNMENT) * _MEMORY_ALIGNMENT
        return schema.AllocationDetails(_MEMORY_ID, offset & 0xFFFFFFFF, offset >> 32)


def write_metadata(
    source: Path,
    entries: Mapping[str, MetadataValue],
    destination: Path,
    *,
    constant_methods: bool,
    segment_alignment: int,
    delegate_alignment: int | None = None,
    consume: bool = False,
) -> None:
    """Writes a `.pte` file, plain or fat, with metadata in place of what it has; an empty mapping removes that.

    Equal arguments produce equal bytes, by the private serializer of executorch 1.5.1, which `to_executorch` uses.

    Args:
        source: the file, which stays as it is unless `consume` is set.
        entries: value by key, without the prefix.
        destination: written atomically.
        constant_methods: whether constant methods return the entries, too; existing methods of their names stay.
        segment_alignment: of segments, in bytes, as in the file.
        delegate_alignment: of delegates' data in the program, in bytes; None for ExecuTorch's own.
        consume: whether to shorten `source` while its segments are copied, so that they take disk space once.

    Raises:
        FileFormatError: `source` is not a `.pte`.
        ValueError: a value has a type that the format lacks, or more than 64 bits.
        OSError: a file cannot be written.
    """
    view = map_file(source)
    pte = read_pte(view)
    program = compat.flatbuffer_to_program(bytes(view[: pte.program_size]))
    end = _remove_entries(program, pte, metadata_of(pte, view))
    added = _add_entries(program, entries, end, segment_alignment)
    if constant_methods:
        _add_constant_methods(program, entries)
    content = _with_header(program, end + len(added), segment_alignment, delegate_alignment)
    with new_file(destination) as file:
        file.write(content)
        for start in reversed(range(0, end, _STEP)):
            file.seek(len(content) + start)
            file.write(view[pte.segment_base + start : pte.segment_base + min(start + _STEP, end)])
            if consume:
                os.truncate(source, pte.segment_base + start)
        file.seek(len(content) + end)
        file.write(added)


_STEP = 64 << 20
"""Bytes of segments that are copied at once."""


def _remove_entries(program: schema.Program, pte: PteFile, present: Mapping[str, MetadataValue]) -> int:
    """Removes metadata, and the constant methods that return it; returns where the other segments end."""
    outdated = returning_methods(pte, present)
    program.execution_plan = [plan for plan in program.execution_plan if plan.name not in outdated]
    named = [entry for entry in program.named_data or () if not entry.key.startswith(METADATA_PREFIX)]
    program.named_data = named or None  # as the emitter has it
    last = min((entry.segment for entry in pte.metadata), default=len(pte.segments))
    if any(entry.segment_index >= last for entry in named):
        last = len(pte.segments)  # others follow, as no writer of metadata leaves them
    program.segments = program.segments[:last]
    return max((segment.offset + segment.size for segment in program.segments), default=0)


def _add_entries(program: schema.Program, entries: Mapping[str, MetadataValue], end: int, alignment: int) -> bytes:
    """Adds a segment for each entry after those that end at `end`; returns the bytes that follow them."""
    added, named = b"", list(program.named_data or ())
    for key, value in entries.items():
        content = encode_value(value)
        offset = compat.aligned_size(end + len(added), alignment)
        added = compat.pad_to(added, offset - end) + content
        named.append(schema.NamedData(f"{METADATA_PREFIX}{key}", len(program.segments)))
        program.segments.append(schema.DataSegment(offset, len(content)))
    program.named_data = named or None
    return added


def _add_constant_methods(program: schema.Program, entries: Mapping[str, MetadataValue]) -> None:
    """Adds plans as `to_executorch` makes them of `constant_methods`, which return the items of a list flat."""
    taken = {plan.name for plan in program.execution_plan}
    values = {
        name: list(value) if isinstance(value, tuple) else value
        for key, value in entries.items()
        if (name := constant_method(key)) not in taken
        and not isinstance(value, bytes)
        and not key.startswith((SIZES, BUCKETS))
    }
    # only tensors need an emitter, and there are none
    program.execution_plan += compat.Emitter._emit_prim_getters(None, values)  # noqa: SLF001 - nothing public emits plans


def _with_header(program: schema.Program, segments_size: int, alignment: int, delegate_alignment: int | None) -> bytes:
    """The program's bytes up to where its segments begin, as `serialize_pte_binary` writes them."""
    flatbuffer = compat.program_to_flatbuffer(program, delegate_alignment=delegate_alignment)
    if not segments_size:
        return bytes(flatbuffer.data)
    header_size = compat.aligned_size(compat.ExtendedHeader.EXPECTED_LENGTH, flatbuffer.max_alignment)
    size = header_size + len(flatbuffer.data)
    base = compat.aligned_size(size, alignment)
    header = compat.ExtendedHeader(program_size=size, segment_base_offset=base, segment_data_size=segments_size)
    content = compat.insert_flatbuffer_header(
        flatbuffer.data, r"ET[0-9a-zA-Z]{2}", compat.pad_to(header.to_bytes(), header_size)
    )
    return bytes(compat.pad_to(content, base))
