"""Trees of nodes: merging, and dotted field names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pteforge.configs.nodes import Node, deep_merge, format_field, located, map_scalars, nearest, plain, read_field
from pteforge.errors import Location

scalars = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["a", "b"])
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=3),
    max_leaves=10,
)


def tree(value):
    """A value as nodes of one place."""
    return located(value, Node(None, Location("f")))


def merged(base, over):
    """Merging, defined on plain values."""
    if isinstance(base, dict) and isinstance(over, dict):
        return {key: merged(base.get(key), over[key]) if key in over else base[key] for key in {**base, **over}}
    return over


@given(values, values)
def test_mappings_merge_and_the_rest_replaces(base, over):
    """Merging goes down through mappings only; lists and scalars of the upper tree replace those below."""
    assert plain(deep_merge(tree(base), tree(over))) == merged(base, over)


def test_trees_are_not_changed():
    """Merging and mapping make new trees; each scalar is passed on with its path, from that of the tree itself."""
    base, over = tree({"a": {"b": 1}, "l": [1, {"b": None}]}), tree({"a": {"c": 2}, "l": [2, 3]})
    deep_merge(base, over)
    seen = []
    map_scalars(base, lambda path, value: seen.append((path, value)), ("top",))
    assert seen == [(("top", "a", "b"), 1), (("top", "l", 0), 1), (("top", "l", 1, "b"), None)]
    assert plain(base) == {"a": {"b": 1}, "l": [1, {"b": None}]}
    assert plain(over) == {"a": {"c": 2}, "l": [2, 3]}


def test_nearest_stops_at_the_last_node_that_exists():
    """A path that leads nowhere gives its deepest existing ancestor and what is left; no index counts from the end."""
    root = tree({"a": [{"b": 1}]})
    assert nearest(root, ("a", 0, "b"))[0].value == 1
    assert nearest(root, ("a", 0, "c", "d")) == (root.entries["a"].items[0], ("c", "d"))
    assert nearest(root, ("a", -1)) == (root.entries["a"], (-1,))
    assert nearest(root, ("a", "0")) == (root.entries["a"], ("0",))


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
    """Plain keys stand bare; keys that would be misread are quoted. Text without a field name is left whole."""
    assert format_field(path) == text
    assert read_field(text) == (path, "")
    for other in ("", ".a", "[0]", " a", "=", '"open', r'"\q"'):
        assert read_field(other) == ((), other)
