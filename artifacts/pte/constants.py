"""Where in a `.pte` the data of each tensor is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...errors import FileFormatError
from .contents import ConstantTensor, Segment
from .schema import Buffer, Program, SubsegmentOffsets
from .tables import U32, U64, Node, pick
from .values import TensorData


def read_constants(
    program: Node, segments: Sequence[Segment], uses: Iterable[TensorData]
) -> tuple[ConstantTensor, ...]:
    """The tensor data that methods use and the file holds, each once, by offset.

    Args:
        program: the root table.
        segments: the file's segments.
        uses: what the methods' values refer to.

    Raises:
        FileFormatError: a tensor's data is not where the file says.
    """
    inline = [Segment(*node.span(Buffer.STORAGE)) for node in program.children(Program.CONSTANT_BUFFER)]
    constants = _group(program.child(Program.CONSTANT_SEGMENT), segments)
    mutable = [_group(node, segments) for node in program.children(Program.MUTABLE_DATA_SEGMENTS)]
    found: dict[tuple[int | None, int], ConstantTensor] = {}
    for use in uses:
        if use.external:
            continue
        if use.mutable_group is not None:
            constant = _in_segment(pick(mutable, use.mutable_group, "mutable segment"), use)
        elif inline:
            constant = _in_flatbuffer(pick(inline, use.index, "constant"), use)
        else:
            constant = _in_segment(constants, use)
        known = found.setdefault((use.mutable_group, use.index), constant)
        if known.size < constant.size:
            found[use.mutable_group, use.index] = constant
    return tuple(sorted(found.values(), key=lambda constant: (constant.offset, constant.size)))


@dataclass(frozen=True, slots=True)
class _Group:
    """A segment of tensor data: `offsets` are counted from its start, one per tensor."""

    index: int
    segment: Segment
    offsets: tuple[int, ...]


def _group(node: Node | None, segments: Sequence[Segment]) -> _Group:
    offsets = () if node is None else node.numbers(SubsegmentOffsets.OFFSETS, U64)
    if node is None or not offsets:
        return _Group(0, Segment(0, 0), ())
    index = node.number(SubsegmentOffsets.SEGMENT_INDEX, U32)
    return _Group(index, pick(segments, index, "segment"), offsets)


def _in_segment(group: _Group, use: TensorData) -> ConstantTensor:
    start = pick(group.offsets, use.index, "constant")
    if start + use.tensor.nbytes > group.segment.size:
        raise FileFormatError(
            f"damaged program: a tensor of {use.tensor.nbytes} bytes at {start} does not fit segment {group.index} "
            f"of {group.segment.size} bytes"
        )
    offset = group.segment.offset + start
    return ConstantTensor(use.tensor, offset, use.tensor.nbytes, group.index, use.mutable_group is not None)


def _in_flatbuffer(span: Segment, use: TensorData) -> ConstantTensor:
    if use.tensor.nbytes > span.size:
        raise FileFormatError(f"damaged program: a tensor needs {use.tensor.nbytes} bytes, its data has {span.size}")
    return ConstantTensor(use.tensor, span.offset, use.tensor.nbytes, None, mutable=False)
