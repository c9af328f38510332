"""Damaged objects, records, results and releases: the short form of the campaign, and more trials."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pteforge.artifacts.local_store import LocalStore
from pteforge.tests.faults.campaign import run_campaign
from pteforge.tests.faults.damage import DAMAGE, prepare


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What all trials start from, made once."""
    made = prepare(tmp_path_factory.mktemp("damage"))
    yield made
    made.close()


@pytest.fixture
def run(whole, tmp_path, monkeypatch):
    """Runs trials."""
    monkeypatch.delattr(type(whole), "close")  # or the campaign would end what others need

    def run(trials: int, first: int = 0):
        campaign = replace(DAMAGE, prepare=lambda _: whole)
        return run_campaign(campaign, tmp_path / "trials", seed=16, trials=trials, first=first)

    return run


@pytest.mark.parametrize(
    ("first", "trials"), [pytest.param(0, 30, id="short"), pytest.param(30, 270, marks=pytest.mark.nightly, id="long")]
)
def test_damage(run, first, trials):
    """None is believed: what was damaged counts as absent, is found by `store verify`, and is made again."""
    report = run(trials, first)
    assert report.broken == []
    assert report.tried.total() == trials


def test_belief_is_noticed(run, monkeypatch):
    """A store that gives what it has without a look at the digest breaks trials."""
    monkeypatch.setattr(
        LocalStore, "read", lambda store, blob: next(store.root.glob(f"*/*/{blob.digest}")).read_bytes()
    )
    monkeypatch.setattr("pteforge.tests.faults.damage.pick", pick_object)
    report = run(15)
    assert any("digest_bytes(content) == digest" in broken.message for broken in report.broken)


def pick_object(project, rng):
    return "object", rng.choice(sorted(path for path in (project.store / "objects").rglob("*") if path.is_file()))
