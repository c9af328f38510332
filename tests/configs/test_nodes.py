"""Merging trees."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from pteforge.configs.nodes import Node, deep_merge, map_scalars, nearest, plain
from pteforge.errors import Location

scalars = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["a", "b"])
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=3),
    max_leaves=10,
)


def tree(value, file="f", at=()):
    """A value as nodes that all say they stand in `file`."""
    if isinstance(value, dict):
        return Node({key: tree(below, file, (*at, key)) for key, below in value.items()}, Location(file), at)
    if isinstance(value, list):
        return Node([tree(below, file, (*at, i)) for i, below in enumerate(value)], Location(file), at)
    return Node(value, Location(file), at)


def merged(base, over):
    """What merging means, said once more on plain values."""
    if isinstance(base, dict) and isinstance(over, dict):
        return {key: merged(base.get(key), over[key]) if key in over else base[key] for key in {**base, **over}}
    return over


@given(values, values)
def test_mappings_merge_and_the_rest_replaces(base, over):
    """Merging goes down through mappings only; lists and scalars of the upper tree replace those below."""
    assert plain(deep_merge(tree(base), tree(over))) == merged(base, over)


@given(values, values, values)
def test_merging_is_associative_over_mappings(a, b, c):
    """A chain of mappings gives one answer however it is bracketed, so defaults may be worked in step by step."""
    a, b, c = ({"x": value} if not isinstance(value, dict) else value for value in (a, b, c))
    if all(not _replaces(low, high) for low, high in ((a, b), (b, c), (a, c))):
        left = deep_merge(deep_merge(tree(a), tree(b)), tree(c))
        assert plain(left) == plain(deep_merge(tree(a), deep_merge(tree(b), tree(c))))


def _replaces(low, high):
    """Whether a mapping meets something else on the way down; then the order of merging matters, rightly."""
    if isinstance(low, dict) and isinstance(high, dict):
        return any(_replaces(low[key], high[key]) for key in low.keys() & high.keys())
    return isinstance(low, dict) != isinstance(high, dict)


@given(values, values)
def test_every_merged_value_knows_its_file(base, over):
    """Each leaf of a merged tree stands where the tree it came from says."""
    result = deep_merge(tree(base, "base"), tree(over, "over"))

    def check(node, low, high):
        if isinstance(node.value, dict) and isinstance(low, dict) and isinstance(high, dict):
            for key, below in node.value.items():
                if key in low and key in high:
                    check(below, low[key], high[key])
                else:
                    assert below.location.file == ("over" if key in high else "base")
        else:
            assert node.location.file == "over"

    check(result, base, over)


def test_trees_are_not_changed():
    """Merging and mapping make new trees."""
    base, over = tree({"a": {"b": 1}, "l": [1]}), tree({"a": {"c": 2}, "l": [2, 3]})
    deep_merge(base, over)
    map_scalars(base, lambda path, value: (path, value) and 9)
    assert plain(base) == {"a": {"b": 1}, "l": [1]}
    assert plain(over) == {"a": {"c": 2}, "l": [2, 3]}


def test_map_scalars_gives_paths():
    """Each scalar is handed over with its path, beginning with the path of the tree itself."""
    seen = []
    map_scalars(tree({"a": [1, {"b": None}]}), lambda path, value: seen.append((path, value)), ("top",))
    assert seen == [(("top", "a", 0), 1), (("top", "a", 1, "b"), None)]


def test_nearest_stops_at_the_last_node_that_exists():
    """A path that leads nowhere gives its deepest existing ancestor and what is left; no index counts from the end."""
    root = tree({"a": [{"b": 1}]})
    assert nearest(root, ("a", 0, "b"))[0].value == 1
    assert nearest(root, ("a", 0, "c", "d")) == (root.entries["a"].items[0], ("c", "d"))
    assert nearest(root, ("a", -1)) == (root.entries["a"], (-1,))
    assert nearest(root, ("a", "0")) == (root.entries["a"], ("0",))
