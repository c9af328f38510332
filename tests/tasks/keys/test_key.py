"""Stage keys."""

import dataclasses
import json
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pteforge.artifacts.digest import digest_bytes
from pteforge.tasks.keys.key import StageKey

KEY = StageKey(
    stage="edge",
    code=digest_bytes(b"code"),
    versions={"torch": "2", "executorch": "1"},
    inputs={"program": digest_bytes(b"program"), "other": digest_bytes(b"other")},
    params={"a": 1, "b": [1.5, None, True, "x"]},
)


@pytest.mark.parametrize(
    "change",
    [
        {"stage": "export"},
        {"code": digest_bytes(b"other code")},
        {"versions": {"torch": "2", "executorch": "2"}},
        {"versions": {"torch": "2"}},
        {"inputs": {"program": digest_bytes(b"other"), "other": digest_bytes(b"program")}},
        {"params": {"a": 1, "b": [1.5, None, True, "y"]}},
        {"params": {"a": 1.0, "b": [1.5, None, True, "x"]}},
        {"params": {"a": True, "b": [1.5, None, True, "x"]}},
        {"params": None},
    ],
)
def test_each_field_decides(change):
    """Another value of any field is another key, and shows in that field alone."""
    other = dataclasses.replace(KEY, **change)
    assert other.digest() != KEY.digest()
    mine, theirs = KEY.fields(), other.fields()
    assert {name for name in mine if json.dumps(mine[name]) != json.dumps(theirs[name])} == set(change)


def test_order_does_not_matter():
    """Mappings are compared by content, whatever their order or kind."""
    turned = dataclasses.replace(
        KEY,
        versions=types.MappingProxyType(dict(reversed(KEY.versions.items()))),
        inputs=dict(reversed(KEY.inputs.items())),
        params={"b": KEY.params["b"], "a": 1},
    )
    assert turned.digest() == KEY.digest()


def test_fields_survive_json():
    """What is kept beside a key reads back as the same fields."""
    assert json.loads(json.dumps(KEY.fields())) == KEY.fields()


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(JSON_VALUES, JSON_VALUES)
def test_equal_keys_are_equal_params(one, other):
    """Digests of keys agree exactly where their parameters have the same JSON text."""
    first, second = (dataclasses.replace(KEY, params=params) for params in (one, other))
    same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (first.digest() == second.digest()) == same


def test_params_that_are_not_json_are_refused():
    """NaN or a foreign object cannot be part of a key."""
    for params in ({"a": float("nan")}, {"a": object()}):
        with pytest.raises((ValueError, TypeError)):
            dataclasses.replace(KEY, params=params).digest()
