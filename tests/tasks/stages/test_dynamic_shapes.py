"""Dynamic shapes as zoo files write them."""

from __future__ import annotations

import pytest


def dims(*inputs):
    """What `torch.export.export` gets for these entries."""
    from pteforge.tasks.stages.dynamic_shapes import to_dims

    return to_dims(list(inputs))


def bounds(low, high, name=None):
    """One dimension as JSON."""
    return {"min": low, "max": high, "name": name}


def test_static_and_dynamic_inputs():
    """None stays None; the dimension's index, a string in JSON, becomes a number, and the bounds a Dim's."""
    none, shape = dims(None, {"0": bounds(1, 8, "batch"), "2": bounds(2, 5, "length")})

    assert none is None
    assert {index: (dim.__name__, dim.min, dim.max) for index, dim in shape.items()} == {
        0: ("batch", 1, 8),
        2: ("length", 2, 5),
    }


def test_one_name_is_one_dimension():
    """Dimensions of one name are one Dim, in inputs that are tuples too; without a name each is its own."""
    first, (second, third) = dims({"0": bounds(1, 8, "batch")}, [{"1": bounds(1, 8, "batch")}, {"1": bounds(1, 8)}])

    assert first[0] is second[1]
    assert third[1] is not first[0]
    assert third[1].__name__ != first[0].__name__


@pytest.mark.parametrize("named", [0, 1])
def test_names_do_not_clash_with_made_up_ones(named):
    """A user's dimension may have any name, also one that an unnamed dimension would get."""
    entries = [{"0": bounds(1, 8)}, {"0": bounds(2, 4)}]
    entries[named] = {"0": bounds(3, 6, "dim0")}
    found = [entry[0] for entry in dims(*entries)]

    assert found[0].__name__ != found[1].__name__
    assert (found[named].min, found[named].max) == (3, 6)
    assert (found[1 - named].min, found[1 - named].max) == ((2, 4), (1, 8))[named]


def test_one_size_is_static():
    """Equal bounds are that size and no other: torch has no Dim for it."""
    assert dims({"0": bounds(3, 3)}) == ({0: 3},)


def test_torch_takes_them():
    """The result is what `torch.export.export` takes: the bounds arrive in the program."""
    import torch
    from torch import nn

    class Add(nn.Module):
        """Adds a tensor to those of a tuple."""

        def forward(self, one, others):
            """Sum."""
            return one + others[0] + others[1]

    tensor = torch.ones(2, 3)
    shapes = dims({"0": bounds(1, 8, "batch")}, [{"0": bounds(1, 8, "batch")}, {"0": bounds(1, 8, "batch")}])
    program = torch.export.export(Add(), (tensor, (tensor, tensor)), dynamic_shapes=shapes)

    assert [(int(r.lower), int(r.upper)) for r in program.range_constraints.values()] == [(1, 8)]
