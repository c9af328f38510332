"""Scores against bounds."""

import json

from pteforge.tasks.results.accuracy import AccuracyReport, Score, Scores


def report(*scores, floor=None, max_drop=None, eager=None, not_run=None):
    """A report of scores: numbers of a plain file, or pairs of payload and number."""
    given = tuple(Score(*each) if isinstance(each, tuple) else Score("", each) for each in scores)
    return AccuracyReport("p:score", floor, max_drop, eager, Scores(given, not_run or {}))


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


def test_each_payload_counts():
    """Every payload that misses a bound is named, and every bound that it misses; also after a trip through JSON."""
    made = report(("xnnpack", 0.7), ("portable", 0.99), floor=0.8, max_drop=0.1, eager=0.95)
    first, second = made.misses()
    assert first.startswith("payload 'xnnpack' scores 0.7, 0.1 below the floor")
    assert second.startswith("payload 'xnnpack' scores 0.7, 0.25 below eager's 0.95")
    assert made.worst == 0.7
    for kept in (made, report(("xnnpack", 0.7), floor=0.8, not_run={"vulkan": "needs VulkanBackend"})):
        assert AccuracyReport.from_json(json.loads(json.dumps(kept.to_json()))) == kept
