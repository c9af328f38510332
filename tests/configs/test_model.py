"""Models as they are made in Python, and the types of their fields."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pteforge.configs import (
    BuilderSource,
    DimRange,
    InputShape,
    Limits,
    ModelConfig,
    ProgramSource,
    VerifyBounds,
    VerifyOverrides,
)
from pteforge.configs.base import parse_bytes, parse_duration
from pydantic import ValidationError


@pytest.mark.parametrize(
    ("written", "source"),
    [
        ("pkg.mod:make", BuilderSource(builder="pkg.mod:make")),
        ("mod:Outer.make", BuilderSource(builder="mod:Outer.make")),
        ("a/b.pt2", ProgramSource(program="a/b.pt2")),
        ({"builder": "m:f", "kwargs": {"a": [1]}}, BuilderSource(builder="m:f", kwargs={"a": [1]})),
        ({"program": "x.bin"}, ProgramSource(program="x.bin")),
        (BuilderSource(builder="m:f"), BuilderSource(builder="m:f")),
        (ProgramSource(program="x"), ProgramSource(program="x")),
    ],
)
def test_sources(written, source):
    """A source is text, a mapping or an instance, and always comes out as one of the two kinds."""
    assert ModelConfig(source=written).source == source


@pytest.mark.parametrize("written", ["", "mod", "mod:", ":f", "a b:c", "mod:f()", "1a:b", "mod:f:g", "mod.:f", "x.pt"])
def test_what_is_no_source(written):
    """Text that is neither a builder nor a .pt2 file is refused."""
    with pytest.raises(ValidationError, match=r"neither 'package\.module:callable' nor the path"):
        ModelConfig(source=written)


@pytest.mark.parametrize(
    ("field", "written", "quantity"),
    [
        *(("timeout", 5, 5), ("timeout", 0.5, 0.5), ("timeout", "90s", 90), ("timeout", "10m", 600)),
        *(("timeout", "1h30m", 5400), ("timeout", " 2.5 s ", 2.5), ("timeout", "1d 1h", 90000)),
        *(("timeout", "9ms", 0.009), ("memory", 1, 1), ("memory", "4GiB", 4 * 2**30), ("memory", "512 MiB", 2**29)),
        *(("memory", "1.5KiB", 1536), ("memory", "2GB", 2 * 10**9), ("memory", "3k", 3000), ("memory", "7", 7)),
    ],
)
def test_quantities(field, written, quantity):
    """Durations are seconds, sizes whole bytes, or numbers with units; those of sizes are binary or decimal."""
    found = getattr(Limits(**{field: written}), field)
    assert found == pytest.approx(quantity, rel=1e-12)
    assert field == "timeout" or type(found) is int


@pytest.mark.parametrize(
    ("read", "written"),
    [(parse_duration, text) for text in ("", "10", "m", "10 minutes", "-5s", "1:30", "5s x", True, None, [], "1e3s")]
    + [(parse_bytes, text) for text in ("", "GiB", "4 apples", "4Gi", "-1GiB", "4GiB/s", True, 1.5, None)],
)
def test_what_is_no_quantity(read, written):
    """Anything else is refused, with examples of what to write."""
    with pytest.raises(ValueError, match=r"not a (duration|size in bytes); write"):
        read(written)


@given(st.text(max_size=12))
def test_text_is_a_quantity_or_refused(text):
    """No text makes the readers of quantities fail in another way than by ValueError."""
    for read in (parse_duration, parse_bytes):
        try:
            number, problem = read(text), ""
        except ValueError as error:
            number, problem = -1, str(error)
        assert number >= 0 or "write" in problem


def test_dynamic_shapes():
    """Shapes are given per method and positional input, as mappings, null or lists of these to any depth."""
    inputs = [{0: {"min": 1, "max": 8, "name": "n"}}, None, [{"1": {"min": 2, "max": 3}}, [None]]]
    first, second, third = ModelConfig(source="m:f", dynamic_shapes={"forward": inputs}).dynamic_shapes["forward"]
    assert first.root == {0: DimRange(min=1, max=8, name="n")}
    assert second.root is None
    assert third.root == (InputShape({1: DimRange(min=2, max=3)}), InputShape((InputShape(None),)))
    assert [dim.max for shape in (first, second, third) for dim in shape.ranges()] == [8, 3]
    assert hash(second) == hash(InputShape(None))
    small, large = {0: {"min": 1, "max": 2, "name": "n"}}, {0: {"min": 1, "max": 9, "name": "n"}}
    ModelConfig(source="m:f", dynamic_shapes={"a": [small, small], "b": [large]})
    with pytest.raises(ValidationError, match="'n' of a has different bounds"):
        ModelConfig(source="m:f", dynamic_shapes={"a": [small, [large]]})


def test_multiples():
    """A size that is no multiple is an error, as is a name for multiples of two numbers; 1 is left out of keys."""
    shape = {"min": 8, "max": 32, "name": "n", "multiple_of": 4}
    rows, others = DimRange(**shape), DimRange(**{**shape, "multiple_of": 2})
    assert rows.model_dump() == shape
    assert "multiple_of" not in DimRange(min=1, max=2).model_dump()
    with pytest.raises(ValidationError, match=r"max \(30\) .*multiple of 4"):
        DimRange(**{**shape, "max": 30})
    with pytest.raises(ValidationError, match="'n' of a has different bounds"):
        ModelConfig(source="m:f", dynamic_shapes={"a": [{0: rows}, {0: others}]})


@pytest.mark.parametrize("value", [object(), {1, 2}])
def test_kwargs_are_json(value):
    """Arguments that JSON cannot hold could not be part of a key, so they are errors."""
    with pytest.raises(ValidationError):
        BuilderSource(builder="m:f", kwargs={"x": value})


bounds = st.fixed_dictionaries(
    {},
    optional={
        "max_abs_error": st.none() | st.floats(0, 1),
        "max_relative_error": st.none() | st.floats(0, 1),
        "min_sqnr_db": st.none() | st.floats(0, 100),
        "drawn_inputs": st.integers(0, 5),
    },
)


@given(bounds, bounds)
def test_overrides_replace_field_by_field(recipe, model):
    """A model's bounds replace those fields of the recipe's that it writes, null included, also through JSON."""
    overrides = VerifyOverrides(**model)
    expected = VerifyBounds(**{**recipe, **model})
    assert overrides.applied_to(VerifyBounds(**recipe)) == expected
    again = VerifyOverrides.model_validate_json(overrides.model_dump_json())
    assert again.applied_to(VerifyBounds(**recipe)) == expected


@pytest.mark.parametrize(
    ("buckets", "problem"),
    [
        ({"batch": [4, 1]}, "ascending order"),
        ({"batch": [1, 1]}, "each once"),
        ({"batch": []}, "at least one"),
        ({"batch": [0, 1]}, "greater than or equal to 1"),
        ({"batch": [True]}, "valid integer"),
        ({"batch": ["32"]}, "valid integer"),
        ({"batch": 32}, "valid tuple"),
        ({name: list(range(1, 5)) for name in "abc"}, "64 combinations of sizes.*at most 32"),
    ],
)
def test_buckets_that_are_none(buckets, problem):
    """Sizes ascend, from 1 on, and there are not too many combinations of them."""
    with pytest.raises(ValidationError, match=problem):
        ModelConfig(source="m:f", methods={"forward": {"buckets": buckets}})


def test_buckets_of_a_program():
    """What is exported already has the sizes that it has."""
    with pytest.raises(ValidationError, match=r"exported already.*give a builder"):
        ModelConfig(source="net.pt2", methods={"forward": {"buckets": {"batch": [1]}}})
    assert ModelConfig(source="net.pt2", methods={"forward": {}}).methods["forward"].buckets == {}
