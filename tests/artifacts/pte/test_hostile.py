"""Whatever the bytes are, the reader gives an answer or FileFormatError, soon and in little memory."""

from __future__ import annotations

import random
import struct
import tracemalloc
from itertools import pairwise

import flatbuffers
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pteforge.artifacts.pte import schema
from pteforge.artifacts.pte.contents import PteFile
from pteforge.artifacts.pte.cuts import cut
from pteforge.artifacts.pte.describe import describe
from pteforge.artifacts.pte.reader import read_pte
from pteforge.errors import FileFormatError

_HEADER = struct.Struct("<4sIQQQ")


def _accepted(content: bytes) -> PteFile | None:
    """What is read, None where it is refused; every range of an accepted file lies inside of it."""
    try:
        pte = read_pte(content)
    except FileFormatError:
        return None
    ranges = cut(pte)
    assert all(each.size > 0 and each.offset >= 0 and each.end <= len(content) for each in ranges)
    assert all(first.end <= second.offset for first, second in pairwise(ranges))
    for each in (*pte.segments, *pte.constants, *(one for method in pte.methods for one in method.delegates)):
        assert 0 <= each.offset <= each.offset + each.size <= len(content)
    describe(pte)
    return pte


@pytest.mark.parametrize("name", ["portable", "methods", "mutable", "inline", "lists"])
def test_random_mutations(samples, name):
    """Thousands of files with a few changed bytes in the program: read or refused, nothing else."""
    content = samples.files[name]
    size = read_pte(content).program_size
    chance = random.Random(name)  # noqa: S311 - the same files each time is what is wanted
    refused = 0
    for _ in range(500):
        changed = bytearray(content)
        for _ in range(chance.choice((1, 1, 2, 5, 20))):
            position = chance.randrange(size)
            changed[position] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        refused += _accepted(bytes(changed)) is None
    assert refused > 100


def test_random_words(samples):
    """Files in which whole 32-bit numbers, offsets and counts among them, take extreme values."""
    content = samples.files["xnnpack"]
    size = read_pte(content).program_size
    refused = 0
    for position in range(0, size - 4, 4):
        for word in (0, 0xFFFFFFFF, 0x7FFFFFFF, size, 4):
            changed = bytearray(content)
            struct.pack_into("<I", changed, position, word)
            refused += _accepted(bytes(changed)) is None
    assert refused > 100


@settings(max_examples=300)
@given(data=st.data())
def test_mutations_found_by_search(samples, data):
    """Hypothesis cuts, repeats, replaces and swaps stretches of a real file."""
    content = samples.files[data.draw(st.sampled_from(["portable", "xnnpack", "dynamic", "stateless"]))]
    size = read_pte(content).program_size
    position = st.integers(0, size)
    for _ in range(data.draw(st.integers(1, 3))):
        start, end = sorted((data.draw(position), data.draw(position)))
        patch = data.draw(st.one_of(st.binary(max_size=64), st.just(content[start:end] * 2)))
        content = content[:start] + patch + content[data.draw(st.sampled_from((start + len(patch), end))) :]
    _accepted(content)


@settings(max_examples=200)
@given(st.binary(max_size=400), st.booleans())
def test_arbitrary_bytes(content, header):
    """Bytes that only begin like a `.pte` are read or refused."""
    start = b"\x20\0\0\0ET12" + (b"eh00" if header else b"")
    _accepted(content)
    _accepted(start + content)


def test_every_truncation_is_refused(samples):
    """A file that lost its end anywhere is refused: within the program, the padding or the last segment."""
    content = samples.files["xnnpack"]
    program = read_pte(content).program_size
    for size in (*range(0, program, 7), *range(program, len(content), 997), len(content) - 1):
        with pytest.raises(FileFormatError, match=r"cut short|not a \.pte|damaged"):
            read_pte(content[:size])


@pytest.mark.parametrize("identifier", [b"ET11", b"ET13", b"PTEX", b"\0\0\0\0"])
def test_other_formats_are_named(samples, identifier):
    """A file of another kind or schema version is refused by its identifier, which the message shows."""
    content = samples.files["portable"]
    with pytest.raises(FileFormatError, match=r"not a \.pte file of a known version") as caught:
        read_pte(content[:4] + identifier + content[8:])
    assert repr(identifier) in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        (1, 23, "too short"),
        (2, 0, "cut short"),
        (2, 2**63, "cut short"),
        (3, 2**63, "segments start at"),
        (3, 64, "segments start at"),
        (4, 2**63, "segments need"),
    ],
)
def test_headers_that_lie(samples, field, value, problem):
    """An extended header whose numbers do not fit the file is refused."""
    content = bytearray(samples.files["portable"])
    fields = list(_HEADER.unpack_from(content, 8))
    fields[field] = value
    _HEADER.pack_into(content, 8, *fields)
    with pytest.raises(FileFormatError, match=problem):
        read_pte(bytes(content))


def _program(
    segments: list[tuple[int, int]], data: bytes, *, named: int | None = None, constants: list[int] | None = None
) -> bytes:
    """A file with no methods, and whatever segments: (offset, size) each, before `data`."""
    builder = flatbuffers.Builder(0)
    tables = []
    for offset, size in segments:
        builder.StartObject(2)
        builder.PrependUint64Slot(schema.DataSegment.OFFSET, offset, 0)
        builder.PrependUint64Slot(schema.DataSegment.SIZE, size, 0)
        tables.append(builder.EndObject())
    segment_vector = _tables(builder, tables)
    named_vector = 0
    if named is not None:
        key = builder.CreateString("key")
        builder.StartObject(2)
        builder.PrependUOffsetTRelativeSlot(schema.NamedData.KEY, key, 0)
        builder.PrependUint32Slot(schema.NamedData.SEGMENT_INDEX, named, 0)
        named_vector = _tables(builder, [builder.EndObject()])
    group = 0
    if constants is not None:
        builder.StartVector(8, 1, 8)
        builder.PrependUint64(0)
        offsets = builder.EndVector()
        builder.StartObject(2)
        builder.PrependUint32Slot(schema.SubsegmentOffsets.SEGMENT_INDEX, constants[0], 0)
        builder.PrependUOffsetTRelativeSlot(schema.SubsegmentOffsets.OFFSETS, offsets, 0)
        group = builder.EndObject()
    builder.StartObject(len(schema.Program))
    builder.PrependUOffsetTRelativeSlot(schema.Program.SEGMENTS, segment_vector, 0)
    builder.PrependUOffsetTRelativeSlot(schema.Program.NAMED_DATA, named_vector, 0)
    builder.PrependUOffsetTRelativeSlot(schema.Program.CONSTANT_SEGMENT, group, 0)
    builder.Finish(builder.EndObject(), file_identifier=schema.IDENTIFIER)
    program = bytes(builder.Output())
    size = len(program) + _HEADER.size
    root = struct.pack("<I", struct.unpack_from("<I", program)[0] + _HEADER.size)
    header = _HEADER.pack(b"eh00", _HEADER.size, size, size, len(data))
    return root + program[4:8] + header + program[8:] + data


def _tables(builder: flatbuffers.Builder, tables: list[int]) -> int:
    builder.StartVector(4, len(tables), 4)
    for table in reversed(tables):
        builder.PrependUOffsetTRelative(table)
    return int(builder.EndVector())


def test_segments_side_by_side_are_fine():
    """Segments in any order, empty ones among them, with or without padding, are read as they are."""
    pte = read_pte(_program([(8, 4), (0, 8), (8, 0), (20, 0)], bytes(20), named=1, constants=[0]))
    assert [(each.offset - pte.segment_base, each.size) for each in pte.segments] == [(8, 4), (0, 8), (8, 0), (20, 0)]


@pytest.mark.parametrize(
    ("segments", "problem"),
    [
        ([(0, 9), (8, 8)], "overlaps"),
        ([(0, 16), (4, 4)], "overlaps"),
        ([(0, 8), (0, 8)], "overlaps"),
        ([(0, 17)], "segment 0 has 17 bytes"),
        ([(16, 1)], "segment 0 has 1 bytes"),
        ([(0, 8), (2**64 - 8, 8)], "segment 1 has 8 bytes"),
        ([(0, 2**64 - 1)], "segment 0 has"),
        ([(2**64 - 1, 0)], "segment 0 has 0 bytes"),
    ],
)
def test_segments_that_cannot_be(segments, problem):
    """Segments that overlap or leave the file are refused."""
    with pytest.raises(FileFormatError, match=problem):
        read_pte(_program(segments, bytes(16)))


def test_segments_need_a_header(samples):
    """Without the extended header a segment would lie over the program itself."""
    content = samples.files["portable"]
    with pytest.raises(FileFormatError, match="overlaps"):
        read_pte(content[:8] + b"\0\0\0\0" + content[12:])


def test_unknown_segments_are_refused():
    """Named data and constants that name a segment which is not there are refused."""
    for content in (_program([(0, 8)], bytes(8), named=1), _program([(0, 8)], bytes(8), constants=[7])):
        with pytest.raises(FileFormatError, match=r"segment \d is named and there are 1"):
            read_pte(content)


def _shared(methods: int, values: int) -> bytes:
    """A small file that stands for `methods` * `values` values, by pointing at the same tables again and again."""
    builder = flatbuffers.Builder(0)
    builder.StartObject(2)
    value = builder.EndObject()
    vector = _tables(builder, [value] * values)
    builder.StartObject(len(schema.ExecutionPlan) + 2)
    builder.PrependUOffsetTRelativeSlot(schema.ExecutionPlan.VALUES, vector, 0)
    plan = builder.EndObject()
    plans = _tables(builder, [plan] * methods)
    builder.StartObject(len(schema.Program))
    builder.PrependUOffsetTRelativeSlot(schema.Program.EXECUTION_PLAN, plans, 0)
    builder.Finish(builder.EndObject(), file_identifier=schema.IDENTIFIER)
    return bytes(builder.Output())


def test_bombs_do_not_go_off():
    """Tables shared so often that they would be a hundred million are refused long before they are all read."""
    assert len(read_pte(_shared(3, 5)).methods) == 3
    content = _shared(10_000, 10_000)
    assert len(content) < 100_000
    tracemalloc.start()
    try:
        with pytest.raises(FileFormatError, match="same bytes over and over"):
            read_pte(content)
        assert tracemalloc.get_traced_memory()[1] < 50 << 20
    finally:
        tracemalloc.stop()


def test_names_must_be_text(samples):
    """A name that is not UTF-8 is refused."""
    content = samples.files["portable"].replace(b"forward", b"forw\xffrd")
    with pytest.raises(FileFormatError, match="not UTF-8"):
        read_pte(content)
