"""What a run prints at its end: failures with the end of their logs, and then the summary."""

from __future__ import annotations

import pytest
from pteforge.flows.cli.summary import print_failures, print_summary
from pteforge.flows.outcome import Failure, ModelOutcome, RecipeOutcome, ZooOutcome


@pytest.fixture
def failed():
    """Makes the outcome of a zoo in which a step of two recipes failed with a log."""

    def make(log):
        failure = Failure("partition/forward", "no such operator", log, bad_input=False)
        recipes = tuple(RecipeOutcome(name, "failed", failure=failure) for name in ("first", "second"))
        return ZooOutcome("zoo", (ModelOutcome("net", recipes, ran=3, cached=1),), 2.0)

    return make


def test_long_logs_are_shortened(failed, capsys, tmp_path, monkeypatch):
    """The last 15 lines of a log are printed, once, with where the others are; a short log is printed whole."""
    monkeypatch.chdir(tmp_path)
    outcome = failed("\n".join(f"line {number}" for number in range(40)))
    print_failures(outcome, tmp_path / "out" / "index.html")
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "",
        "net partition/forward: no such operator",
        "... 25 earlier lines are in out/index.html",
        *(f"line {number}" for number in range(25, 40)),
    ]
    print_failures(failed("only line\n"), tmp_path / "out" / "index.html")
    assert capsys.readouterr().err.splitlines()[2:] == ["only line"]


def test_the_summary_names_the_page(failed, capsys, tmp_path, monkeypatch):
    """The last line of the summary has the totals, and where the page is if there is one."""
    monkeypatch.chdir(tmp_path)
    for page, end in ((tmp_path / "out" / "index.html", "; see out/index.html"), (None, "")):
        print_summary(failed(""), page)
        last = capsys.readouterr().out.splitlines()[-1]
        assert last == f"0 files verified, 2 failed; 3 stages run, 1 cached, 2.0 s{end}"
