"""Version 1 is upstream's proposal, byte for byte."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pteforge.artifacts.nfat.container import read_container
from pteforge.artifacts.nfat.v1 import merge_named_data, pack_v1
from pteforge.errors import FileFormatError, InputError

_IDS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=32)


def _container(entries: list[tuple[bytes, int, int]], section: bytes) -> bytes:
    table = b"".join(struct.pack("<32sQQ", *entry) for entry in entries)
    return struct.pack("<4sII", b"NFAT", 1, len(entries)) + table + section


def test_single():
    """One payload: the table names it, its offset is counted from the data section, which is its bytes."""
    container = pack_v1([("TestBackend", b"hello")])
    assert struct.unpack_from("<4sII", container) == (b"NFAT", 1, 1)
    assert struct.unpack_from("<32sQQ", container, 12) == (b"TestBackend".ljust(32, b"\0"), 0, 5)
    assert container[60:] == b"hello"


def test_multiple():
    """Several payloads follow each other in the order of the table, without gaps."""
    container = pack_v1([("A", b"aaa"), ("B", b"bbbb"), ("C", b"cc")])
    table = [struct.unpack_from("<32sQQ", container, 12 + 48 * index) for index in range(3)]
    assert [(name.rstrip(b"\0"), offset, size) for name, offset, size in table] == [
        (b"A", 0, 3),
        (b"B", 3, 4),
        (b"C", 7, 2),
    ]
    assert container[12 + 3 * 48 :] == b"aaabbbbcc"


def test_empty():
    """No payloads: the twelve bytes at the start alone, and they can be read."""
    container = pack_v1([])
    assert container == struct.pack("<4sII", b"NFAT", 1, 0)
    assert read_container(container).payloads == ()


def test_ids_over_32_bytes_are_refused():
    """An id of 32 characters fits without a NUL; a longer one is an error and not cut."""
    assert read_container(pack_v1([("A" * 32, b"x")])).payloads[0].name == "A" * 32
    with pytest.raises(InputError, match="cannot be a backend id"):
        pack_v1([("A" * 33, b"x")])


@pytest.mark.parametrize("backend_id", ["", "two words", "ümlaut", "nul\0"])
def test_ids_that_others_could_not_read_are_refused(backend_id):
    """Ids are printable ASCII without blanks."""
    with pytest.raises(InputError, match="cannot be a backend id"):
        pack_v1([(backend_id, b"x")])


def test_shared_constants_are_stored_once():
    """Named data of several payloads keeps each key once; one key with two contents is an error, not a choice."""
    weight, bias = b"w" * 64, b"b" * 8
    merged = merge_named_data([{"w": weight, "b": bias}, {"w": bytes(weight)}, {}])
    assert merged == {"w": weight, "b": bias}
    with pytest.raises(InputError, match="'w'"):
        merge_named_data([{"w": weight}, {"w": bias}])


@given(st.lists(st.tuples(_IDS, st.binary(max_size=200)), max_size=8))
def test_round_trip(entries):
    """Every payload comes back under its id, in order; only `portable` needs no backend."""
    container = read_container(pack_v1(entries))
    assert container.version == 1
    assert [(payload.name, container.rebuild(payload)) for payload in container.payloads] == entries
    for payload in container.payloads:
        assert payload.description.backends == (() if payload.name == "portable" else (payload.name,))
        container.verify(payload)


def test_small_gaps_of_zeros_are_padding():
    """A producer that aligns payloads is understood."""
    content = _container([(b"A", 4, 3), (b"B", 16, 2)], b"\0\0\0\0aaa" + bytes(9) + b"bb" + bytes(4))
    container = read_container(content)
    assert [container.rebuild(payload) for payload in container.payloads] == [b"aaa", b"bb"]


@pytest.mark.parametrize(
    ("entries", "section", "problem"),
    [
        ([(b"A", 0, 4), (b"B", 3, 3)], b"aaabbb", "overlaps"),
        ([(b"A", 3, 3), (b"B", 0, 3)], b"\0\0\0aaa", "overlaps"),
        ([(b"A", 0, 7)], b"aaabbb", "cut short"),
        ([(b"A", 2**64 - 1, 2)], b"aaabbb", "cut short"),
        ([(b"A", 2**64 - 1, 2**64 - 1)], b"aaabbb", "cut short"),
        ([(b"A", 0, 3)], b"aaa?", "no payload"),
        ([(b"A", 1, 3)], b"?aaa", "no payload"),
        ([(b"A", 0, 3), (b"B", 4, 3)], b"aaa?bbb", "no payload"),
        ([(b"A", 4096, 1)], bytes(4096) + b"a", "no payload"),
        ([(b"", 0, 1)], b"a", "not a backend id"),
        ([(b"A\0B", 0, 1)], b"a", "not a backend id"),
        ([(b"A\xffB", 0, 1)], b"a", "not a backend id"),
        ([(b"A B", 0, 1)], b"a", "not a backend id"),
    ],
)
def test_tables_that_lie(entries, section, problem):
    """Overlaps, holes with something in them, ranges outside and ids that are none are refused."""
    with pytest.raises(FileFormatError, match=problem):
        read_container(_container(entries, section))


def test_counts_that_lie():
    """A count that the container has no room for, or beyond the limit, is refused before the table is read."""
    with pytest.raises(FileFormatError, match="cut short"):
        read_container(struct.pack("<4sII", b"NFAT", 1, 2) + bytes(48))
    with pytest.raises(FileFormatError, match="65 payloads"):
        read_container(struct.pack("<4sII", b"NFAT", 1, 65) + bytes(48 * 65))
    with pytest.raises(FileFormatError, match="4294967295 payloads"):
        read_container(struct.pack("<4sII", b"NFAT", 1, 2**32 - 1))
    with pytest.raises(InputError, match="65 payloads"):
        pack_v1([("A", b"")] * 65)


@pytest.mark.parametrize("content", [b"", b"NFA", b"NFAT", b"NFAT\1\0\0", b"NFAT\1\0\0\0", b"NFAT\1\0\0\0\0\0\0"])
def test_starts_that_are_cut_short(content):
    """Fewer bytes than the start has are refused."""
    with pytest.raises(FileFormatError, match=r"not an NFAT container|cut short"):
        read_container(content)


@pytest.mark.parametrize("version", [0, 3, 2**32 - 1])
def test_unknown_versions_are_refused(version):
    """A version that is not known is named."""
    with pytest.raises(FileFormatError, match=f"version {version};"):
        read_container(struct.pack("<4sII", b"NFAT", version, 0))
