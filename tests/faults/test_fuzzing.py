"""Readers return something sound for changed bytes, or raise the error that they document."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pteforge.tests.faults.campaign import run_campaign
from pteforge.tests.faults.fuzzing import FUZZ, READERS, collect, run_command, try_reader


@pytest.mark.parametrize(
    ("first", "trials", "commands"),
    [(0, 1500, 0), pytest.param(1500, 3000, 16, marks=[pytest.mark.nightly, pytest.mark.timeout(600)])],
)
def test_changed_bytes(small_zoo, tmp_path, first, trials, commands):
    """All readers of this package; the nightly form also runs changed files."""
    corpus = collect(small_zoo)

    def run(trial, number, first=0):
        campaign = replace(FUZZ, prepare=lambda _: corpus, trial=trial)
        report = run_campaign(campaign, tmp_path / trial.__name__, seed=1, trials=number, first=first)
        assert [f"{broken.index} {broken.kind}: {broken.message}" for broken in report.broken] == []
        return report

    assert len(run(try_reader, trials, first).tried) >= len(set(READERS))
    if commands:
        assert run(run_command, commands).tried.total() == commands
