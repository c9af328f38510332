"""A zoo in production: PostgreSQL, a Prefect server, an S3 store, two workers with nothing in common, two nights."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from pteforge.tests.flows.server.conftest import eventually
from pteforge.tests.flows.server.site import MODELS, STAGES, Site, run_site

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1500)]


@pytest.fixture
def site(project) -> Iterator[Site]:
    with run_site(project, {"one": 3, "two": 3}) as site:
        yield site


def ran(record: Any) -> dict[str, int]:
    """Number of stages that ran, by model, without those where none did."""
    return {name: counts["ran"] for name, counts in record["models"].items() if counts.get("ran")}


def test_two_nights(site):
    """A machine that dies costs what it was doing. The next night runs what has changed, and says what that was."""
    night = site.start_night()
    assert site.wait_for(night, models=2)["type"] == "RUNNING"
    victim = next(worker for worker in site.workers.values() if night not in worker.runs())
    lost = set(eventually(victim.runs))
    victim.kill()
    state = site.wait_for(night)
    assert state["type"] == "COMPLETED", state
    assert f"{MODELS} files verified" in state["message"]
    assert len(site.files()) == MODELS

    ended = site.runs_of_models(night)
    assert "nothing is published" not in "".join(worker.log.read_text() for worker in site.workers.values())
    assert len(site.read("artifacts/filter", artifacts={"key": {"any_": ["zoo-zoo"]}})) == 1
    crashed = {run["parameters"]["models"] for run in ended if run["state"]["type"] == "CRASHED"}
    assert crashed <= {run["parameters"]["models"] for run in ended if run["id"] in lost}
    counts = {name: Counter(found) for name, found in site.record(night)["models"].items()}
    assert {name: count["ran"] + count["cached"] for name, count in counts.items()} == dict.fromkeys(counts, STAGES)
    assert {name for name, count in counts.items() if count["cached"]} <= crashed
    built = site.built()
    assert len(built) == MODELS
    assert {name for name, count in built.items() if count > 1} <= crashed

    before = site.project.folder / "before"
    shutil.copytree(site.project.out, before)
    site.write_zoo({"net05": 100})
    second = site.start_night()
    state = site.wait_for(second)
    assert state["type"] == "COMPLETED", state
    assert set(ran(site.record(second))) == {"net05"}
    assert len(site.releases()["releases"]) == 2
    compared = json.loads(site.entry("pteforge", "diff", str(before), str(site.project.out), "--json"))
    assert [file["name"] for file in compared["files"] if file["status"] != "equal"] == ["net05/portable-fp32"]
    page = (site.project.out / "index.html").read_text()
    assert "net05" in page
