"""Dynamic shapes: as zoo files write them, and the bounds that reach a file."""

from __future__ import annotations

import pytest
from pteforge.formats.pte.reader import read_pte
from pteforge.tests.lowering import PORTABLE, recipe


def dims(*inputs):
    from pteforge.tasks.programs.method import to_dims

    return to_dims(list(inputs))


def bounds(low, high, name=None):
    return {"min": low, "max": high, "name": name}


def test_entries():
    """None stays None; the dimension's index, a string in JSON, becomes a number, and the bounds a Dim's.

    Equal bounds are that size and no other: torch has no Dim for it.
    """
    none, shape, fixed = dims(None, {"0": bounds(1, 8, "batch"), "2": bounds(2, 5, "length")}, {"0": bounds(3, 3)})
    assert (none, fixed) == (None, {0: 3})
    found = {index: (dim.__name__, dim.min, dim.max) for index, dim in shape.items()}
    assert found == {0: ("batch", 1, 8), 2: ("length", 2, 5)}


def test_one_name_is_one_dimension():
    """Dimensions of one name are one Dim, in inputs that are tuples too; without a name each is its own."""
    first, (second, third) = dims({"0": bounds(1, 8, "batch")}, [{"1": bounds(1, 8, "batch")}, {"1": bounds(1, 8)}])
    assert first[0] is second[1]
    assert third[1] is not first[0]
    assert third[1].__name__ != first[0].__name__


def test_multiples():
    """Sizes that are multiples of a number are such of a Dim, whose bounds are lower; those of one name are equal."""
    (first, second) = dims(
        {"0": bounds(8, 64, "rows") | {"multiple_of": 8}, "1": bounds(3, 9) | {"multiple_of": 3}},
        {"2": bounds(8, 64, "rows") | {"multiple_of": 8}},
    )
    assert first[0] is second[2]
    assert [(dim.root.min, dim.root.max, dim.fn(1)) for dim in first.values()] == [(1, 8, 8), (1, 3, 3)]


def test_a_file_takes_multiples(lower):
    """The file is verified with such sizes only, at both bounds; as a builder gives them, or the zoo file."""
    found = []
    for source, shapes in (
        ({"builder": "builders:skips", "kwargs": {"step": 4}}, None),
        ("builders:skips", {"forward": {"image": {2: {"min": 8, "max": 32, "multiple_of": 4}}}}),
    ):
        lowered = lower(source, PORTABLE, dynamic_shapes=shapes)
        found.append([flat[0].shape[2] for flat in lowered.value("export", "examples")["inputs"]])
    assert found[0] == found[1] == [16, 8, 32]


@pytest.mark.parametrize("named", [0, 1])
def test_names_do_not_clash_with_made_up_ones(named):
    """A user's dimension may have any name, also one that an unnamed dimension would get."""
    entries = [{"0": bounds(1, 8)}, {"0": bounds(2, 4)}]
    entries[named] = {"0": bounds(3, 6, "dim0")}
    found = [entry[0] for entry in dims(*entries)]
    assert found[0].__name__ != found[1].__name__
    assert (found[named].min, found[named].max) == (3, 6)


@pytest.mark.parametrize("target", ["portable", "xnnpack"])
@pytest.mark.parametrize(
    ("builder", "largest"), [("images", (64, 3, 8, 8)), ("halves", (8, 6)), ("sequences", (8, 4, 32))]
)
def test_a_file_takes_the_largest_size(lower, builder, largest, target):
    """The file is verified at both bounds, and plans memory for the upper one, whatever the example's size is."""
    lowered = lower(f"builders:{builder}", recipe(target))
    (method,) = read_pte(lowered.file).methods
    assert method.inputs[0].shape == largest
    assert [flat[0].shape[0] for flat in lowered.value("export", "examples")["inputs"]] == [2, 1, largest[0]]


@pytest.mark.parametrize("target", ["portable", "xnnpack"])
@pytest.mark.parametrize("network", ["Padded", "Prefixed", "Recent"])
def test_arithmetic_on_sizes(lower, network, target):
    """Remainders of negative numbers, empty tensors and maxima depend on sizes at run time as they do in eager."""
    source = {"builder": "builders:of_any_length", "kwargs": {"network": network}}
    lowered = lower(source, recipe(target))
    (method,) = read_pte(lowered.file).methods
    assert method.inputs[0].shape == (8, 32)


def test_comparing_a_size_does_not_narrow_it():
    """Inside, a comparison leaves bounds alone, but those of sizes that depend on data; afterwards torch narrows."""
    import torch
    from pteforge.tasks.upstream.shape_bounds import declared_bounds
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

    env = ShapeEnv()
    symbol = env.create_symbol(4, ConstantSource("size"), dynamic_dim=DimDynamic.DYNAMIC, constraint_dim=None)
    size = env.create_symintnode(symbol, hint=4)
    unbacked = env.create_unbacked_symint()
    with declared_bounds():
        assert size < 16
        torch._check(unbacked < 8)
    assert env.var_to_range[symbol].upper > 16
    assert env.var_to_range[unbacked.node.expr].upper == 7
    assert size < 32
    assert env.var_to_range[symbol].upper == 31
