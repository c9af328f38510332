"""Kills at random moments: the short form of the campaign, and a longer one."""

from __future__ import annotations

import pytest
from pteforge.tests.faults.campaign import run_campaign
from pteforge.tests.faults.crash import CRASH


@pytest.mark.parametrize("trials", [pytest.param(1, id="short"), pytest.param(3, marks=pytest.mark.slow, id="long")])
def test_kills(tmp_path, trials):
    """After each, the next run makes what an undisturbed one makes, and nothing else is left."""
    report = run_campaign(CRASH, tmp_path / "crash", seed=13, trials=trials)
    assert report.broken == []
    assert report.tried.total() == trials
