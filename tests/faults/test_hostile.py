"""Hostile stores and changed bytes: nothing of them is run, and readers raise the errors that they document."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from pteforge.artifacts.records import Seal
from pteforge.tests.faults.campaign import run_campaign
from pteforge.tests.faults.commands import Commands
from pteforge.tests.faults.fuzzing import FUZZ, READERS, collect, run_command, try_reader
from pteforge.tests.faults.hostile import HOSTILE, QUICK, Attack, Target, attack_once, forge_record, try_any
from pteforge.tests.faults.zoo import SIGNING_KEY


@pytest.fixture
def target(small_zoo):
    return Target(small_zoo, Commands())


def test_bombs_go_off_where_they_are_believed(target, tmp_path):
    """A forged record that has the right key leads to a bomb that makes the canary: so its absence says something."""
    attack = Attack(target, target.zoo.copy(tmp_path / "copy"), tmp_path, random.Random(1))  # noqa: S311
    forge_record(attack, Seal(SIGNING_KEY))
    assert attack.zoo.lower().exit_code != 0
    assert attack.canary.exists()


def run(target, folder, trial, **options):
    report = run_campaign(replace(HOSTILE, prepare=lambda _: target, trial=trial), folder, seed=1, **options)
    assert [f"{broken.index} {broken.kind}: {broken.message}" for broken in report.broken] == []
    return report


def test_hostile_input(target, tmp_path):
    """Every kind of attack in this process, once; no command lines, whose processes take long to start."""
    for number, kind in enumerate(dict.fromkeys(QUICK)):

        def once(target, rng, folder, kind=kind):
            return attack_once(target, rng, folder, (kind,), commands=False)

        run(target, tmp_path / f"{number}", once, trials=1)


@pytest.mark.nightly
def test_much_hostile_input(target, tmp_path):
    """Any kind of attack, and command lines in between."""
    report = run(target, tmp_path / "trials", try_any, trials=20)
    assert report.tried.total() == 20


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
