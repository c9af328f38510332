"""The framework of campaigns: trials that can be repeated, and the table in the documentation."""

from __future__ import annotations

import time
from pathlib import Path

from pteforge.tests.faults.__main__ import BEGIN, END, PAGE, all_campaigns, with_reports
from pteforge.tests.faults.campaign import Campaign, run_campaign, trying


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
    """docs/reliability.md has a place for the table, and rows of every campaign, none of which was broken."""
    text = PAGE.read_text(encoding="utf-8")
    assert text.count(BEGIN) == text.count(END) == 1
    written = text.partition(BEGIN)[2].partition(END)[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in written.splitlines() if "seed" in line]
    assert {row[0] for row in rows} >= {campaign.name for campaign in all_campaigns()}
    assert [row for row in rows if row[-2] != "0"] == []
