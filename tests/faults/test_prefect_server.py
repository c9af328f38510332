"""A Prefect server that fails: some trials of the campaign, and a disk that is full in the middle of a run."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import pytest
from pteforge.tests.faults.campaign import run_campaign
from pteforge.tests.faults.prefect_server import (
    FILES,
    PREFECT,
    Exporter,
    Spoiler,
    export_with_limit,
    make_scored_project,
)
from pteforge.tests.faulty_proxy import Proxy, run_proxy
from pteforge.tests.flows.server.conftest import server as server  # noqa: PLC0414 - a fixture

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]


def test_failing_calls(tmp_path):
    """Files are made, whatever share of the calls of Prefect's clients fails, and however they do."""
    report = run_campaign(PREFECT, tmp_path / "prefect", seed=1, trials=2)
    assert report.broken == []


@pytest.mark.parametrize("database", [True, False])
def test_full_disk(tmp_path, database):
    """Without space under PREFECT_HOME, with or without a database there, one warning says so and files are made."""
    project, home = make_scored_project(tmp_path / "project"), tmp_path / "home"
    if database:
        first = project.export(env={"PREFECT_HOME": str(home)})
        assert first.code == 0, first.err
    else:
        home.mkdir()
    done = export_with_limit(project, home, 400_000)  # less than what a run writes ahead of its database
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("WARNING: Prefect failed") == 1, done.stderr
    assert sorted(os.fspath(path.relative_to(project.out)) for path in project.out.rglob("*.pte")) == FILES


def test_kinds_of_calls():
    """A kind of call is its method and path without ids."""
    spoiler = Spoiler("reset", "GET /api/flow_runs/ID")
    run = "/api/flow_runs/01a20c9f-215e-7b7c-944a-0123456789ab"
    assert [spoiler.choose(method, f"{run}?limit=1") for method in ("GET", "POST")] == ["reset", ""]
    assert spoiler.kinds == {"GET /api/flow_runs/ID", "POST /api/flow_runs/ID"}


FAULTS = ("unavailable", "lost reply", "reset", "stall")


@pytest.fixture
def proxy(server) -> Iterator[tuple[Spoiler, str]]:
    """What a proxy does, and the URL of the API behind it."""
    made = Spoiler()
    with run_proxy(Proxy(server, made.choose)) as url:
        yield made, f"{url}/api"


def test_every_kind_of_call(tmp_path, proxy):
    """Whatever kind of call is answered with 503 or in vain, reset, or never answered, in turn: all files are there."""
    made, url = proxy
    exporter = Exporter(make_scored_project(tmp_path / "project"), url)
    try:
        assert not all(exporter.export() for _ in range(5)), exporter.said  # calls take long on a busy machine
        kinds = sorted(made.kinds)
        assert {"POST /api/flow_runs/", "POST /api/flow_runs/ID/set_state", "POST /api/logs/"} <= set(kinds)
        lost, met = set(), set()
        for made.kind, made.fault in zip(kinds, itertools.cycle(FAULTS), strict=False):
            made.spoilt = 0
            if exporter.export():
                lost.add(made.kind)
            if made.spoilt:
                met.add(made.kind)
    finally:
        exporter.close()
    assert "Traceback" not in exporter.said
    assert "POST /api/flow_runs/" in lost
    assert set(kinds) - met <= {"GET /api/admin/version", "GET /api/flows/ID"}  # asked for once per process
