"""Runs all campaigns, or one, for some minutes; `scripts/faults` calls this. See docs/internals/reliability.md."""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pteforge
from pteforge.tests.conftest import isolate
from pteforge.tests.faults.campaign import Campaign, Report, run_in_parallel
from pteforge.tests.faults.crash import CRASH
from pteforge.tests.faults.damage import DAMAGE
from pteforge.tests.faults.fuzzing import FUZZ, NATIVE
from pteforge.tests.faults.hostile import HOSTILE
from pteforge.tests.faults.leaks import LEAKS
from pteforge.tests.faults.outages import OUTAGES
from pteforge.tests.faults.races import RACES
from pteforge.tests.faults.storage import STORAGE

PAGE = Path(pteforge.__file__).parent / "docs" / "internals" / "reliability.md"
BEGIN, END = "<!-- scripts/faults --write: begin -->\n", "<!-- scripts/faults --write: end -->\n"
HEAD = "| Campaign | Tried | Times | Broken | Run |\n| --- | --- | ---: | ---: | --- |\n"
LATER = "| Campaign | Times | Broken | Shorter run since |\n| --- | ---: | ---: | --- |\n"


def all_campaigns() -> tuple[Campaign, ...]:
    """Every campaign, the quick ones first: what time they leave is the others'."""
    return (FUZZ, NATIVE, DAMAGE, STORAGE, RACES, LEAKS, HOSTILE, CRASH, OUTAGES)


def main() -> int:
    """Runs what the command line asks for; 1 if anything was broken."""
    options = _options()
    campaigns = [each for each in all_campaigns() if options.only in (None, each.name)]
    print(f"seed {options.seed}", flush=True)
    end = time.monotonic() + 60 * options.minutes
    reports = []
    with tempfile.TemporaryDirectory(prefix="pteforge-faults-", ignore_cleanup_errors=True) as room:
        isolate(Path(room))
        for left, campaign in zip(range(len(campaigns), 0, -1), campaigns, strict=True):
            now = time.monotonic()
            report = run_in_parallel(
                campaign,
                Path(room) / f"{left}",
                jobs=options.jobs if options.trial is None else 1,
                seed=options.seed,
                first=options.trial or 0,
                trials=campaign.trials if options.trial is None else 1,
                deadline=now + (end - now) / left,
            )
            _tell(report)
            reports.append(report)
    print("\n" + HEAD + "\n".join(row for report in reports for row in rows(report)))
    if options.write:
        PAGE.write_text(with_reports(PAGE.read_text(encoding="utf-8"), reports), encoding="utf-8")
    return 1 if any(report.broken for report in reports) else 0


def rows(report: Report) -> Iterator[str]:
    """The table's rows of a campaign, one for each sub-kind."""
    broken = Counter(trial.kind for trial in report.broken)
    for kind, times in sorted(report.tried.items()):
        yield f"| {report.campaign} | {kind or 'unknown'} | {times:,} | {broken[kind]} | {_run(report)} |"


def with_reports(page: str, reports: Sequence[Report]) -> str:
    """The page with the rows of these campaigns in place of their earlier ones; rows of other campaigns stay.

    A run that is shorter than the one on the page does not replace it: it gets a line in a table of its own.
    """
    before, _, rest = page.partition(BEGIN)
    written, _, after = rest.partition(END)
    lines = [line for line in written.splitlines() if line.startswith("| ") and line not in HEAD + LATER]
    first, later = ([line for line in lines if line.count(" | ") == columns] for columns in (4, 3))
    for report in reports:
        name = f"| {report.campaign} | "
        earlier = sum(int(line.split(" | ")[2].replace(",", "")) for line in first if line.startswith(name))
        later = [line for line in later if not line.startswith(name)]
        if report.tried.total() < earlier:
            later.append(f"{name}{report.tried.total():,} | {len(report.broken)} | {_run(report)} |")
        else:
            first = [*(line for line in first if not line.startswith(name)), *rows(report)]
    tables = [HEAD + "".join(f"{line}\n" for line in sorted(first, key=_cells))]
    if later:
        tables.append(LATER + "".join(f"{line}\n" for line in sorted(later, key=_cells)))
    tables.append(f"The last run was with pteforge {pteforge.__version__}, on {len(os.sched_getaffinity(0))} cores.\n")
    joined = "\n".join(tables)
    return f"{before}{BEGIN}\n{joined}\n{END}{after}"


def _cells(line: str) -> list[str]:
    return line.split(" | ")


def _run(report: Report) -> str:
    return f"{datetime.now(UTC):%Y-%m-%d}, seed {report.seed}"


def _tell(report: Report) -> None:
    for trial in report.broken:
        command = f'scripts/faults --seed {report.seed} --only "{report.campaign}" --trial {trial.index}'
        print(f"\nBROKEN: {report.campaign}, trial {trial.index} ({trial.kind})\n{trial.message}\nagain: {command}\n")
    print(f"{report.campaign}: {report.tried.total()} trials in {report.seconds:.0f} s, {len(report.broken)} broken")
    sys.stdout.flush()


def _options() -> argparse.Namespace:
    names = [campaign.name for campaign in all_campaigns()]
    parser = argparse.ArgumentParser(prog="scripts/faults", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="for all campaigns together (%(default)s)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000), help="a random one")
    parser.add_argument("--only", choices=names, help="one campaign")
    parser.add_argument("--trial", type=int, help="one trial of it, by its number")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the trials of a campaign")
    parser.add_argument("--write", action="store_true", help="put the table into docs/internals/reliability.md")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
