"""Campaigns: trials that can be repeated, the table in the documentation, and some trials of kills, races and leaks."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
from pteforge.tests.faults import storage
from pteforge.tests.faults.__main__ import BEGIN, END, PAGE, all_campaigns, with_reports
from pteforge.tests.faults.campaign import Campaign, run_campaign, run_in_parallel, trying
from pteforge.tests.faults.crash import CRASH
from pteforge.tests.faults.leaks import LEAKS, Exporter, Held, usual
from pteforge.tests.faults.outages import OUTAGES
from pteforge.tests.faults.races import RACES


def draw(prepared, rng, folder):
    """Breaks one promise in ten."""
    assert list(folder.iterdir()) == []
    number = rng.random()
    (folder / "left").write_text(str(number))
    with (prepared / "drawn").open("a") as file:
        file.write(f"{number}\n")
    with trying("unlucky"):
        assert number > 0.1
    return "lucky"


def made(folder):
    (folder / "drawn").touch()
    return folder


DRAWING = Campaign("Drawing", made, draw, 100)


def drawn(folder):
    return (folder / "prepared" / "drawn").read_text().splitlines()


def test_trials_can_be_repeated(tmp_path):
    """Equal seeds draw the same numbers; one trial alone draws its own, and the report counts and names what broke."""
    report = run_campaign(DRAWING, tmp_path / "all", seed=1, trials=100)
    assert report.tried.total() == 100
    assert set(report.tried) == {"lucky", "unlucky"}
    assert len(report.broken) == report.tried["unlucky"]
    broken = report.broken[0]
    again = run_campaign(DRAWING, tmp_path / "one", seed=1, trials=1, first=broken.index)
    assert [(trial.index, trial.kind) for trial in again.broken] == [(broken.index, "unlucky")]
    assert drawn(tmp_path / "one") == [drawn(tmp_path / "all")[broken.index]]
    run_campaign(DRAWING, tmp_path / "other", seed=2, trials=1)
    assert drawn(tmp_path / "other")[0] != drawn(tmp_path / "all")[0]


def test_trials_in_several_processes(tmp_path):
    """Each process has a share of the trials, which draw and break what they do in one."""
    serial = run_campaign(DRAWING, tmp_path / "serial", seed=1, trials=20)
    parallel = run_in_parallel(DRAWING, tmp_path / "parallel", jobs=3, seed=1, trials=20)
    assert parallel.tried == serial.tried
    broken = [[(trial.index, trial.kind) for trial in report.broken] for report in (serial, parallel)]
    assert broken[0] == broken[1]


def test_no_trial_starts_after_the_deadline(tmp_path):
    """One trial runs even if there is no time, and what was prepared is closed at the end."""
    closed = []

    class Prepared(type(Path())):
        def close(self):
            closed.append(self)

    campaign = Campaign("Drawing", lambda folder: Prepared(made(folder)), draw, 100)
    report = run_campaign(campaign, tmp_path / "short", seed=1, trials=100, deadline=time.monotonic() - 1)
    assert report.tried.total() == 1
    assert len(closed) == 1


def test_rows_of_other_campaigns_stay(tmp_path):
    """Writing the table replaces the rows of the campaigns that ran, and leaves the rest of the page as it was."""
    reports = [
        run_campaign(Campaign(name, made, draw, 9), tmp_path / f"{name}{seed}", seed=seed, trials=9)
        for name, seed in (("Drawing", 1), ("Drawing of maps", 2), ("Drawing", 3))
    ]
    page = f"before\n{BEGIN}{END}after\n"
    for report in reports:
        page = with_reports(page, [report])
    assert page.startswith("before\n")
    assert page.endswith("after\n")
    assert "seed 1 " not in page
    assert "| Drawing | lucky |" in page
    assert {line.split(" | ")[0] for line in page.splitlines() if "seed 3" in line} == {"| Drawing"}
    assert {line.split(" | ")[0] for line in page.splitlines() if "seed 2" in line} == {"| Drawing of maps"}


def test_shorter_runs_replace_nothing(tmp_path):
    """A run of fewer trials than the page has gets a line of its own, until there is a later or a longer one."""
    page = f"before\n{BEGIN}{END}after\n"
    lines = {}
    for seed, trials in ((1, 9), (2, 5), (3, 4), (4, 9)):
        report = run_campaign(DRAWING, tmp_path / f"{seed}", seed=seed, trials=trials)
        page = with_reports(page, [report])
        assert with_reports(page, [report]) == page
        lines[seed] = [line for line in page.splitlines() if line.startswith("| Drawing")]
        assert sum(f"seed {seed} " in line for line in lines[seed]) > 0
    assert [line for line in lines[2] if "seed 1 " in line] == lines[1]
    assert [line.split(" | ")[1] for line in lines[2] if "seed 2 " in line] == ["5"]
    assert [line for line in lines[3] if "seed 2 " in line] == []
    assert all("seed 4 " in line for line in lines[4])


def test_the_page_has_every_campaign():
    """docs/internals/reliability.md has a place for the table, and rows of every campaign, none of which was broken."""
    text = PAGE.read_text(encoding="utf-8")
    assert text.count(BEGIN) == text.count(END) == 1
    written = text.partition(BEGIN)[2].partition(END)[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in written.splitlines() if "seed" in line]
    assert {row[0] for row in rows} >= {campaign.name for campaign in all_campaigns()}
    assert [row for row in rows if row[-2] != "0"] == []


@pytest.mark.parametrize("campaign", [CRASH, RACES])
@pytest.mark.parametrize("first", [pytest.param(0, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.nightly)])
def test_processes(tmp_path, campaign, first):
    """After a kill, and after a race of eight processes, all is as one undisturbed process makes it."""
    seed = {CRASH: 13, RACES: 14}[campaign]
    report = run_campaign(campaign, tmp_path / "trials", seed=seed, trials=1, first=first)
    assert (report.broken, report.tried.total()) == ([], 1)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "trials", [pytest.param(6, marks=pytest.mark.slow), pytest.param(12, marks=pytest.mark.nightly)]
)
def test_storage(tmp_path, monkeypatch, trials):
    """Disks and buckets that fail: each run is right or says what is wrong, and the next one is right."""
    if trials == 6:  # servers take seconds
        monkeypatch.setattr(storage, "_FAULTS", {place: of for place, of in storage._FAULTS.items() if place != "S3"})
    report = run_campaign(storage.STORAGE, tmp_path / "storage", seed=17, trials=trials)
    assert (report.broken, report.tried.total()) == ([], trials)


@pytest.mark.nightly
@pytest.mark.timeout(2400)
def test_outages(tmp_path):
    """Nights in which the store, the server, a worker or the code fails: all is made, once, and every state is true."""
    report = run_campaign(OUTAGES, tmp_path / "outages", seed=36, trials=2)
    assert (report.broken, report.tried.total()) == ([], 2)


@pytest.mark.slow
def test_few_models_leak_nothing(tmp_path):
    """After a few models, `pteforge.export` holds what it held after the first ones."""
    exporter = Exporter(tmp_path / "exporter")
    held = list(exporter.export(range(4, 8), tmp_path / "store"))
    exporter.close()
    held[-1].check(held[1])


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_many_models_leak_nothing(tmp_path):
    """Nor do dozens of models leave anything in the process."""
    assert run_campaign(LEAKS, tmp_path / "leaks", seed=3, trials=1).broken == []


def test_leaks_are_found():
    """A process that holds more of anything has a leak."""
    few = Held(descriptors=5, threads=5, memory=2**28, temporary=1)
    usual([few, few, replace(few, threads=50)]).check(few)
    for more in (replace(few, **{name: 2 * getattr(few, name) + 10}) for name in Held.__annotations__):
        with pytest.raises(AssertionError):
            more.check(few)
