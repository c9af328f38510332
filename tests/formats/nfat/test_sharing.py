"""Equal bytes are stored once, in one piece where that pays off, and payloads are rebuilt byte for byte."""

import random
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pteforge.artifacts.digest import digest_bytes
from pteforge.formats.nfat.container import Container
from pteforge.formats.nfat.contents import Description, MatrixShape, Source
from pteforge.formats.nfat.limits import MAX_ZEROS
from pteforge.formats.nfat.pack import PackedContainer, pack_sections
from pteforge.formats.nfat.sharing import Section
from pteforge.formats.pte.contents import Extent


@dataclass
class _File:
    """A hand-made payload: sections of pieces, each piece at a multiple of `alignment`."""

    index: int
    alignment: int = 16
    content: bytearray = field(default_factory=bytearray)
    sections: list[Section] = field(default_factory=list)

    def add(self, *pieces: bytes, padding: bytes = b"\0", convertible: bool = False) -> Self:
        """Appends a section; in front of it are zeros, between its pieces is padding."""
        gap = -len(self.content) % self.alignment
        if gap:
            self.sections.append(Section(self.index, Extent(len(self.content), gap)))
            self.content += bytes(gap)
        start, ranges = len(self.content), []
        for piece in pieces:
            self.content += padding * (-len(self.content) % self.alignment)
            ranges.append(Extent(len(self.content), len(piece)))
            self.content += piece
        whole = Extent(start, len(self.content) - start)
        parts = tuple(each for each in ranges if each != whole)
        self.sections.append(Section(self.index, whole, parts, convertible=convertible))
        return self


def _pack(*files: _File) -> PackedContainer:
    """Packs files and checks what always has to hold."""
    contents = [memoryview(bytes(file.content)) for file in files]
    descriptions = [Description(f"payload-{file.index}") for file in files]
    every = [section for file in files for section in file.sections]
    packed = pack_sections(descriptions, contents, every, 128, {})
    assert pack_sections(descriptions, contents, every[::-1], 128, {}) == packed
    files_in_memory = [id(content.obj) for content in contents]
    assert all(id(blob.obj) in files_in_memory for blob in packed.blobs.values())  # views, not copies
    container = packed.open()
    for payload, content in zip(container.payloads, contents, strict=True):
        assert b"".join(container.verified(payload)) == content
    _check_tidy(container, packed)
    return packed


def _stored(*files: _File) -> int:
    """Bytes of all blobs when files are packed."""
    return sum(map(len, _pack(*files).blobs.values()))


def _check_tidy(container: Container, packed: PackedContainer) -> None:
    """Rules for producers: every blob is used and named once, and nothing hides in the inline section."""
    used = {index for payload in container.payloads for index in payload.blobs}
    assert used == set(range(len(container.manifest.blobs)))
    assert list(packed.blobs) == [blob.digest for blob in container.manifest.blobs]
    assert all(digest_bytes(blob) == digest for digest, blob in packed.blobs.items())
    end = 0
    inline = [each for payload in container.payloads for each in payload.extents if each.source is Source.INLINE]
    for extent in sorted(inline, key=lambda each: each.offset):
        assert extent.offset - end < 16
        assert not any(container.inline[end : extent.offset])
        end = max(end, extent.offset + extent.size)
    assert end == len(container.inline)


def _noise(size: int, seed: int) -> bytes:
    return random.Random(seed).randbytes(size)  # noqa: S311 - not a secret


W = [_noise(size, size) for size in (65536, 32768, 16384, 8000, 4100)]
"""Weights; some sizes are no multiples of 16."""


def test_single_tensors_become_ranges_of_the_segment_that_has_all():
    """The fallback's segment is one blob; payloads with a segment per tensor point into it, whatever their priority."""
    fallback = _File(1).add(_noise(2000, 1)).add(*W)
    packed = _pack(_File(0).add(_noise(1500, 2)).add(W[3]).add(W[1]).add(W[0]).add(W[4]).add(W[2]), fallback)
    assert [len(blob) for blob in packed.blobs.values()] == [len(fallback.content) - 2000]
    container = packed.open()
    assert [each.source for each in container.payloads[1].extents] == [Source.INLINE, Source.BLOB]
    shared = [each for each in container.payloads[0].extents if each.source is Source.BLOB]
    assert sorted(each.size for each in shared) == sorted(map(len, W))


@pytest.mark.parametrize(
    ("layouts", "expected"),
    [
        pytest.param([[W[:2], W[2:3]]] * 2, sum(map(len, W[:3])), id="equal payloads"),
        pytest.param([[W[:1], W[:1], W[1:2]]], len(W[0]) + len(W[1]), id="tied weights in one payload"),
        pytest.param([[[bytes(1 << 20)], [W[0], bytes(1 << 20), W[1]]]], len(W[0]) + len(W[1]), id="zeros"),
        pytest.param([[W], [W[::-1]]], sum(map(len, W)) + 12, id="tensors in another order"),
    ],
)
def test_stored_once(layouts, expected):
    """Blobs hold equal tensors once, and no zeros but the padding between tensors: `expected` bytes."""
    files = []
    for index, sections in enumerate(layouts):
        files.append(_File(index))
        for pieces in sections:
            files[-1].add(*pieces)
    assert expected - 12 <= _stored(*files) <= expected


@pytest.mark.parametrize(("tensors", "padding", "extents"), [(W[2:], b"\0", 1), ([W[4], W[0]], b"x", 3)])
def test_neighbours(tensors, padding, extents):
    """Tensors that are neighbours where they are stored are one extent, unless the padding between them differs."""
    first = _File(0).add(_noise(1024, 3), *tensors, _noise(1024, 4), padding=padding)
    packed = _pack(first, _File(1).add(*tensors))
    assert len(packed.blobs) == 1
    assert len(packed.open().payloads[1].extents) == extents


def test_a_payload_does_not_map_what_it_does_not_use():
    """A segment that payloads share in part is cut, and each payload points only into what it uses."""
    half = _noise(60000, 5)
    packed = _pack(_File(0).add(half).add(_noise(30000, 6)), _File(1).add(_noise(50000, 7), half))
    container = packed.open()
    for payload in container.payloads:
        assert sum(container.manifest.blobs[index].size for index in payload.blobs) <= payload.size + 16
    assert sum(map(len, packed.blobs.values())) <= 60000 + 30000 + 50000 + 16


def test_a_little_in_common_does_not_take_a_segment_apart():
    """A tensor that is less than 1/64 of the other's segment is stored twice: the segment stays in one piece."""
    small, large = _noise(5000, 8), _noise(1 << 20, 9)
    packed = _pack(_File(0).add(small).add(_noise(6000, 10)), _File(1).add(large, small))
    container = packed.open()
    assert sum(map(len, packed.blobs.values())) == len(small) * 2 + 6000 + len(large)
    assert len(container.payloads[1].extents) == 1
    assert container.payloads[1].blobs == (0,)
    assert 0 not in container.payloads[0].blobs
    assert _stored(_File(0).add(small), _File(1).add(small), _File(2).add(large, small)) == len(small) * 2 + len(large)


def test_other_alignment_is_not_shared():
    """A tensor at an unaligned position is not shared with an aligned one."""
    stored = _stored(_File(0).add(W[0]), _File(1, alignment=1).add(b"x" * 1025).add(W[0]))
    assert stored == 2 * len(W[0]) - (-1025 % 16)


@pytest.mark.parametrize("size", [1024, 5000, 200_000])
@pytest.mark.parametrize("count", [5, 40])
def test_repetitions_stay_within_what_readers_take(size, count):
    """A payload that repeats a tensor is stored with as many copies as readers ask for, and with no more."""
    file = _File(0).add(b"program")
    for _ in range(count):
        file.add(_noise(size, 1))
    packed = _pack(file)
    assert packed.size <= (count // 4 + 2) * (size + 200) + count * 40
    second = _File(1).add(_noise(size, 1))
    assert _pack(file, second).size <= packed.size + 500


_piece = st.one_of(
    st.tuples(st.integers(0, 6), st.sampled_from([1024, 4096, 5000, 20000])).map(lambda each: _noise(each[1], each[0])),
    st.integers(1, 9000).map(bytes),
    st.binary(min_size=1, max_size=40),
)


@settings(max_examples=150)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([16, 16, 16, 1, 8]),
            st.lists(st.tuples(st.lists(_piece, min_size=1, max_size=5), st.sampled_from([b"\0", b"x"])), max_size=5),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_any_payloads(layouts):
    """Any payloads are rebuilt, by tidy containers that are not larger than the payloads and what describes them."""
    files = []
    for index, (alignment, stretches) in enumerate(layouts):
        file = _File(index, alignment).add(b"program")
        for pieces, padding in stretches:
            file.add(*pieces, padding=padding)
        files.append(file)
    packed = _pack(*files)
    extents = sum(len(payload.extents) for payload in packed.open().payloads)
    assert packed.size <= sum(len(file.content) for file in files) + 40 * extents + 512 * len(files)


def _transposed(content: bytes, item: int, rows: int, columns: int) -> bytes:
    array = np.frombuffer(content, f"V{item}").reshape(-1, rows, columns)
    return np.ascontiguousarray(array.swapaxes(1, 2)).tobytes()


_SHAPES = [(4, 3, 9), (4, 64, 9), (2, 1024, 2), (1, 4, 4096), (16, 8, 8), (8, 2, 32)]
"""Of items of the first of W: their bytes, rows and columns."""


@pytest.mark.parametrize("shape", _SHAPES)
def test_transposed_tensors(shape):
    """A tensor in another layout is stored once, in that of the last payload, and is an extent of its own."""
    item, rows, columns = shape
    weight = _noise(item * rows * columns * 16, 1)
    other = _transposed(weight, *shape)
    fallback = _File(2).add(W[1], weight)
    first, second = (_File(index).add(W[1], convertible=True).add(other, convertible=True) for index in (0, 1))
    packed = _pack(first, second, fallback)
    assert packed.size - len(packed.container) + len(packed.open().inline) <= len(fallback.content) + 16
    *payloads, last = packed.open().payloads
    assert (last.features, last.transposes) == (0, ())
    for payload in payloads:
        (transpose,) = payload.transposes
        assert (payload.features, payload.transposed_bytes) == (1, len(weight))
        assert transpose.shape == MatrixShape(*shape)


def test_the_preferred_layout_is_stored():
    """If the last payload lacks a tensor, the first one of the others has it as it is stored."""
    files = [_File(0).add(W[0], convertible=True), _File(1).add(_transposed(W[0], 4, 64, 64), convertible=True)]
    packed = _pack(*files, _File(2).add(W[1]))
    assert [payload.features for payload in packed.open().payloads] == [0, 1, 0]
    assert sum(map(len, packed.blobs.values())) == len(W[0]) + len(W[1])


def test_layouts_that_are_kept():
    """What must not be transposed is stored as it is, and so is what would save nothing, being stored anyway."""
    other = _transposed(W[0], 4, 64, 64)
    for files in (
        [_File(0).add(other), _File(1).add(W[0])],
        [_File(0).add(other, convertible=True), _File(1, alignment=1).add(b"x" * 1025).add(W[0])],
        [_File(0).add(other, convertible=True), _File(1).add(other, W[0])],
        [_File(0).add(W[0], convertible=True).add(other, convertible=True)],
    ):
        packed = _pack(*files)
        assert not any(payload.features for payload in packed.open().payloads)
        assert sum(map(len, packed.blobs.values())) >= 2 * len(W[0]) - 16


@settings(max_examples=100)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([1, 2, 4, 8, 16]),
            st.integers(1, 8),
            st.integers(2, 24),
            st.integers(2, 24),
            st.binary(min_size=1, max_size=8),
            st.lists(st.integers(0, 2), min_size=1, max_size=3),
        ),
        min_size=1,
        max_size=4,
    ),
    st.booleans(),
)
def test_any_transposed_payloads(tensors, mixed):
    """Any payloads of tensors and transposes of them, also of few values, are rebuilt by containers without waste."""
    files = [_File(index).add(b"program") for index in range(3)]
    for number, (item, batch, rows, columns, values, users) in enumerate(tensors):
        size = item * batch * rows * columns
        content = bytes(random.Random(number).choices(values, k=size)) if mixed else _noise(size, number)  # noqa: S311
        for user in users:
            turned = content if user == 2 else _transposed(content, item, rows, columns)
            files[user].add(turned, convertible=user < 2)
    packed = _pack(*files)
    extents = sum(len(payload.extents) for payload in packed.open().payloads)
    assert packed.size <= sum(len(file.content) for file in files) + 64 * extents + 512 * len(files)


def _halved(content: bytes) -> bytes:
    return np.frombuffer(content, "<f4").astype("<f2").tobytes()


def _numbers(count: int, seed: int) -> bytes:
    return np.random.default_rng(seed).normal(size=count).astype("<f4").tobytes()


def test_half_tensors():
    """Tensors of 16-bit numbers are stored once, as the 32-bit numbers that the last payload has of them."""
    weights = [_numbers(8192, seed) for seed in range(2)]
    fallback = _File(2).add(*weights)
    first, second = _File(0), _File(1)
    for weight in weights:
        first.add(_halved(weight), convertible=True)
    second.add(_halved(weights[1]), convertible=True).add(W[0], convertible=True)
    packed = _pack(first, second, fallback)
    assert sum(map(len, packed.blobs.values())) == sum(map(len, weights)) + len(W[0])
    *payloads, last = packed.open().payloads
    assert [payload.features for payload in (*payloads, last)] == [2, 2, 0]
    assert [len(payload.halves) for payload in payloads] == [2, 1]


def test_numbers_that_are_kept():
    """What must not be rounded is stored as it is, and so is what is stored anyway, not aligned or not the nearest."""
    weight = _numbers(8192, 1)
    half = _halved(weight)
    for files in (
        [_File(0).add(half), _File(1).add(weight)],
        [_File(0).add(half, convertible=True), _File(1).add(half, weight)],
        [_File(0).add(half, convertible=True), _File(1, alignment=1).add(b"x" * 1025).add(weight)],
        [_File(0).add(half, convertible=True).add(weight, convertible=True)],
        [_File(0).add(half[:-2] + b"12", convertible=True), _File(1).add(weight)],
    ):
        packed = _pack(*files)
        assert not any(payload.features for payload in packed.open().payloads)
        assert sum(map(len, packed.blobs.values())) >= len(weight) + len(half) - 16


def test_numbers_that_are_not_aligned():
    """Numbers that are stored inline, not aligned as what would be rounded from them, are not used."""
    weight = _numbers(512, 1)
    fallback = _File(1, alignment=1).add(b"begin").add(weight)
    packed = _pack(_File(0).add(_halved(weight), convertible=True), fallback)
    assert not any(payload.features for payload in packed.open().payloads)


@pytest.mark.parametrize("count", [3, 8])
def test_many_payloads_of_one_model(count):
    """One more payload of the same weights costs its description."""
    files = []
    for index in range(count):
        order = random.Random(index).sample(W, len(W))  # noqa: S311 - the same each time
        files.append(_File(index).add(_noise(500, 100 + index)).add(*order))
    packed = _pack(*files)
    assert packed.size <= len(files[0].content) + count * 2000


def test_more_zeros_than_the_format_takes():
    """Zeros beyond the format's limit are stored, once for all payloads."""
    large, small = bytes(MAX_ZEROS + (1 << 20)), bytes(MAX_ZEROS // 2)
    files = [_File(index).add(_noise(64, index)).add(large).add(small).add(small).add(bytes(4096)) for index in (0, 1)]
    packed = _pack(*files)
    assert sorted(map(len, packed.blobs.values())) == [4096, len(large)]
    for payload in packed.open().payloads:
        zeros = [extent.size for extent in payload.extents if extent.source is Source.ZEROS]
        assert sum(zeros) == MAX_ZEROS
