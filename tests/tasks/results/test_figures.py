"""Summaries of verification figures, and scores against bounds."""

import json
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from pteforge.configs.model import DeviceLimits
from pteforge.tasks.results.accuracy import AccuracyReport, Score, Scores
from pteforge.tasks.results.costs import MemoryUse, exceeded, percentile
from pteforge.tasks.results.figures import Case, Figures, Worst, summarize

errors = st.floats(0, 1e6)
cases = st.builds(
    Case,
    method=st.sampled_from(["forward", "encode"]),
    label=st.sampled_from(["example 0", "drawn 1"]),
    output=st.integers(0, 3),
    max_abs_error=errors,
    max_relative_error=errors,
    sqnr_db=st.none() | st.floats(-300, 300),
)


def test_the_worst_of_each_figure_counts():
    """Each figure is the worst by itself, over a method's cases and over all; equal outputs have no noise to count."""
    exact = Case("forward", "example 0", 0, 0.0, 0.0, None)
    large = Case("forward", "example 1", 0, 0.5, 0.25, 90.0)
    noisy = Case("encode", "example 0", 1, 0.125, 0.75, 40.0)

    figures = summarize([exact, large, noisy])

    assert figures.methods == {"forward": Worst(2, 0.5, 0.25, 90.0), "encode": Worst(1, 0.125, 0.75, 40.0)}
    assert figures.overall == Worst(3, 0.5, 0.75, 40.0)
    assert figures.cases == (exact, large, noisy)


def test_what_there_may_not_be():
    """Where every output is equal there is no ratio. Agreement counts rows over all cases, where there are any."""
    exact = summarize([Case("forward", "example 0", 0, 0.0, 0.0, None)]).overall
    assert (exact.sqnr_db, exact.top1) == (None, None)
    one = Case("forward", "example 0", 0, 0.5, 0.5, 30.0, classified=3, agreeing=3)
    other = Case("forward", "example 1", 0, 0.5, 0.5, 30.0, classified=1, agreeing=0)
    assert summarize([one, other]).overall.top1 == 0.75


@given(st.lists(cases, min_size=1, max_size=6))
def test_any_figures(found):
    """The overall figures bound every case; figures survive JSON, as they are stored."""
    figures = summarize(found)
    worst = figures.overall
    assert worst.cases == len(found)
    for case in found:
        assert case.max_abs_error <= worst.max_abs_error
        assert case.max_relative_error <= worst.max_relative_error
        assert case.sqnr_db is None or case.sqnr_db >= worst.sqnr_db
    assert Figures.from_json(json.loads(json.dumps(figures.to_json()))) == figures


def report(*scores, floor=None, max_drop=None, keep=None, eager=None, not_run=None):
    """A report of scores: numbers of a plain file, or pairs of payload and number."""
    given = tuple(Score(*each) if isinstance(each, tuple) else Score("", each) for each in scores)
    return AccuracyReport("p:score", floor, max_drop, eager, Scores(given, not_run or {}), keep)


def test_bounds():
    """A score at a bound passes, rounding aside, as does one above eager's; others say by how much they miss it."""
    assert report(0.9, floor=0.9).misses() == []
    assert report(0.85, floor=0.9).misses() == ["the file scores 0.85, 0.05 below the floor of 0.9"]
    assert report(0.98, max_drop=0.005, eager=0.985).misses() == []
    assert 0.985 - 0.98 > 0.005
    assert report(0.99, max_drop=0, eager=0.985).misses() == []
    assert report(0.97, max_drop=0.005, eager=0.985).misses() == [
        "the file scores 0.97, 0.015 below eager's 0.985; that is 0.01 more than the 0.005 allowed"
    ]
    assert report(-3.0, max_drop=0, eager=-2.5).misses() == [
        "the file scores -3, 0.5 below eager's -2.5; that is 0.5 more than the 0 allowed"
    ]


def test_share_of_eagers_score():
    """A score at the share passes; a negative one, such as minus the perplexity, may be larger by the same factor."""
    assert report(0.792, keep=0.99, eager=0.8).misses() == []
    assert report(0.79, keep=0.99, eager=0.8).misses() == ["the file scores 0.79, and 0.99 of eager's 0.8 is 0.792"]
    assert report(-10.0, keep=0.8, eager=-8.0).misses() == []
    assert report(-10.1, keep=0.8, eager=-8.0).misses() == ["the file scores -10.1, and 0.8 of eager's -8 is -10"]
    assert (
        report(0.5, keep=1.0, floor=0.6, eager=0.8).misses()[0].startswith("the file scores 0.5, 0.1 below the floor")
    )


def test_each_payload_counts():
    """Every payload that misses a bound is named, and every bound that it misses; also after a trip through JSON."""
    made = report(("xnnpack", 0.7), ("portable", 0.99), floor=0.8, max_drop=0.1, eager=0.95)
    first, second = made.misses()
    assert first.startswith("payload 'xnnpack' scores 0.7, 0.1 below the floor")
    assert second.startswith("payload 'xnnpack' scores 0.7, 0.25 below eager's 0.95")
    assert made.worst == 0.7
    for kept in (made, report(("xnnpack", 0.7), floor=0.8, not_run={"vulkan": "needs VulkanBackend"})):
        assert AccuracyReport.from_json(json.loads(json.dumps(kept.to_json()))) == kept


def test_memory_within_limits():
    """The largest of each method counts, on any place; a method that nothing has measured exceeds what needs it."""
    small = MemoryUse("", "forward", (100, 20), "board", "example", "1x8", 10, 2, 16, 4, 30, 20)
    large = replace(small, inputs="largest", shapes="9x8", heap=50)
    other = MemoryUse("", "encode", (10,))
    assert small.figures == {"planned": 120, "method": 16, "total": 170}
    assert list(exceeded([small, large], DeviceLimits(planned=120, method=16, total=190))) == []
    (line,) = exceeded([small, large], DeviceLimits(total=189))
    assert line == (
        "method 'forward' takes 190 bytes on board, largest inputs (9x8), and `limits.device.total` allows 189"
    )
    (line,) = exceeded([small, other], DeviceLimits(planned=1000, method=16))
    assert "no place has measured method 'encode'" in line
    unknown = replace(small, payload="npu", place="", buffer=None, heap=None)
    assert list(exceeded([small, unknown], DeviceLimits(method=16))) == []  # another payload of the method is known


def test_percentiles():
    """At least that share of the values is as small."""
    assert percentile([3.0, 1.0, 2.0], 0.95) == 3.0
    assert percentile(range(1, 101), 0.95) == 95
    assert percentile([1.0], 0.5) == 1.0
