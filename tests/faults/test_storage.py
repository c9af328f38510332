"""Storage that fails: a few trials of each place in the default suite, more in the nightly tests."""

from __future__ import annotations

import pytest
from pteforge.tests.faults import storage
from pteforge.tests.faults.campaign import run_campaign
from pteforge.tests.faults.storage import STORAGE


@pytest.mark.timeout(900)
@pytest.mark.parametrize("trials", [6, pytest.param(12, marks=pytest.mark.nightly)])
def test_nothing_wrong_is_believed(tmp_path, monkeypatch, trials):
    """Disks and buckets that fail: each run is right or says what is wrong, and the next one is right."""
    if trials == 6:  # servers take seconds
        monkeypatch.setattr(storage, "_FAULTS", {place: of for place, of in storage._FAULTS.items() if place != "S3"})
    report = run_campaign(STORAGE, tmp_path / "storage", seed=17, trials=trials)
    assert report.broken == []
    assert report.tried.total() == trials
