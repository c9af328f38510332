"""Kills at random moments: the short form of the campaign, and more trials."""

from __future__ import annotations

import pytest
from pteforge.tests.faults.campaign import run_campaign
from pteforge.tests.faults.crash import CRASH


@pytest.mark.parametrize(
    ("first", "trials"), [pytest.param(0, 1, id="short"), pytest.param(1, 1, marks=pytest.mark.nightly, id="long")]
)
def test_kills(tmp_path, first, trials):
    """After each, the next run makes what an undisturbed one makes, and nothing else is left."""
    report = run_campaign(CRASH, tmp_path / "crash", seed=13, trials=trials, first=first)
    assert report.broken == []
    assert report.tried.total() == trials
