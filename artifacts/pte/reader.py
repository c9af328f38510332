"""Reading `.pte` files without ExecuTorch. Every byte is taken as hostile."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from pathlib import Path

from ...errors import FileFormatError, InputError
from .constants import read_constants
from .contents import NamedData, PteFile, Segment, TensorSpec
from .header import Header, read_header
from .methods import read_method
from .schema import BackendDelegateInlineData, DataSegment, Program
from .schema import NamedData as NamedDataSlots
from .tables import U32, U64, Flatbuffer, Node, pick
from .values import TensorData


def open_pte(path: Path) -> PteFile:
    """Reads what a file holds; only the pages that describe it are touched.

    Raises:
        InputError: the file cannot be read; as FileFormatError where it is not a valid `.pte`.
    """
    try:
        with path.open("rb") as file:
            # Not closed by hand: an error's traceback may still hold views of it.
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise FileFormatError(f"{path}: the file is empty") from error
    try:
        return read_pte(mapped)
    except FileFormatError as error:
        raise FileFormatError(f"{path}: {error}") from error


def read_pte(content: bytes | memoryview | mmap.mmap) -> PteFile:
    """Reads what the bytes of a `.pte` file describe.

    Args:
        content: the whole file. Nothing of it is kept.

    Raises:
        FileFormatError: not a `.pte`, of another version, cut short or damaged. Data of tensors and delegates is not
            looked at; only that it is there.
    """
    view = memoryview(content).cast("B")
    header = read_header(view)
    program = Flatbuffer(view[: header.program_size]).root()
    segments = tuple(_segments(program, header, len(view)))
    inline = [
        Segment(*node.span(BackendDelegateInlineData.DATA)) for node in program.children(Program.BACKEND_DELEGATE_DATA)
    ]
    methods = [read_method(plan, segments, inline) for plan in program.children(Program.EXECUTION_PLAN)]
    data = [data for contents in methods for data in contents.data]
    return PteFile(
        size=len(view),
        version=program.number(Program.VERSION, U32),
        program_size=header.program_size,
        segment_base=header.segment_base,
        methods=tuple(contents.method for contents in methods),
        segments=segments,
        constants=read_constants(program, segments, data),
        external=_external(data),
        named_data=tuple(_named_data(program, segments)),
    )


def _external(data: Sequence[TensorData]) -> tuple[TensorSpec, ...]:
    """The tensors that are in another file, each once; several methods may use one."""
    named = {each.tensor.name: each.tensor for each in data if each.external}
    return tuple(named[name] for name in sorted(named))


def _segments(program: Node, header: Header, size: int) -> Iterator[Segment]:
    """The segments, checked to lie in the file, behind the program and apart from each other."""
    segments = [
        Segment(header.segment_base + node.number(DataSegment.OFFSET, U64), node.number(DataSegment.SIZE, U64))
        for node in program.children(Program.SEGMENTS)
    ]
    end = header.program_size
    for segment in sorted(filter(_has_bytes, segments), key=lambda segment: segment.offset):
        if segment.offset < end:
            raise FileFormatError(f"damaged file: the segment at {segment.offset} overlaps what ends at {end}")
        end = segment.offset + segment.size
    for index, segment in enumerate(segments):
        if segment.offset + segment.size > size:
            raise FileFormatError(
                f"the file is damaged or cut short: segment {index} has {segment.size} bytes at {segment.offset}, "
                f"the file {size}"
            )
    yield from segments


def _has_bytes(segment: Segment) -> bool:
    return segment.size > 0


def _named_data(program: Node, segments: Sequence[Segment]) -> Iterator[NamedData]:
    for node in program.children(Program.NAMED_DATA):
        index = node.number(NamedDataSlots.SEGMENT_INDEX, U32)
        pick(segments, index, "segment")
        yield NamedData(node.text(NamedDataSlots.KEY), index)
