"""Races of eight processes: the short form of the campaign, and more trials."""

from __future__ import annotations

import pytest
from pteforge.tests.faults.campaign import run_campaign
from pteforge.tests.faults.races import RACES


@pytest.mark.parametrize(
    ("first", "trials"), [pytest.param(0, 1, id="short"), pytest.param(1, 1, marks=pytest.mark.nightly, id="long")]
)
def test_races(tmp_path, first, trials):
    """Each stage runs once, in one of the processes; all succeed, and make what one process alone makes."""
    report = run_campaign(RACES, tmp_path / "races", seed=14, trials=trials, first=first)
    assert report.broken == []
    assert report.tried.total() == trials
