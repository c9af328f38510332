"""Dotted field names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pteforge.configs.fields import format_field, read_field

keys = st.text(st.characters(codec="utf-8"), max_size=8)
indices = st.integers(0, 10**8)
paths = st.tuples(keys, st.lists(keys | indices, max_size=5)).map(lambda parts: (parts[0], *parts[1]))


@given(paths)
def test_a_written_path_reads_back(path):
    """Whatever the keys hold, a path survives being written and read, and the reader stops at the equals sign."""
    assert read_field(format_field(path)) == (path, "")
    assert read_field(format_field(path) + "=a.b=c") == (path, "=a.b=c")


@given(st.text())
def test_any_text_is_read_or_left(text):
    """Reading never raises, and what is read and what is left is the whole text's worth."""
    path, rest = read_field(text)
    assert text.endswith(rest)
    assert bool(path) or rest == text


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (("models", "resnet8", "recipes", 1), "models.resnet8.recipes[1]"),
        (("models", "mobilenet-0.25", "seed"), 'models."mobilenet-0.25".seed'),
        (("recipes", "a", "specializations", 0, "target"), "recipes.a.specializations[0].target"),
        (("a", ""), 'a.""'),
    ],
)
def test_names_are_as_people_write_them(path, text):
    """Plain keys stand bare; keys that would be misread are quoted."""
    assert format_field(path) == text
    assert read_field(text) == (path, "")


@pytest.mark.parametrize("text", ["", ".a", "[0]", " a", "=", '"open', r'"\q"'])
def test_what_is_no_field_gives_an_empty_path(text):
    """Text that does not start with a field name yields no path and is left whole."""
    assert read_field(text) == ((), text)
