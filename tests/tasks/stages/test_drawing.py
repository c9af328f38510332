"""Random inputs: sizes within the bounds, values that differ from the example's, or stay where they are."""

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pteforge.errors import SourceError
from pteforge.tests.zoo.networks import Function


@functools.cache
def program(kind):
    """A program, and the flat example it was traced with."""
    from torch.export import Dim

    def multiply(one, other):
        """Two inputs whose rows are equal in number, or one has twice the columns of the other's rows."""
        return one.sum() + (other[: one.shape[0]] * 2).sum()

    def mixed(pair, factor, nothing):
        assert nothing is None
        return pair[0] * factor + pair[1]

    rows = Dim("rows", min=2, max=9)
    columns = Dim("columns", min=3)
    one = torch.tensor([[1.0, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]])
    match kind:
        case "equal":
            example, shapes = (one, torch.arange(3)), ({0: rows}, {0: rows})
        case "derived":
            example, shapes = (one, torch.arange(6)), ({0: rows}, {0: 2 * rows})
        case "unbounded":
            example, shapes = (one, torch.arange(3)), ({1: columns}, None)
        case "static":
            example, shapes = (one, torch.arange(3)), None
        case "mixed":
            pair = (torch.ones(3, 2), torch.zeros(3, 2))
            example, shapes = (pair, 2.5, None), (({0: rows}, {0: rows}), None, None)
    module = Function(mixed if kind == "mixed" else multiply)
    exported = torch.export.export(module, example, dynamic_shapes=shapes and (shapes,))
    return exported, torch.utils._pytree.tree_leaves(example)


def draw(kind, count, values="varied"):
    exported, example = program(kind)
    return draws(exported, example, count, values)


def draws(exported, example, count, values="varied"):
    from pteforge.tasks.usercode.inputs import draw_inputs

    return [draw_inputs(exported, [example], number, values) for number in range(count)]


def sizes(drawn):
    return [tuple(value.shape) for value in drawn]


@pytest.mark.parametrize(
    ("kind", "lower", "upper"),
    [
        pytest.param("equal", [(2, 4), (2,)], [(9, 4), (9,)], id="equal symbols are equal sizes"),
        pytest.param("derived", [(2, 4), (4,)], [(9, 4), (18,)], id="expressions are computed"),
        pytest.param("unbounded", [(3, 3), (3,)], [(3, 8), (3,)], id="twice the example without an upper bound"),
    ],
)
def test_the_bounds_come_first(kind, lower, upper):
    """The first input has the lower bounds, the second the upper ones."""
    assert [sizes(flat) for flat in draw(kind, 2)] == [lower, upper]


def test_what_stays():
    """Without dynamic shapes only the values change; numbers and None are part of what was traced."""
    first, second = draw("static", 2)
    assert sizes(first) == sizes(second) == [(3, 4), (3,)]
    assert first[0].tolist() != second[0].tolist()
    (drawn,) = draw("mixed", 1)
    assert drawn[2:] == [2.5, None]
    assert sizes(drawn[:2]) == [(2, 2), (2, 2)]


@settings(max_examples=25)
@given(
    st.sampled_from(["equal", "derived", "unbounded", "static"]),
    st.integers(0, 12),
    st.sampled_from(["varied", "kept", "least"]),
)
def test_every_draw_fits(kind, count, values):
    """Any number of draws: each fits the program, has the example's dtypes and only its values."""
    from pteforge.tasks.usercode.inputs import check_fits

    exported, example = program(kind)
    drawn = draw(kind, count, values)

    assert len(drawn) == count
    for flat in drawn:
        check_fits(exported, flat, "drawn")
        for value, original in zip(flat, example, strict=True):
            assert value.dtype == original.dtype
            assert set(value.reshape(-1).tolist()) <= set(original.reshape(-1).tolist())


def test_equal_arguments_give_equal_inputs():
    """Nothing else counts: not torch's global seed, which stays as it is, and not how many more are asked for."""
    torch.manual_seed(1)
    few = draw("equal", 3)
    after = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(after, torch.rand(1))
    for one, other in zip(few, draw("equal", 5), strict=False):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_memory_format_and_empty_tensors_are_kept():
    """Channels-last inputs stay so, and an example without values gives zeros."""
    image = torch.rand(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    empty = torch.zeros(0, 2)
    program = torch.export.export(Function(lambda image, empty: (image * 2, empty + 1)), (image, empty))
    (drawn,) = draws(program, [image, empty], 1)
    assert drawn[0].is_contiguous(memory_format=torch.channels_last)
    assert not drawn[0].is_contiguous()
    assert drawn[1].shape == (0, 2)


def test_offsets_ascend():
    """Where bags begin, as `torch.nn.EmbeddingBag` takes it: in ascending order, from 0."""
    bags, example = torch.nn.EmbeddingBag(9, 4), (torch.tensor([5, 1, 8, 2, 3, 7]), torch.tensor([0, 2, 5]))
    drawn = draws(torch.export.export(bags, example), example, 20)
    assert all(bags(*flat).shape == (3, 4) for flat in drawn)
    assert len({tuple(offsets.tolist()) for _, offsets in drawn}) > 1


@pytest.mark.parametrize(
    ("example", "drawn"),
    [
        ([True] * 40, {True, False}),
        ([False] * 40, {True, False}),
        ([7] * 200, set(range(8))),
        ([-2] * 40, {0, -1, -2}),
        ([0] * 40, {0}),
        ([3, 9, 4] * 20, {3, 9, 4}),
    ],
)
def test_varied_values(example, drawn):
    """Booleans are either, equal integers anything from 0 to theirs, others those of the example."""
    example = (torch.tensor(example),)
    exported = torch.export.export(Function(lambda values: values.sum()), example)
    ((values,),) = draws(exported, example, 1)
    assert set(values.tolist()) == drawn
    ((kept,),) = draws(exported, example, 1, "kept")
    assert torch.equal(kept, example[0])


@pytest.mark.parametrize("number", [2.5, -3.0, 0.0])
def test_varied_scalars(number):
    """Numbers in tensors vary as well, between half of them and themselves, and two equal ones differ."""
    example = (torch.tensor(number), torch.tensor(number))
    exported = torch.export.export(Function(lambda one, other: one + other), example)
    for one, other in draws(exported, example, 5):
        assert one != other
        assert all(0 <= (value.item() / number if number else value.item()) <= 1 for value in (one, other))


def test_values_of_all_examples():
    """What an input may be is what the examples have, together."""
    from pteforge.tasks.usercode.inputs import draw_inputs

    examples = [[torch.full((30,), value)] for value in (5, 6, 8)]
    exported = torch.export.export(Function(lambda values: values * 2), tuple(examples[0]))
    assert set(draw_inputs(exported, examples, 0, "varied")[0].tolist()) == {5, 6, 8}


@pytest.mark.parametrize(
    ("flat", "message"),
    [
        (lambda t: [t.ones(3, 4)], "example 1 has 1 tensors and values, the first one has 2"),
        (lambda t: [t.ones(3, 4), 5], "example 1: input 1 must be a tensor of 1 dimensions"),
        (lambda t: [t.ones(3), t.ones(3)], "example 1: input 0 must be a tensor of 2 dimensions"),
        (lambda t: [t.ones(3, 5), t.ones(3)], "example 1: input 0 has size 5 in dimension 1, the program takes 4"),
        (lambda t: [t.ones(10, 4), t.ones(10)], "input 0 has size 10 in dimension 0, the program takes 2 to 9"),
        (lambda t: [t.ones(3, 4), t.ones(3)], "input 1 is torch.float32, the program takes torch.int64"),
        (lambda t: [t.ones(3, 4), t.ones(4).long()], "input 1 has size 4 in dimension 0, the program takes 3"),
    ],
)
def test_what_does_not_fit(flat, message):
    """Inputs that the program was not exported for are bad input, and the message says which and why."""
    from pteforge.tasks.usercode.inputs import check_fits

    with pytest.raises(SourceError, match=message):
        check_fits(program("equal")[0], flat(torch), "example 1")
