"""Whatever the bytes are, the reader returns a sound file or raises FileFormatError, in little time and memory."""

import random
import struct
from contextlib import suppress
from itertools import pairwise

import flatbuffers
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pteforge.errors import FileFormatError
from pteforge.formats.describe import describe
from pteforge.formats.pte import schema_generated as schema
from pteforge.formats.pte.contents import PteFile, shareable_extents
from pteforge.formats.pte.reader import read_kernel_calls, read_pte
from pteforge.tests.mutations import mutate

_HEADER = struct.Struct("<4sIQQQ")


def accepted(content: bytes) -> PteFile | None:
    """The file, whose ranges are all inside of it; None if the reader refuses it."""
    try:
        pte = read_pte(content)
    except FileFormatError:
        return None
    ranges = shareable_extents(pte)
    assert all(each.size > 0 and each.offset >= 0 and each.end <= len(content) for each in ranges)
    assert all(first.end <= second.offset for first, second in pairwise(ranges))
    delegates = (delegate for method in pte.methods for delegate in method.delegates)
    for extent in (*pte.segments, *(data.extent for data in (*pte.constants, *delegates))):
        assert 0 <= extent.offset <= extent.end <= len(content)
    describe(pte)
    with suppress(FileFormatError):  # arguments of calls, which `read_pte` does not read
        read_kernel_calls(content)
    return pte


def test_random_mutations(sample):
    """Files whose program was changed, cut, or has stretches from elsewhere, are read or refused, nothing else."""
    chance = random.Random(len(sample))  # noqa: S311 - the same files each time is what is wanted
    size = read_pte(sample).program_size
    refused = sum(accepted(mutate(sample, chance, size)) is None for _ in range(500))
    assert 100 < refused < 500


def test_random_words(samples):
    """Files in which 32-bit numbers, such as offsets and counts, take extreme values, are read or refused."""
    content = samples.files["xnnpack"]
    size = read_pte(content).program_size
    refused = 0
    for position in range(0, size - 4, 4):
        for word in (0, 0xFFFFFFFF, 0x7FFFFFFF, size, 4):
            changed = bytearray(content)
            struct.pack_into("<I", changed, position, word)
            refused += accepted(bytes(changed)) is None
    assert refused > 100


@settings(max_examples=200)
@given(st.binary(max_size=400), st.booleans())
def test_arbitrary_bytes(content, header):
    """Bytes that only begin like a `.pte` are read or refused."""
    start = b"\x20\0\0\0ET12" + (b"eh00" if header else b"")
    accepted(content)
    accepted(start + content)


def test_every_truncation_is_refused(samples):
    """A file that is cut short anywhere is refused: in the program, the padding or the last segment."""
    content = samples.files["xnnpack"]
    program = read_pte(content).program_size
    for size in (*range(0, program, 7), *range(program, len(content), 997), len(content) - 1):
        with pytest.raises(FileFormatError, match=r"cut short|not a \.pte|damaged"):
            read_pte(content[:size])


@pytest.mark.parametrize("identifier", [b"ET11", b"ET13", b"PTEX", b"\0\0\0\0"])
def test_other_formats_are_named(samples, identifier):
    """A file of another kind or schema version is refused; the message has its identifier."""
    content = samples.files["portable"]
    with pytest.raises(FileFormatError, match=r"\.pte file .*known version") as caught:
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
def test_wrong_headers(samples, field, value, problem):
    """An extended header whose numbers do not fit the file is refused."""
    content = bytearray(samples.files["portable"])
    fields = list(_HEADER.unpack_from(content, 8))
    fields[field] = value
    _HEADER.pack_into(content, 8, *fields)
    with pytest.raises(FileFormatError, match=problem):
        read_pte(bytes(content))


def _program(segments: list[tuple[int, int]], data: bytes, *, named: int = 0, constants: int = 0) -> bytes:
    """A file without methods that has segments of (offset, size) in `data`, two of them named and of constants."""
    from executorch.exir import schema
    from executorch.exir._serialize._flatbuffer_program import _program_to_flatbuffer

    described = [schema.DataSegment(*segment) for segment in segments]
    group, name = schema.SubsegmentOffsets(constants, [0]), schema.NamedData("key", named)
    program = bytes(_program_to_flatbuffer(schema.Program(0, [], [], [], described, group, None, [name])).data)
    size = len(program) + _HEADER.size
    root = struct.pack("<I", struct.unpack_from("<I", program)[0] + _HEADER.size)
    header = _HEADER.pack(b"eh00", _HEADER.size, size, size, len(data))
    return root + program[4:8] + header + program[8:] + data


def _tables(builder: flatbuffers.Builder, tables: list[int]) -> int:
    builder.StartVector(4, len(tables), 4)
    for table in reversed(tables):
        builder.PrependUOffsetTRelative(table)
    return int(builder.EndVector())


def test_segments_in_any_order():
    """Segments may be empty, in any order, and with or without padding."""
    pte = read_pte(_program([(8, 4), (0, 8), (8, 0), (20, 0)], bytes(20), named=1, constants=0))
    assert [(each.offset - pte.segment_base, each.size) for each in pte.segments] == [(8, 4), (0, 8), (8, 0), (20, 0)]


def test_named_data_inside_of_constants():
    """A segment of named data may lie inside of the constants, but neither around them nor in other segments."""
    pte = read_pte(_program([(0, 16), (4, 4)], bytes(16), named=1, constants=0))
    assert pte.inner_segments == {1}
    for segments, named in ([(4, 4), (0, 16)], 1), ([(0, 16), (4, 13)], 1), ([(0, 4), (8, 8), (8, 4)], 2):
        with pytest.raises(FileFormatError, match="overlaps"):
            read_pte(_program(segments, bytes(20), named=named, constants=0))


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
def test_impossible_segments(segments, problem):
    """Segments that overlap or leave the file are refused."""
    with pytest.raises(FileFormatError, match=problem):
        read_pte(_program(segments, bytes(16)))


def test_headers_and_names(samples):
    """Without the extended header a segment would lie over the program itself; a name that is not UTF-8 is refused."""
    content = samples.files["portable"]
    with pytest.raises(FileFormatError, match="overlaps"):
        read_pte(content[:8] + b"\0\0\0\0" + content[12:])
    with pytest.raises(FileFormatError, match="not UTF-8"):
        read_pte(content.replace(b"forward", b"forw\xffrd"))


def test_unknown_segments_are_refused():
    """Named data and constants in missing segments are refused."""
    for content in (_program([(0, 8)], bytes(8), named=1), _program([(0, 8)], bytes(8), constants=7)):
        with pytest.raises(FileFormatError, match=r"segment \d .*there are 1"):
            read_pte(content)


def _shared(methods: int, values: int) -> bytes:
    """A small file that claims `methods` * `values` values, which all are the same table."""
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


def test_shared_tables(allocates_less_than):
    """Tables that are shared a hundred million times are refused long before they are all read."""
    assert len(read_pte(_shared(3, 5)).methods) == 3
    content = _shared(10_000, 10_000)
    assert len(content) < 100_000
    with allocates_less_than(50 << 20), pytest.raises(FileFormatError, match="same bytes over and over"):
        read_pte(content)
