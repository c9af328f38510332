"""YAML into trees of located nodes; merging them, and dotted field names."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pteforge.configs.nodes import (
    Node,
    deep_merge,
    format_field,
    located,
    map_scalars,
    nearest,
    parse_yaml,
    plain,
    read_field,
    read_yaml,
)
from pteforge.errors import ConfigError, Location

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


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"], exclude_characters="\ufeff\ufffe\uffff")),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.from_regex(r"[a-z0-9]{1,5}", fullmatch=True), inner, max_size=4)
    ),
    max_leaves=12,
)


def _error(text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text, "f.yaml")
    return caught.value


@given(json_values)
def test_json_is_read_as_json(value):
    """Every JSON document is YAML, and means the same."""
    assert plain(parse_yaml(json.dumps(value, ensure_ascii=False), "f.yaml")) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("~", None), ("null", None), ("Null", None), ("!!null x", None), ("true", True), ("FALSE", False),
        ("12", 12), ("-012", -12), ("0x1F", 31), ("0o17", 15),
        ("1e-3", 0.001), ("1.", 1.0), (".5", 0.5), ("-1.5E+3", -1500.0), ("!!float 1", 1.0),
        ("no", "no"), ("on", "on"), ("y", "y"), ("1:30", "1:30"), ("1_000", "1_000"), ("2024-01-01", "2024-01-01"),
        ("'12'", "12"), ('"true"', "true"), ("!!str 12", "12"), ("|\n  a\n  b\n", "a\nb\n"),
        ("a<<b", "a<<b"), ("[<<]", ["<<"]), ("", None), ("# nothing\n", None), ("---\n", None),
        # Keys are read as they are written, also where a value of that form would be a number or null.
        ("{0: a, null: b, 1e3: c, on: d, ~: e}", {"0": "a", "null": "b", "1e3": "c", "on": "d", "~": "e"}),
    ],
)  # fmt: skip
def test_scalars_follow_yaml_1_2(text, value):
    """Scalars are those of YAML 1.2's core schema, of exactly that type, not those of 1.1."""
    found = plain(parse_yaml(text, "f.yaml"))
    assert found == value
    assert type(found) is type(value)


def test_locations_of_entries_and_items():
    """An entry stands where its key is, an item where it begins; lines and columns count from 1."""
    root = parse_yaml("a: 1\nb:\n  - x\n  - {c: 2, é: 3}\n", "f.yaml")
    places = [("a", 1, 1), ("b", 2, 1), ("b", 0, 3, 5), ("b", 1, 4, 5), ("b", 1, "c", 4, 6), ("b", 1, "é", 4, 12)]
    for *path, line, column in places:
        node, missing = nearest(root, tuple(path))
        assert (node.location, missing, node.written) == (Location("f.yaml", line, column), (), tuple(path))
    assert nearest(root, ("b", 7, "q"))[1] == (7, "q")
    assert nearest(root, ("a", "b"))[1] == ("b",)


@pytest.mark.parametrize(
    ("text", "line", "column", "field", "problem"),
    [
        ("a: 1\nb: [1,\n", 3, 1, None, "not valid YAML: did not find expected node content"),
        ("a: b: c", 1, 5, None, "not valid YAML: a `:` where no key can be"),
        ("a: 1\n\tb: 2", 2, 1, None, "not valid YAML: found a tab character that violates indentation"),
        ("a: *nope", 1, 4, None, "not valid YAML: found undefined alias"),
        ("a: 1\n---\nb: 2\n", 2, 1, None, "not valid YAML: but found another document"),
        ("é: é\nü: \x01", 2, 4, None, "not valid YAML: control characters are not allowed"),
        ("a: 1\nx:\n  b: 1\n  b: 2\n", 4, 3, "x.b", "the key 'b' is written twice in the same mapping"),
        ("a:\n  - !!python/object/apply:os.system [ls]\n", 2, 5, "a[0]", "python/object/apply:os.system' is not"),
        ("a: !mine 1\n", 1, 4, "a", "the tag '!mine' is not supported here"),
        ("a: !!binary aGk=\n", 1, 4, "a", "the tag 'tag:yaml.org,2002:binary' is not supported here"),
        ("a: " + "1" * 5000, 1, 4, "a", f"'{'1' * 40}'... is a number of more than 100 digits"),
        ("a: 0x" + "f" * 5000, 1, 4, "a", f"'0x{'f' * 38}'... is a number of more than 100 digits"),
        ("a: !!bool 1\n", 1, 4, "a", "'1' is not true or false"),
        ("? [1, 2]\n: 3\n", 1, 3, None, "a key must be text"),
        ("a: &x [*x]\n", 1, 4, "a[0]", "an alias is inside the value that it names"),
        ("b: {<<: 3}\n", 1, 9, "b", "`<<` takes a mapping, or a list of mappings"),
        ("b: {<<: {}, <<: {}}\n", 1, 13, "b.<<", "the key '<<' is written twice"),
        *((f"a:\n  - {text}\n", 2, 5, "a[0]", "is not a finite number") for text in (".inf", "-.INF", ".nan", "1e999")),
        ("a: !!float x\n", 1, 4, "a", "is not a finite number"),
    ],
)
def test_mistakes_are_placed(text, line, column, field, problem):
    """Each kind of unusable YAML is one clear error at the right line, column and field."""
    error = _error(text)
    assert problem in error.problem
    assert error.location == Location("f.yaml", line, column)
    assert error.field == field


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (os.mkfifo, "it is a pipe or a device"),
        (lambda path: path.symlink_to("/dev/zero"), "it is a pipe or a device"),
        (Path.mkdir, "Is a directory"),
        (lambda path: path.touch() or os.truncate(path, 2**24 + 1), "it has more than 16 MiB"),
    ],
)
def test_what_is_no_text_is_refused(tmp_path, make, problem):
    """A zoo file that would never end, or that nobody writes, is not read."""
    make(tmp_path / "zoo.yaml")
    with pytest.raises(ConfigError, match=f"cannot read zoo.yaml: {problem}"):
        read_yaml(tmp_path / "zoo.yaml", "zoo.yaml")


def test_merge_keys():
    """`<<` fills in what is missing, explicit keys and earlier sources win, and merged values keep their own places."""
    root = parse_yaml(
        "x: &x {a: 1, b: 2}\ny: &y {b: 3, c: 4}\nz:\n  <<: [*x, *y]\n  a: 5\nw: {<<: *y}\n",
        "f.yaml",
    )
    assert plain(root)["z"] == {"a": 5, "b": 2, "c": 4}
    assert plain(root)["w"] == {"b": 3, "c": 4}
    assert nearest(root, ("z", "a"))[0].location == Location("f.yaml", 5, 3)
    merged = nearest(root, ("z", "c"))[0]
    assert merged.location == Location("f.yaml", 2, 14)
    assert merged.written == ("z", "c")


@pytest.mark.parametrize(
    ("first", "later"),
    [("[" + "x, " * 9 + "x]", "[{}]"), ("{" + "".join(f"k{i}: 1, " for i in range(50)) + "}", "{{<<: [{}]}}")],
)
def test_bombs_are_refused(first, later):
    """Aliases and merge keys that multiply are stopped before they fill the memory."""
    lines = [f"a0: &a0 {first}"]
    lines += [f"a{i}: &a{i} {later.format(', '.join([f'*a{i - 1}'] * 10))}" for i in range(1, 20)]
    assert "grows out of bounds" in str(_error("\n".join(lines)))


@pytest.mark.parametrize("opening", ["[", "{a: ", "- "])
def test_deep_nesting_is_refused(opening):
    """Nesting that would overflow the C stack of the parser is an error, not a crash; 64 levels are fine."""
    error = _error(opening * 300_000)
    assert error.problem == "nested more than 64 levels deep"
    assert (error.location.file, error.location.line) == ("f.yaml", 1)
    assert _error(opening * 65).problem == error.problem
    assert _error(opening * 65).location == Location("f.yaml", 1, len(opening) * 64 + 1)
    assert str(plain(parse_yaml("[" * 64 + "]" * 64, "f.yaml"))) == "[" * 64 + "]" * 64


@given(st.text(st.sampled_from("ab:-[]{}&*!|>'\"#%@`,? \n\t0.~<"), max_size=40))
def test_no_text_escapes_as_another_error(text):
    """Whatever the text, the answer is a finite JSON value or a ConfigError with a line."""
    try:
        value, line = plain(parse_yaml(text, "f.yaml")), 1
    except ConfigError as error:
        value, line = None, error.location.line
    assert line >= 1
    json.dumps(value, allow_nan=False)
