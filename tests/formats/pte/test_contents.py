"""Sizes of inputs in metadata: read as written, refused where damaged, and what they allow."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pteforge.errors import FileFormatError
from pteforge.formats.pte.contents import (
    DimensionSizes,
    InstructionCounts,
    Method,
    ScalarSpec,
    TensorSpec,
    shape_problem,
    size_entries,
    with_sizes,
)
from pteforge.formats.pte.metadata import encode_value

ROWS = TensorSpec("float32", (8, 4), (0, 1), "bound", 128)
METHOD = Method("forward", (ScalarSpec("int", 3), ROWS), (), (), (), (), (), InstructionCounts())


def test_written_and_read():
    """Entries have a method's rows, one after another, and are read back as the sizes of its inputs."""
    written = size_entries({"forward": [[1, 0, 2, 8, 2], [1, 1, 1, 4, 1]]})
    assert written == {"sizes.forward": (1, 0, 2, 8, 2, 1, 1, 1, 4, 1)}
    number, rows = with_sizes(METHOD, encode_value(written["sizes.forward"])).inputs
    assert number == METHOD.inputs[0]
    assert rows.sizes == (DimensionSizes(0, 2, 8, 2), DimensionSizes(1, 1, 4, 1))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x04",
        b"\x03text",
        encode_value((1, 0, 2, 8)),
        encode_value((1, 0, 2, 8, 2))[:-1],
        encode_value((0, 0, 2, 8, 2)),
        encode_value((2, 0, 2, 8, 2)),
        encode_value((-1, 0, 2, 8, 2)),
        encode_value((1, 2, 2, 8, 2)),
        encode_value((1, 0, 8, 2, 1)),
        encode_value((1, 0, 2, 8, 0)),
    ],
)
def test_damaged(content):
    """What is no list of sizes of the method's tensors is damage."""
    with pytest.raises(FileFormatError, match="forward"):
        with_sizes(METHOD, content)


@given(st.integers(1, 9), st.integers(0, 9), st.integers(1, 4), st.integers(0, 30))
def test_what_is_allowed(least, steps, step, size):
    """Sizes from the least to the largest, in steps from the least."""
    sizes = DimensionSizes(0, least, least + steps * step, step)
    assert sizes.allows(size) == (size in range(least, least + steps * step + 1, step))


@pytest.mark.parametrize(
    ("shape", "problem"),
    [
        ((2, 4), None),
        ((8, 4), None),
        ((0, 4), "has size 0 in dimension 0, the method takes 2 to 8 in steps of 2"),
        ((3, 4), "has size 3 in dimension 0"),
        ((10, 4), "has size 10 in dimension 0"),
        ((2, 3), r"has the shape [2, 3], the method takes [8, 4]"),
        ((2, 5), r"has the shape [2, 5], the method takes [8, 4]"),
        ((2,), "has 1 dimensions, the method takes 2"),
    ],
)
def test_shapes(shape, problem):
    """A shape has sizes that the input may have, and in other dimensions the only one."""
    _, rows = with_sizes(METHOD, encode_value((1, 0, 2, 8, 2))).inputs
    found = shape_problem(rows, shape)
    assert found is None if problem is None else found.startswith(problem)
