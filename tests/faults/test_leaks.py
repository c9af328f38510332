"""Many models through one process: the short form of the campaign, and a longer one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pteforge.tests.faults.campaign import run_campaign
from pteforge.tests.faults.leaks import LEAKS, Exporter, Held, usual


def test_few_models(tmp_path):
    """After a few models, `pteforge.export` holds what it held after the first ones."""
    exporter = Exporter(tmp_path / "exporter")
    held = list(exporter.export(range(4, 8), tmp_path / "store"))
    exporter.close()
    held[-1].check(held[1])


@pytest.mark.nightly
def test_many_models(tmp_path):
    """Nor do dozens of models leave anything in the process."""
    report = run_campaign(LEAKS, tmp_path / "leaks", seed=3, trials=1)
    assert report.broken == []


def test_leaks_are_found():
    """A process that holds more of anything has a leak."""
    few = Held(descriptors=5, threads=5, memory=2**28, temporary=1)
    usual([few, few, replace(few, threads=50)]).check(few)
    for more in (replace(few, **{name: 2 * getattr(few, name) + 10}) for name in Held.__annotations__):
        with pytest.raises(AssertionError):
            more.check(few)
