"""A tensor that an operator and a delegate use is in a plain file once, and each finds it."""

from __future__ import annotations

import pytest
from executorch.exir._serialize import _serialize
from executorch.exir._serialize._named_data_store import NamedDataStore
from executorch.exir._serialize._program import PTEFile, deserialize_pte_binary
from executorch.exir.schema import Buffer, Program, SubsegmentOffsets
from pteforge.formats.pte.reader import read_pte
from pteforge.tasks.upstream.shared_constants import MIN_SHARED, constants_once
from pteforge.tests.lowering import recipe

ALIGNMENTS = {"tied": 16, "again": 16, "wide": 256, "odd": 96, "own": 16, "small": 16}
SIZE = MIN_SHARED
BYTES = {"tied": b"t" * SIZE, "wide": b"w" * (SIZE + 1), "odd": b"x" * SIZE, "own": b"o" * SIZE, "small": b"s" * 999}
BYTES["again"] = BYTES["tied"]
CONSTANTS = (b"", b"c" * 24, BYTES["tied"], b"d" * SIZE, BYTES["small"], BYTES["wide"], BYTES["odd"])


@pytest.fixture
def made():
    """A file without methods that has constants and named data, some of them equal."""
    store = NamedDataStore()
    for key, content in BYTES.items():
        store.add_named_data(key, content, alignment=ALIGNMENTS[key])
    constants = [Buffer(content) for content in CONSTANTS]
    program = Program(0, [], constants, [], [], SubsegmentOffsets(0, []))
    with constants_once():
        return bytes(_serialize.serialize_pte_binary(PTEFile(program, None, store.get_named_data_store_output())))


def test_equal_bytes_are_written_once(made):
    """What is equal and large is there once, aligned as both uses of it ask for; all keys and constants are found."""
    counts = {key: made.count(content) for key, content in BYTES.items()}
    assert counts == {"tied": 1, "again": 1, "wide": 1, "odd": 2, "own": 1, "small": 2}
    pte = read_pte(made)
    segments = {named.key: pte.segments[named.segment] for named in pte.named_data}
    assert {key: segment.of(made) for key, segment in segments.items()} == BYTES
    assert all(segment.offset % 128 == 0 for segment in segments.values())
    assert (segments["wide"].offset - pte.segment_base) % 256 == 0
    assert {named.key for named in pte.named_data if named.segment in pte.inner_segments} == {"tied", "again", "wide"}
    read = deserialize_pte_binary(made)
    pairs = zip(read.program.constant_buffer, CONSTANTS, strict=True)
    assert all(found.storage.rstrip(b"\0") == content for found, content in pairs)  # it reads padding with each
    assert {
        key: read.named_data.buffers[entry.buffer_index] for key, entry in read.named_data.pte_data.items()
    } == BYTES


def test_a_tied_embedding(lower):
    """The kernels look words up in the weight that the backend multiplies with; the runtime finds it for both."""
    lowered = lower("builders:tied", recipe("xnnpack"))
    (weight,) = (tensor.detach().numpy().tobytes() for tensor in lowered.program("export").state_dict.values())
    pte = read_pte(lowered.file)
    assert lowered.file.count(weight) == 1
    assert pte.backends == ("XnnpackBackend",)
    assert [pte.segments[index].size for index in pte.inner_segments] == [len(weight)]
