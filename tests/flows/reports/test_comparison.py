"""The limits on how much worse a file may be than its predecessor."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pteforge.errors import InputError
from pteforge.flows.reports.comparison import Limit, parse_limits, regressions
from pteforge.tasks.results.accuracy import AccuracyReport, Score, Scores
from pteforge.tasks.results.costs import Timing
from pteforge.tasks.results.delivered import Delivered, MethodCalls
from pteforge.tasks.results.figures import Figures, Worst

FAT = (MethodCalls("xnnpack", "forward", 1, 0), MethodCalls("portable", "forward", 0, 5))
GOOD = Delivered("net", "fat", "made", size=1000, delegated=FAT, toolchain={"torch": "2"})
ALL = parse_limits("growth=2%, sqnr=1dB, score=0.5%, delegation")


def of(sqnr_db=40.0, score=0.985, timings=(), *, measured=True, **fields):
    """A file with these figures."""
    figures = (Figures(Worst(1, 0.01, 0.01, sqnr_db), {}, {}, {}),) if measured else ()
    scores = () if score is None else (Scores((Score("", score),), {}),)
    accuracy = (AccuracyReport("nets:score", None, None, None, found) for found in scores)
    return replace(GOOD, findings=(*figures, *accuracy, *timings), **fields)


def test_forms_of_gates():
    """A growth is a percentage, a score a percentage or a number, and a unit may follow a blank or be left out."""
    gates = parse_limits("growth=2%, sqnr=1dB ,score=0.5%,delegation")
    assert gates == (Limit("growth", 0.02), Limit("sqnr", 1.0), Limit("score", 0.005), Limit("delegation"))
    assert parse_limits("score=0.005,sqnr=0.5 db") == (Limit("score", 0.005), Limit("sqnr", 0.5))
    assert parse_limits("sqnr=.5") == (Limit("sqnr", 0.5),)


def timed(median, place="host"):
    """Times of a method."""
    return Timing("", "forward", place, "", 0.1, 0.1, median, median, 10, 0)


def test_latency():
    """Times are compared where both files have some of one place; a file without times has to get none."""
    limit = parse_limits("latency=10%")
    assert limit == (Limit("latency", 0.1),)
    before = of(timings=(timed(1.0), timed(5.0, "phone")))
    assert regressions(before, of(timings=(timed(1.1), timed(9.0, "other"))), limit) == []
    (line,) = regressions(before, of(timings=(timed(0.5), timed(6.0, "phone"))), limit)
    assert "is 20 % longer, from 5 s to 6 s; at most 10 % is allowed" in line
    elsewhere = replace(timed(1.0), machine="another")
    assert "latency cannot be compared" in regressions(before, of(timings=(elsewhere,)), limit)[0]
    (line,) = regressions(before, of(), limit)
    assert "latency cannot be compared" in line
    assert regressions(of(), before, limit) == []


@pytest.mark.parametrize(
    "part",
    [
        "",
        "growth",
        "growth=",
        "growth=2",
        "growth=-2%",
        "sqnr=1%",
        "score=nan",
        "delegation=1",
        "speed=2%",
        "latency=2",
    ],
)
def test_wrong_gates(part):
    """A part that is not a limit is named, with the accepted forms."""
    with pytest.raises(InputError) as refused:
        parse_limits(f"sqnr=1dB,{part}")
    assert str(refused.value).startswith(f"{part!r} is not a limit")
    assert "growth=2%" in str(refused.value)


def test_repeated_gate():
    """Which of two limits counts would be a guess."""
    with pytest.raises(InputError, match=r"'sqnr' .*more than once"):
        parse_limits("sqnr=1dB,delegation,sqnr=2dB")


@pytest.mark.parametrize(
    "after",
    [
        of(),
        of(size=1020, sqnr_db=39.0, score=0.98),
        of(size=500, sqnr_db=None, score=1.0, delegated=(FAT[0], MethodCalls("portable", "forward", 0, 4))),
        of(delegated=(*FAT, MethodCalls("portable", "encode", 0, 9))),
    ],
    ids=["equal", "at the limits", "better", "another method"],
)
def test_within_limits(after):
    """What is not worse by more than the limit passes, also where decimals have no exact binary form."""
    assert regressions(of(), after, ALL) == []


@pytest.mark.parametrize(
    ("change", "telling"),
    [
        ({"size": 1031}, ["3.1 %", "1000 B to 1.0 KiB", "2 %"]),
        ({"sqnr_db": 38.5}, ["1.5 dB", "40.0 dB to 38.5 dB", "1 dB"]),
        ({"score": 0.975}, ["0.01", "0.985 to 0.975", "0.005"]),
        (
            {"delegated": (MethodCalls("xnnpack", "forward", 2, 3), FAT[1])},
            ["forward of payload xnnpack", "3", "had 0"],
        ),
        ({"delegated": FAT[1:]}, ["payload xnnpack", "gone"]),
        ({"score": None}, ["score cannot be compared", "0.985"]),
        ({"measured": False}, ["sqnr cannot be compared", "new file"]),
    ],
)
def test_regressions(change, telling):
    """An exceeded limit, or one that cannot be checked, is one sentence: the file, how much, and what is allowed."""
    (sentence,) = regressions(of(), of(**change), ALL)
    assert sentence.startswith("net/fat: ")
    for part in telling:
        assert part in sentence
    assert regressions(of(), of(**change), ()) == []


def test_exact_outputs():
    """No loss is allowed to be infinite; outputs that stay exact have lost nothing, and 0 dB is a figure."""
    exact = of(sqnr_db=None)
    (sentence,) = regressions(exact, of(), ALL)
    assert "from exact to 40.0 dB" in sentence
    assert regressions(exact, exact, ALL) == regressions(of(), exact, ALL) == []
    assert regressions(of(sqnr_db=0.0), of(sqnr_db=-3.0), ALL) != []


def test_each_payload_keeps_its_figures():
    """A payload or a method that loses is named, though others are worse; what is the file's, too, is one sentence."""

    def file(xnnpack: float, prefill: float) -> Delivered:
        worst = {name: Worst(1, 0.01, 0.01, noise) for name, noise in {"xnnpack": xnnpack, "vulkan": 40.0}.items()}
        methods = {name: Worst(1, 0.01, 0.01, noise) for name, noise in {"prefill": prefill, "decode": 40.0}.items()}
        overall = Worst(1, 0.01, 0.01, min(xnnpack, prefill, 40.0))
        return replace(GOOD, findings=(Figures(overall, methods, worst, {}),))

    assert regressions(file(120.0, 130.0), file(119.5, 140.0), ALL) == []
    (sentence,) = regressions(file(120.0, 130.0), file(60.0, 130.0), ALL)
    assert "xnnpack: SQNR fell by 60 dB, from 120.0 dB to 60.0 dB" in sentence
    (sentence,) = regressions(file(120.0, 130.0), file(120.0, 90.0), ALL)
    assert "method prefill: SQNR fell by 40 dB" in sentence
    (sentence,) = regressions(file(120.0, 130.0), file(20.0, 130.0), parse_limits("sqnr=90dB"))
    assert "xnnpack: SQNR fell by 100 dB, from 120.0 dB to 20.0 dB" in sentence
    assert len(regressions(file(30.0, 130.0), file(20.0, 130.0), ALL)) == 1


def test_plain_after_fat():
    """A recipe that makes a plain file now has other payloads, none of which is comparable."""
    assert regressions(of(), of(delegated=(MethodCalls("", "forward", 0, 5),)), ALL) == []
