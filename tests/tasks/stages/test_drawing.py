"""Drawn inputs: sizes within the bounds, values of the example."""

from __future__ import annotations

import functools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st


@functools.cache
def program(kind):
    """A program, and the flat example it was traced with."""
    import torch
    from torch import nn
    from torch.export import Dim

    class Rows(nn.Module):
        """Two inputs whose rows are equal in number, one of them with twice the columns of the other's rows."""

        def forward(self, one, other):
            """Any computation."""
            return one.sum() + (other[: one.shape[0]] * 2).sum()

    class Mixed(nn.Module):
        """Tensors in a tuple, a number and None."""

        def forward(self, pair, factor, nothing):
            """Any computation."""
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
    module = Mixed() if kind == "mixed" else Rows()
    exported = torch.export.export(module, example, dynamic_shapes=shapes)
    return exported, torch.utils._pytree.tree_leaves(example)


def draw(kind, count):
    """Draws flat inputs."""
    from pteforge.tasks.stages.drawing import draw_inputs

    return draw_inputs(*program(kind), count)


def sizes(drawn):
    """Shapes of the tensors."""
    return [tuple(value.shape) for value in drawn]


def test_the_bounds_come_first():
    """The first draw has the lower bounds, the second the upper ones; equal symbols are equal sizes."""
    assert [sizes(drawn) for drawn in draw("equal", 2)] == [[(2, 4), (2,)], [(9, 4), (9,)]]


def test_derived_sizes_follow():
    """A size that is an expression of another is computed from it."""
    assert [sizes(drawn) for drawn in draw("derived", 2)] == [[(2, 4), (4,)], [(9, 4), (18,)]]


def test_without_an_upper_bound_twice_the_example():
    """No bound in the program is no reason to draw without one."""
    assert [sizes(drawn) for drawn in draw("unbounded", 2)] == [[(3, 3), (3,)], [(3, 8), (3,)]]


def test_static_shapes_keep_their_sizes():
    """Without dynamic shapes only the values change."""
    first, second = draw("static", 2)
    assert sizes(first) == sizes(second) == [(3, 4), (3,)]
    assert first[0].tolist() != second[0].tolist()


def test_what_is_no_tensor_stays():
    """Numbers and None are part of what was traced."""
    (drawn,) = draw("mixed", 1)
    assert drawn[2:] == [2.5, None]
    assert sizes(drawn[:2]) == [(2, 2), (2, 2)]


@settings(max_examples=15)
@given(st.sampled_from(["equal", "derived", "unbounded", "static"]), st.integers(0, 12))
def test_every_draw_fits(kind, count):
    """Any number of draws: each fits the program, has the example's dtypes and only its values."""
    from pteforge.tasks.stages.input_shapes import check_fits

    exported, example = program(kind)
    drawn = draw(kind, count)

    assert len(drawn) == count
    for flat in drawn:
        check_fits(exported, flat, "drawn")
        for value, original in zip(flat, example, strict=True):
            assert value.dtype == original.dtype
            assert set(value.reshape(-1).tolist()) <= set(original.reshape(-1).tolist())


def test_equal_arguments_give_equal_inputs():
    """Drawing depends on nothing else: not on torch's global seed, and not on how many more are drawn."""
    import torch

    torch.manual_seed(1)
    few = draw("equal", 3)
    torch.manual_seed(2)
    many = draw("equal", 5)
    for one, other in zip(few, many, strict=False):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_drawing_leaves_the_global_generator_alone():
    """A model's own random numbers do not depend on how many inputs are drawn."""
    import torch

    torch.manual_seed(0)
    draw("equal", 4)
    after = torch.rand(1)
    torch.manual_seed(0)
    assert torch.equal(after, torch.rand(1))


def test_memory_format_and_empty_tensors_are_kept():
    """Channels-last inputs stay so, and an example without values gives zeros."""
    import torch
    from pteforge.tasks.stages.drawing import draw_inputs

    image = torch.rand(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    empty = torch.zeros(0, 2)

    class Both(torch.nn.Module):
        """Takes an image and nothing."""

        def forward(self, image, empty):
            """Any computation."""
            return image * 2, empty + 1

    (drawn,) = draw_inputs(torch.export.export(Both(), (image, empty)), [image, empty], 1)
    assert drawn[0].is_contiguous(memory_format=torch.channels_last)
    assert not drawn[0].is_contiguous()
    assert drawn[1].shape == (0, 2)


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
    import torch
    from pteforge.errors import SourceError
    from pteforge.tasks.stages.input_shapes import check_fits

    with pytest.raises(SourceError, match=message):
        check_fits(program("equal")[0], flat(torch), "example 1")
