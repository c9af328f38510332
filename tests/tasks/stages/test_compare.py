"""Comparing one output with eager's: formulas by hand, and what cannot be compared."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pteforge.configs.verification import VerifyBounds
from pteforge.errors import VerificationFailed
from pteforge.tasks.results.figures import Case, disagreements, violations, worst_of

NAN, INF = math.nan, math.inf


def compared(output, reference, dtype=None):
    """The case of an output, lists becoming tensors."""
    from pteforge.tasks.verify.compare import compare

    dtype = getattr(torch, dtype) if dtype else None
    values = [torch.tensor(value, dtype=dtype) if isinstance(value, list) else value for value in (output, reference)]
    return compare(*values, method="forward", label="example 0", output_position=1)


@given(st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(-1e3, 1e3)), min_size=1, max_size=5))
def test_formulas_by_another_way(pairs):
    """For any numbers the ratio is that of the sums of squares, whatever way it is computed."""
    ours, eager = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    case = compared(ours, eager, "float64")
    errors = [abs(a - b) for a, b in pairs]
    assert case.max_abs_error == max(errors)
    signal, noise = sum(b * b for b in eager), sum(e * e for e in errors)
    if signal > 1e-100 and noise > 1e-100:
        assert case.sqnr_db == pytest.approx(max(10 * math.log10(signal / noise), -300), abs=1e-6)


@pytest.mark.parametrize(
    ("output", "reference", "figures"),
    [
        # Equal outputs have no error and no ratio, NaN and infinity in the same places included.
        ([1.0, NAN, INF, -INF], [1.0, NAN, INF, -INF], (0.0, 0.0, None)),
        *((value, value, (0.0, 0.0, None)) for value in ([], [NAN], [INF, -INF], 3, None)),
        # Where eager gives zeros there is no signal: the least ratio there is, and the absolute error.
        ([0.25, 0.0], [0.0, 0.0], (0.25, 0.25, -300.0)),
    ],
)
def test_known_figures(output, reference, figures):
    """Equal outputs, and outputs without a signal, have figures that no formula gives."""
    assert compared(output, reference) == Case("forward", "example 0", 1, *figures)


def test_integers_and_booleans():
    """Integers and truth values are compared as numbers, and counted; a ratio says something of amounts only."""
    assert compared([5, 9], [5, 7]) == Case("forward", "example 0", 1, 2.0, 2 / 7, None, counted=2, equal=1)
    assert compared([True, False], [True, True]) == Case("forward", "example 0", 1, 1.0, 1.0, None, counted=2, equal=1)
    pixels = compared([255, 9], [255, 10], "uint8")
    assert (pixels.counted, pixels.equal, pixels.sqnr_db) == (2, 1, pytest.approx(10 * math.log10(255**2 + 100)))


def test_agreement():
    """The share of equal elements counts over all cases of an output; pixels pass by it, or by their ratio."""
    most, few = (Case("forward", f"example {equal}", 0, 1, 1, None, counted=4, equal=equal) for equal in (4, 1))
    pixels = Case("forward", "example 0", 1, 1, 1, 50.0, counted=4, equal=2)
    exact, coarse = VerifyBounds(), VerifyBounds(min_sqnr_db=20)
    assert list(disagreements([most, few], exact)) == ["method 'forward', output 0: 62.5 % equal eager's < 99 %"]
    assert not list(disagreements([most, few], coarse))
    assert list(disagreements([few], coarse)) == ["method 'forward', output 0: 25.0 % equal eager's < 50 %"]
    assert not list(disagreements([few], VerifyBounds(min_agreement=0.25)))
    assert not list(disagreements([few], VerifyBounds(min_sqnr_db=None)))
    assert list(violations(pixels, exact)) == ["SQNR 50.0 dB < 80.0 dB"]
    assert not list(violations(replace(pixels, equal=4), exact))
    assert not list(violations(pixels, VerifyBounds(min_sqnr_db=45, min_agreement=0.9)))
    assert worst_of([most, few, pixels]).agreement == 7 / 12


@pytest.mark.parametrize(
    ("output", "lost_db"),
    [([1.0, 2.0], -300), ([1.25, 2.0], -6.02), ([1.5, 2.0], 0.0), ([2.0, 2.0], 6.02)],
)
def test_what_is_lost_to_rounding(output, lost_db):
    """Of 16 bits, noise against float32 is held against that of eager's; what loses no more passes."""
    from pteforge.tasks.usercode.inputs import StoredCase
    from pteforge.tasks.verify.compare import compare_all

    eager, exact = torch.tensor([1.5, 2.0]).half(), torch.tensor([1.0, 2.0])
    stored = StoredCase("example 0", [], [eager], [exact])
    (case,) = compare_all([torch.tensor(output).half()], stored, method="forward")
    assert case.lost_db == pytest.approx(lost_db, abs=0.01)
    assert bool(list(violations(case, VerifyBounds()))) == (lost_db > 3)


@pytest.mark.parametrize("scale", [1e200, 1e-200])
def test_huge_and_tiny_values(scale):
    """Squares that overflow or vanish in float64 do not make figures that JSON cannot hold."""
    case = compared([scale, -2.5 * scale], [scale, -2.0 * scale], "float64")
    assert case.max_relative_error == pytest.approx(0.25)
    assert case.sqnr_db == pytest.approx(10 * math.log10(5 / 0.25))


@pytest.mark.parametrize(
    ("output", "reference", "message"),
    [
        (3, 4, "it gives 3, eager gives 4"),
        (3, [3], "it gives int, eager gives a tensor"),
        ([1.0], [1.0, 2.0], r"torch\.float32 \(1,\), eager gives torch\.float32 \(2,\)"),
        ([[1.0]], [1.0], r"\(1, 1\), eager gives torch\.float32 \(1,\)"),
        ([1], [1.0], r"torch\.int64 \(1,\), eager gives torch\.float32 \(1,\)"),
        *((*pair, "NaN or infinity") for pair in (([NAN], [1.0]), ([1.0], [INF]), ([INF], [-INF]), ([NAN], [INF]))),
        ([INF, NAN], [NAN, INF], "NaN or infinity"),
    ],
)
def test_what_cannot_be_compared(output, reference, message):
    """Another shape or dtype, or NaN and infinity elsewhere, fail whatever the bounds; the message says where."""
    with pytest.raises(VerificationFailed, match=message) as caught:
        compared(output, reference)
    assert str(caught.value).startswith("method 'forward', example 0, output 1: ")


@pytest.mark.parametrize(
    ("bounds", "found"),
    [
        ({"max_abs_error": 0.5}, []),
        ({"max_abs_error": 0.4}, ["max abs error 0.5 > 0.4"]),
        ({"max_relative_error": 0.25}, []),
        ({"max_relative_error": 0.1}, ["max relative error 0.25 > 0.1"]),
        ({"min_sqnr_db": 60.0}, []),
        ({"min_sqnr_db": 60.1}, ["SQNR 60.0 dB < 60.1 dB"]),
        (
            {"min_sqnr_db": 70.0, "max_abs_error": 0.0, "max_relative_error": 0.0},
            ["max abs error 0.5 > 0", "max relative error 0.25 > 0", "SQNR 60.0 dB < 70.0 dB"],
        ),
    ],
)
def test_bounds(bounds, found):
    """Each bound is checked by itself; figures equal to their bounds are within them, equal outputs within any."""
    case = Case("forward", "drawn 0", 2, 0.5, 0.25, 60.0)
    limits = VerifyBounds.model_validate({"min_sqnr_db": None} | bounds)
    assert list(violations(case, limits)) == found
    assert not list(violations(replace(case, max_abs_error=0.0, max_relative_error=0.0, sqnr_db=None), limits))


@pytest.mark.parametrize(
    ("ours", "eager", "agreement"),
    [
        ([[1.0, 2.0], [3.0, 1.0]], [[0.0, 9.0], [0.0, 1.0]], (2, 1)),
        ([[1.0], [3.0]], [[0.0], [1.0]], (0, 0)),
        ([1.0, 2.0], [2.0, 1.0], (0, 0)),
        ([[1, 2]], [[2, 1]], (0, 0)),
    ],
)
def test_top1(ours, eager, agreement):
    """Outputs of shape (rows, classes >= 2) of a floating type are a classifier's: its rows count by their largest."""
    case = compared(ours, eager)
    assert (case.classified, case.agreeing) == agreement


@pytest.mark.parametrize(("dtype", "most"), [("float16", 34.0), ("bfloat16", 22.0), ("float32", 80.0)])
def test_no_more_is_asked_than_a_type_can_hold(dtype, most):
    """Of outputs of 16 bits less is enough; a bound below that counts as it is, and so does the worst of several."""
    eager = [0.0] + [1.0] * 99
    noise = 10 ** ((10 * math.log10(99) - most - 1) / 20)  # 1 dB above `most`
    case = compared([noise, *eager[1:]], eager, dtype)
    worse = replace(case, sqnr_db=most - 1)
    assert case.sqnr_db == pytest.approx(most + 1, abs=0.2)
    for figures in (case, worst_of([case])):
        assert not list(violations(figures, VerifyBounds(min_sqnr_db=80.0)))
    for figures in (worse, worst_of([case, worse])):
        assert list(violations(figures, VerifyBounds(min_sqnr_db=80.0))) == [f"SQNR {most - 1} dB < {most} dB"]
        assert not list(violations(figures, VerifyBounds(min_sqnr_db=10.0)))
