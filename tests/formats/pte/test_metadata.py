"""Metadata: the bytes of values, and what is no value."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pteforge.errors import FileFormatError
from pteforge.formats.pte.metadata import constant_method, decode_value, encode_value, metadata_json, read_metadata
from pteforge.formats.pte.reader import open_pte, read_pte
from pteforge.tasks.backend import file_programs
from pteforge.tasks.backend.file_programs import write_metadata

INT64 = st.integers(-(2**63), 2**63 - 1)
VALUES = st.text() | INT64 | st.floats(allow_nan=False) | st.binary() | st.lists(INT64, max_size=4).map(tuple)


@pytest.mark.parametrize(
    ("value", "content"),
    [
        (-2, b"\1" + struct.pack("<q", -2)),
        (0.5, b"\2" + struct.pack("<d", 0.5)),
        ("größe", b"\3" + "größe".encode()),
        ((224, -1), b"\4" + struct.pack("<Iqq", 2, 224, -1)),
        (b"\0\1", b"\5\0\1"),
        (("a", 'b"'), b'\3["a", "b\\""]'),
    ],
)
def test_the_bytes_are_those_of_upstream(value, content):
    """A byte of type and the value, as ExecuTorch's accessors take it; lists of text have no type there."""
    assert encode_value(value) == content


@given(VALUES)
def test_round_trip(value):
    """Every value of the format comes back as it was, types included."""
    back = decode_value("a.b", encode_value(value))
    assert (back, type(back)) == (value, type(value))


def test_lists_without_a_type():
    """Labels and means come back as tuples, by their keys; the same text under another key is text."""
    for key, value in (("output.labels", ("cat", "dög")), ("image.mean", (0.5, 0.25))):
        assert decode_value(key, encode_value(value)) == value
    assert decode_value("other.key", encode_value('["cat"]')) == '["cat"]'


@pytest.mark.parametrize("value", [True, 2**63, (1, 2**63), None])
def test_what_the_format_lacks(value):
    """Booleans, integers of more than 64 bits and other types are errors, not other values."""
    with pytest.raises(ValueError, match=r"booleans|64 bits|NoneType"):
        encode_value(value)


@pytest.mark.parametrize(
    ("key", "content"),
    [
        ("a.b", b""),
        ("a.b", b"\x09x"),
        ("a.b", b"\1\0"),
        ("a.b", b"\3\xff"),
        ("a.b", b"\4\xff\xff\xff\xff\0"),
        ("output.labels", b"\3{}"),
        ("output.labels", b"\3[[1]]"),
        ("image.mean", b"\3" + b"[" * 100_000),
        ("image.mean", b"\1" + bytes(8)),
    ],
)
def test_damaged_values(key, content):
    """What is no value is an error that names the key, and takes no memory for what it announces."""
    with pytest.raises(FileFormatError, match=key):
        decode_value(key, content)


def test_names_of_constant_methods():
    """They are the keys, without the namespaces that every file has."""
    names = [constant_method(key) for key in ("general.license", "output.labels", "image.mean", "a.b.c")]
    assert names == ["get_license", "get_labels", "get_image_mean", "get_a_b_c"]


def test_as_json():
    """Everything has a JSON value, also what JSON has none for."""
    values = {"a.b": b"\1\xff", "c.d": (1, 2), "e.f": float("inf"), "g.h": 0.5}
    assert metadata_json(values) == {"a.b": "01ff", "c.d": [1, 2], "e.f": "inf", "g.h": 0.5}


@pytest.mark.parametrize("name", ["portable", "xnnpack", "methods", "dynamic", "mutable", "inline", "external"])
def test_any_file_can_have_metadata(samples, tmp_path, monkeypatch, name):
    """Every kind of file keeps its methods and its data; without the metadata it is what it was, byte for byte.

    A file that may be consumed is shortened while it is copied.
    """
    path, made = tmp_path / "file.pte", tmp_path / "made.pte"
    path.write_bytes(samples.files[name])
    alignment = 128 if name != "inline" else 16
    write_metadata(path, {"a.b": "text", "c.d": 1}, made, constant_methods=True, segment_alignment=alignment)
    before, after = open_pte(path), open_pte(made)
    assert read_metadata(made) == {"a.b": "text", "c.d": 1}
    assert [method.name for method in after.methods] == [method.name for method in before.methods] + [
        "get_a_b",
        "get_c_d",
    ]
    old, new = samples.files[name], made.read_bytes()
    assert [segment.of(old) for segment in before.segments] == [
        segment.of(new) for segment in after.segments[: len(before.segments)]
    ]
    assert [constant.extent.of(new) for constant in read_pte(memoryview(new)).constants] == [
        constant.extent.of(old) for constant in before.constants
    ]
    write_metadata(made, {}, made, constant_methods=False, segment_alignment=alignment)
    assert made.read_bytes() == old
    monkeypatch.setattr(file_programs, "_STEP", 100)
    write_metadata(
        path, {"a.b": "text", "c.d": 1}, made, constant_methods=True, segment_alignment=alignment, consume=True
    )
    assert made.read_bytes() == new
    assert path.read_bytes() == old[: before.segment_base or None]
